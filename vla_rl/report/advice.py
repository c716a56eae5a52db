"""Advice on what to do next with a run: rules over its measurements."""

import html
from collections.abc import Iterator

from vla_rl.report.markup import section
from vla_rl.report.run_episodes import goes_on_after_success
from vla_rl.report.run_files import PARTS, Run
from vla_rl.report.wording import count, percent, percent_interval

_SOLVED = 0.95
_HARDLY = 0.05
_STALLED = 0.03
_WIDE = 0.2
_MISCALIBRATED = 0.15
_LOST_TAKEOVERS = 0.4


def next_steps(run: Run, failures: int) -> str:
    """Render the advice; empty for a run without an evaluated policy."""
    found = [
        f"<li>{html.escape(words)}{f'<pre tabindex="0">{html.escape(command)}</pre>' if command else ''}</li>"
        for words, command in (*_of_success(run, failures), *_of_parts(run))
    ]
    return section("What to do next", f"<ul>{''.join(found)}</ul>") if found else ""


def _of_success(run: Run, failures: int) -> Iterator[tuple[str, str]]:
    if not run.policies:
        return
    last, path = run.policies[-1], run.path
    before = run.policies[-2] if len(run.policies) > 1 else None
    again = f"vla-rl train --config {path}/config.yaml --from {path}"
    gain = last.rate - before.rate if before is not None else None
    if last.rate <= _HARDLY:
        yield _of_too_little(run, last.rate)
    elif last.rate >= _SOLVED:
        yield f"The task is solved at this difficulty: {percent(last.rate)}. Practice a harder one.", ""
    elif gain is not None and gain < _STALLED:
        yield f"Success stalls at {percent(last.rate)}.", ""
    elif gain is not None:
        words = f"The last round brought {100 * gain:.0f} points: more rounds may bring more."
        yield words, f"{again} budget.rounds={2 * last.round} --out {path}-longer"
    if failures and last.rate < _SOLVED:
        yield f"Look at the {count(failures, 'failure')} below. A cause that repeats asks for demonstrations of it.", ""
    low, high = last.interval
    if high - low > _WIDE:
        tried = count(last.episodes, "episode")
        words = f"After {tried} success may be anything in {percent_interval(last.interval)} %: evaluate more."
        yield words, f"vla-rl eval {path} --episodes 400"
    if goes_on_after_success(path):
        words = "No success ended its episode, so steps to success show the time limit."
        yield f"{words} Let the task end there (terminated) to measure speed, and to practice for it.", ""
    if run.lacks_parts:
        words = "The last policy acts with a residual or a critic. Evaluate it without them on the same seeds."
        yield words, f"vla-rl eval {path} --parts\nvla-rl report {path}"
    if all(control.control in PARTS for control in run.controls) and last.round and last.rate > _HARDLY:
        control = f"{path}-control"
        words = "Would as many gradient steps on the demonstrations alone have done the same? A control shows it."
        command = f"{again} algorithm=sft budget.episodes_per_round=0 --out {control}"
        yield words, f"{command}\nvla-rl report {path} --compare {control}"


def _of_too_little(run: Run, rate: float) -> tuple[str, str]:
    """Return the advice for a run with hardly a success, from which practice cannot learn."""
    task, budget = ({**(run.config.get(name) or {})} for name in ("task", "budget"))
    brought, names = task.get("demonstrations"), ["demonstrations", "supervised_steps"]
    words = (
        f"Success is at {percent(rate)}. Practice learns from successes: more demonstrations or supervised steps first."
    )
    if brought:
        words += f" Record demonstrations into {brought} (vla-rl record)."
        names.remove("demonstrations")
    counts = {name: budget.get(name) for name in names}
    more = " ".join(f"budget.{name}={2 * value}" for name, value in counts.items() if isinstance(value, int) and value)
    return words, f"vla-rl train --config {run.path}/config.yaml {more} --out {run.path}-more" if more else ""


def _of_parts(run: Run) -> Iterator[tuple[str, str]]:
    if run.forecasts and run.forecasts[-1].calibration_error > _MISCALIBRATED:
        error = percent(run.forecasts[-1].calibration_error)
        yield f"The viability critic is off by {error} on average: give it more updates, or more episodes a round.", ""
    rounds = [record for record in run.records("collect") if record.get("takeovers")]
    if rounds:
        takeovers, rescued = rounds[-1]["takeovers"], rounds[-1].get("rescued", 0)
        if takeovers - rescued > _LOST_TAKEOVERS * takeovers:
            lost = f"{takeovers - rescued} of {count(takeovers, 'takeover')}"
            yield f"In the last round {lost} were in vain: take over earlier.", ""
