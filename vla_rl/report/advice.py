"""Advice on what to do next with a run: rules over its measurements."""

import html
from collections.abc import Iterator

from vla_rl.report.markup import section
from vla_rl.report.run_files import PARTS, Run

ADVISED_CONTROL = "algorithm=sft budget.episodes_per_round=0 budget.compare_episodes=0 budget.check_episodes=0"
"""Changes to a run's config that leave practice out."""
_SOLVED = 0.95
_HARDLY = 0.05
_GAIN = 0.03
_WIDE = 0.2


def next_steps(run: Run) -> str:
    """Render the advice; empty for a run without an evaluated policy."""
    found = [
        f'<li>{html.escape(words)}<pre tabindex="0">{html.escape(command)}</pre></li>'
        for words, command in _advice(run)
    ]
    if run.policies and run.policies[-1].rate < _SOLVED:
        words = "A cause that repeats asks for demonstrations of it."
        found.append(f'<li>Watch the failures in the <a href="#episodes">list of episodes</a>. {words}</li>')
    return section("What to do next", f"<ol>{''.join(found)}</ol>") if found else ""


def _advice(run: Run) -> Iterator[tuple[str, str]]:
    if not run.policies:
        return
    last, path = run.policies[-1], run.path
    gain = last.rate - run.policies[-2].rate if len(run.policies) > 1 else 0.0
    again = f"vla-rl train --config {path}/config.yaml --from {path}"
    if last.rate <= _HARDLY:
        yield from _of_too_little(run)
    elif gain >= _GAIN and last.rate < _SOLVED:
        yield "The last round helped: practice longer.", f"{again} budget.rounds={2 * last.round} --out {path}-longer"
    fits = [record for record in run.records("train") if "proxy_unexplained" in record and "critic_loss" in record]
    if fits and fits[-1].get("imagined_stopped") and "imagined_unexplained_newest" not in fits[-1]:
        words = (
            f"The proxy leaves {fits[-1]['proxy_unexplained']:.0%} of the base policy's chunks unexplained, so nothing "
        )
        words += "was imagined. More episodes or gradient steps make a better one."
        yield words, f"{again} learning.distill_steps=800 budget.steps_per_round=1200 --out {path}-longer"
    low, high = last.interval
    if high - low > _WIDE:
        words = f"The interval of success is {100 * (high - low):.0f} points wide: evaluate more."
        yield words, f"vla-rl eval {path} --episodes 400"
    if run.lacks_parts:
        words = "The last policy acts with a residual or a critic. Evaluate it without them on the same seeds."
        yield words, f"vla-rl eval {path} --parts\nvla-rl report {path}"
    if all(control.control in PARTS for control in run.controls) and last.round and last.rate > _HARDLY:
        control = f"{path}-control"
        words = "Would as many gradient steps on the demonstrations alone have done the same? A control shows it."
        command = f"{again} {ADVISED_CONTROL} --out {control}"
        yield words, f"{command}\nvla-rl report {path} --compare {control}"


def _of_too_little(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the advice for a run with hardly a success, from which practice cannot learn."""
    task, budget = ({**(run.config.get(name) or {})} for name in ("task", "budget"))
    names = ["demonstrations", "supervised_steps", "steps_per_demonstration"]
    words = "Practice learns from successes: give it more demonstrations or supervised steps first."
    if brought := task.get("demonstrations"):
        words += f" Record demonstrations into {brought} (vla-rl record)."
        names.remove("demonstrations")
    counts = {name: budget.get(name) for name in names}
    more = " ".join(f"budget.{name}={2 * value}" for name, value in counts.items() if isinstance(value, int) and value)
    if more:
        yield words, f"vla-rl train --config {run.path}/config.yaml {more} --out {run.path}-more"
