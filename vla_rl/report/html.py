"""The two pages of the report: `report.html` of a run, and the comparison of several runs.

A page is one file with everything inside: style, scripts, data, pictures and videos; it needs no network. It
is built from run folders alone, at any moment of a run or after a crash.
"""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from vla_rl.core.config import flatten
from vla_rl.core.errors import UserError
from vla_rl.report import charts, episode_list, episode_sections, sections
from vla_rl.report.advice import next_steps
from vla_rl.report.markup import UNKNOWN, glossary, lead, missing, page_of, problems, save_page, section, table
from vla_rl.report.media import Redraw
from vla_rl.report.run_episodes import last_pairs, open_store
from vla_rl.report.run_files import Run, headline, read_run
from vla_rl.report.wording import P_VALUE


def build_report(run_dir: Path, redraw: Redraw | None = None) -> Path:
    """Write ``report.html`` into a run folder and return its path; ``redraw`` renders episodes again for the videos.

    Raises:
        UserError: If the folder holds nothing of a run, or cannot be written to. Other missing or damaged parts are
            left out with a sentence.
    """
    run = read_run(run_dir)
    parts = [
        next_steps(run),
        sections.success(run),
        episode_list.episodes({run.path.resolve().name: run}),
        episode_sections.task(run, redraw),
        episode_sections.clips(run, redraw),
        sections.world_models(run),
        episode_sections.predicted(run),
        sections.training({"": run}),
        sections.calibration(run),
        sections.collection(run),
        sections.operators(run),
        sections.machine(run),
        glossary(),
        sections.config(run),
    ]
    title = run.summary.get("task") or run.path.resolve().name
    chips = [f"{name} {run.summary[name]}" for name in ("algorithm", "seed") if run.summary.get(name) is not None]
    return save_page(run_dir / "report.html", page_of(str(title), headline(run), chips, parts, run.problems))


def build_comparison(run_dirs: Sequence[Path], redraw: Redraw | None = None) -> Path:
    """Write ``comparison-OTHERS.html`` into the first of two or more runs and return its path.

    ``redraw`` as of `build_report`.

    Raises:
        UserError: If a folder holds no run or no evaluated policy, or the page cannot be written.
    """
    found = [read_run(run_dir) for run_dir in run_dirs]
    for run in found:
        if not run.policies:
            raise UserError(f"{run.path} has no evaluated policy yet; let it finish its first evaluation")
    names = [run.path.resolve().name for run in found]
    names = names if len(set(names)) == len(names) else [str(run.path) for run in found]
    runs = dict(zip(names, found, strict=True))
    if len(runs) < 2:
        raise UserError(f"a comparison needs two runs; {run_dirs[0]} is given twice")
    words = ", ".join(f"{name} {run.policies[-1].words}" for name, run in runs.items())
    parts = [_compared_success(runs), episode_list.episodes(runs), _compared_clips(runs, redraw)]
    parts += [sections.training(runs), _differences(runs)]
    others = "-".join(run_dir.resolve().name for run_dir in run_dirs[1:])
    page = page_of(f"{names[0]} compared with {', '.join(names[1:])}", f"{words}.", (), parts)
    return save_page(run_dirs[0] / f"comparison-{others[:100]}.html", page)


def _compared_success(runs: Mapping[str, Run]) -> str:
    by_round = {name: {policy.round: policy for policy in run.policies} for name, run in runs.items()}
    first, *others = by_round
    rows = []
    for number in sorted(set().union(*by_round.values())):
        policies = {name: own.get(number) for name, own in by_round.items()}
        row = {"policy": f"round {number}" if number else "supervised"}
        row |= {html.escape(name): each.words if each else UNKNOWN for name, each in policies.items()}
        for name in others:
            ours, theirs = policies[first], policies[name]
            row[f"p (could it be chance?), {name}"] = f"{ours.p_value(theirs):.2g}" if ours and theirs else ""
        rows.append(row)
    words = f"Bands are Wilson's 95 % interval. p is against {first}. {P_VALUE}"
    return section("Success", lead(words) + charts.success_chart(runs) + table(rows))


def _compared_clips(runs: Mapping[str, Run], redraw: Redraw | None) -> str:
    title, unread = "The last policies of the first two runs on the same seeds", list[str]()
    names, (first, other) = [*runs][:2], [open_store(run.path / "evaluation", unread) for run in [*runs.values()][:2]]
    pairs = last_pairs(first, other, unread) if first is not None and other is not None else []
    if first is None or other is None or not pairs:
        words = "There are no evaluation episodes of both runs on the same seeds."
        return section(title, missing(words) + problems(unread))
    words = f"{episode_sections.outcomes(pairs, *names)} Above {names[0]}, below {names[1]}."
    videos = episode_sections.paired_players(pairs, (first, other), redraw, unread)
    return section(title, lead(words) + videos + problems(unread))


def _differences(runs: Mapping[str, Run]) -> str:
    options = {name: flatten(run.config) for name, run in runs.items()}
    rows = []
    for option in sorted(set().union(*options.values())):
        values = {html.escape(name): html.escape(str(own.get(option, UNKNOWN))) for name, own in options.items()}
        if len(set(values.values())) > 1:
            rows.append({"option": html.escape(option)} | values)
    return section("Differences", table(rows) if rows else missing("The configs are equal."))
