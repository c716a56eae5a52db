"""Two runs side by side: success round by round, the same seeds under both last policies, and what differs."""

import html
from pathlib import Path

from vla_rl.core.config import flatten
from vla_rl.core.errors import UserError
from vla_rl.report import charts
from vla_rl.report.episode_sections import outcomes, paired_players
from vla_rl.report.html import page_of, save_page
from vla_rl.report.markup import lead, missing, problems, section, table
from vla_rl.report.players import Redraw
from vla_rl.report.run_episodes import last_pairs, open_store
from vla_rl.report.run_files import Evaluation, Run, read_run
from vla_rl.report.wording import P_VALUE, percent, percent_interval

_UNKNOWN = "\N{EN DASH}"


def build_comparison(run_dir: Path, other_dir: Path, redraw: Redraw | None = None) -> Path:
    """Write ``beside-NAME.html`` into the first run's folder, NAME being the other's, and return its path.

    Args:
        run_dir: of the first run.
        other_dir: of the other one.
        redraw: see `vla_rl.report.players.player`.

    Raises:
        UserError: if a folder holds nothing of a run or no policy of it was evaluated, or the page cannot be written.
    """
    runs = read_run(run_dir), read_run(other_dir)
    for run in runs:
        if not run.policies:
            raise UserError(f"{run.path} has no evaluated policy yet; let it finish its first evaluation")
    names = [run.path.resolve().name for run in runs]
    last, other = (run.policies[-1] for run in runs)
    told = f"{names[0]} {_rate(last)}, {names[1]} {_rate(other)}: p {last.p_value(other):.2g}"
    parts = [_success(runs, names), _clips(runs, names, redraw), _differences(runs, names)]
    return save_page(run_dir / f"beside-{names[1]}.html", page_of(f"{names[0]} beside {names[1]}", told, (), parts))


def _rate(evaluation: Evaluation) -> str:
    return f"{percent(evaluation.rate)} {percent_interval(evaluation.interval)}"


def _success(runs: tuple[Run, Run], names: list[str]) -> str:
    rates = [{policy.round: policy for policy in run.policies} for run in runs]
    rows = []
    for number in sorted(rates[0].keys() | rates[1].keys()):
        both = [each.get(number) for each in rates]
        cells = [_UNKNOWN if each is None else _rate(each) for each in both]
        ours, theirs = both
        p = ""
        if ours is not None and theirs is not None:
            p = f"{ours.p_value(theirs):.2g}"
        rows.append([f"round {number}" if number else "supervised", *cells, p])
    figures = "".join(
        f"<figure><figcaption>{html.escape(name)}</figcaption>{charts.success_chart(run.policies, (), ())}</figure>"
        for run, name in zip(runs, names, strict=True)
    )
    words = f"Intervals are Wilson's 95 % interval. {P_VALUE}"
    heads = ["policy", *names, "p (could it be chance?)"]
    return section("Success", lead(words) + f'<div class="two">{figures}</div>' + table(heads, rows))


def _clips(runs: tuple[Run, Run], names: list[str], redraw: Redraw | None) -> str:
    title, troubles = "The last policies on the same seeds", list[str]()
    stores = [open_store(run.path / "evaluation", troubles) for run in runs]
    ours, theirs = stores
    pairs = last_pairs(ours, theirs, troubles) if ours is not None and theirs is not None else []
    if ours is None or theirs is None or not pairs:
        words = "There are no evaluation episodes of both runs on the same seeds."
        return section(title, missing(words) + problems(troubles))
    words = f"{outcomes(pairs, *names)} Above {names[0]}, below {names[1]}."
    return section(title, lead(words) + paired_players(pairs, (ours, theirs), redraw, troubles) + problems(troubles))


def _differences(runs: tuple[Run, Run], names: list[str]) -> str:
    ours, theirs = (flatten(run.config) for run in runs)
    rows = [
        [html.escape(name), *(html.escape(str(each.get(name, _UNKNOWN))) for each in (ours, theirs))]
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name, _UNKNOWN) != theirs.get(name, _UNKNOWN)
    ]
    return section("What differs", table(["option", *names], rows) if rows else missing("The configs are equal."))
