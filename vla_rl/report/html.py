"""The two pages of the report: `report.html` of a run, and the comparison of two runs.

A page is one file with everything inside: style, script, SVG, pictures and videos as data URIs; it needs no network. It
is built from run folders alone, at any moment of a run or after a crash.
"""

import html
from pathlib import Path

from vla_rl.core.config import flatten
from vla_rl.core.errors import UserError
from vla_rl.report import charts, episode_sections, sections
from vla_rl.report.advice import next_steps
from vla_rl.report.markup import UNKNOWN, glossary, lead, missing, page_of, problems, save_page, section, table
from vla_rl.report.media import Redraw
from vla_rl.report.run_episodes import last_pairs, open_store, read_failures
from vla_rl.report.run_files import Run, headline, read_run
from vla_rl.report.wording import P_VALUE


def build_report(run_dir: Path, redraw: Redraw | None = None) -> Path:
    """Write ``report.html`` into a run folder and return its path.

    Args:
        run_dir: The run folder.
        redraw: Renders episodes again for the videos; see `vla_rl.report.media.player`.

    Raises:
        UserError: If the folder holds nothing of a run, or cannot be written to. Other missing or damaged parts are
            left out with a sentence.
    """
    run = read_run(run_dir)
    store = open_store(run_dir / "episodes", [])
    failures = read_failures(run_dir / "traces", store) if store is not None else []
    parts = [
        episode_sections.task(run, redraw),
        sections.success(run),
        next_steps(run, len(failures)),
        episode_sections.clips(run, redraw),
        episode_sections.failures(failures, redraw),
        episode_sections.traces(run, redraw),
        episode_sections.predicted(run),
        sections.calibration(run),
        sections.training(run),
        sections.collection(run),
        sections.operators(run),
        sections.machine(run),
        glossary(),
        sections.config(run),
    ]
    title = run.summary.get("task") or run.path.resolve().name
    chips = [f"{name} {run.summary[name]}" for name in ("algorithm", "seed") if run.summary.get(name) is not None]
    return save_page(run_dir / "report.html", page_of(str(title), headline(run), chips, parts, run.problems))


def build_comparison(run_dir: Path, other_dir: Path, redraw: Redraw | None = None) -> Path:
    """Write ``comparison-OTHER.html`` into the first run's folder and return its path.

    Args:
        run_dir: Folder of the first run.
        other_dir: Folder of the other run.
        redraw: Renders episodes again for the videos; see `vla_rl.report.media.player`.

    Raises:
        UserError: If a folder holds no run or no evaluated policy, or the page cannot be written.
    """
    runs = read_run(run_dir), read_run(other_dir)
    for run in runs:
        if not run.policies:
            raise UserError(f"{run.path} has no evaluated policy yet; let it finish its first evaluation")
    names = [run.path.resolve().name for run in runs]
    if names[0] == names[1]:
        names = [str(run.path) for run in runs]
    last, other = (run.policies[-1] for run in runs)
    words = f"{names[0]} {last.words}, {names[1]} {other.words}: p {last.p_value(other):.2g}"
    parts = [_compared_success(runs, names), _compared_clips(runs, names, redraw), _differences(runs, names)]
    page = page_of(f"{names[0]} compared with {names[1]}", words, (), parts)
    return save_page(run_dir / f"comparison-{other_dir.resolve().name}.html", page)


def _compared_success(runs: tuple[Run, Run], names: list[str]) -> str:
    ours, theirs = ({policy.round: policy for policy in run.policies} for run in runs)
    rows = []
    for number in sorted(ours.keys() | theirs.keys()):
        first, other = ours.get(number), theirs.get(number)
        row = {"policy": f"round {number}" if number else "supervised"}
        row |= {name: each.words if each else UNKNOWN for name, each in zip(names, (first, other), strict=True)}
        rows.append(row | {"p (could it be chance?)": f"{first.p_value(other):.2g}" if first and other else ""})
    figures = "".join(
        f"<figure><figcaption>{html.escape(name)}</figcaption>{charts.success_chart(run.policies, (), ())}</figure>"
        for run, name in zip(runs, names, strict=True)
    )
    words = f"Intervals are Wilson's 95 % interval. {P_VALUE}"
    return section("Success", lead(words) + f'<div class="two">{figures}</div>' + table(rows))


def _compared_clips(runs: tuple[Run, Run], names: list[str], redraw: Redraw | None) -> str:
    title, unread = "The last policies on the same seeds", list[str]()
    ours, theirs = (open_store(run.path / "evaluation", unread) for run in runs)
    pairs = last_pairs(ours, theirs, unread) if ours is not None and theirs is not None else []
    if ours is None or theirs is None or not pairs:
        words = "There are no evaluation episodes of both runs on the same seeds."
        return section(title, missing(words) + problems(unread))
    words = f"{episode_sections.outcomes(pairs, *names)} Above {names[0]}, below {names[1]}."
    videos = episode_sections.paired_players(pairs, (ours, theirs), redraw, unread)
    return section(title, lead(words) + videos + problems(unread))


def _differences(runs: tuple[Run, Run], names: list[str]) -> str:
    ours, theirs = (flatten(run.config) for run in runs)
    rows = [
        {"option": html.escape(name)}
        | {run: html.escape(str(each.get(name, UNKNOWN))) for run, each in zip(names, (ours, theirs), strict=True)}
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name, UNKNOWN) != theirs.get(name, UNKNOWN)
    ]
    return section("Differences", table(rows) if rows else missing("The configs are equal."))
