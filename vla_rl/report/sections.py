"""The sections of the report: each turns a part of the run into HTML, or says what is not there yet."""

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vla_rl.report import charts
from vla_rl.report.markup import lead, legend, missing, section, table
from vla_rl.report.run_episodes import goes_on_after_success
from vla_rl.report.run_files import Evaluation, Run
from vla_rl.report.statistics import wilson_interval
from vla_rl.report.wording import P_VALUE, duration, percent, percent_interval

_CURVES = (
    ("Actor loss", ("actor_loss",)),
    ("Viability loss", ("viability_loss",)),
    ("Efficiency loss", ("efficiency_loss",)),
    ("Advantage gate: mean, saturated", ("gate_mean", "gate_saturated")),
    ("Actor samples per second", ("samples_per_s",)),
)
_UNKNOWN = "\N{EN DASH}"
_OF_OPERATORS = {  # figure -> head of its column, format, what a critic's figure means
    "demonstrations": ("demonstrations", ",.0f", ""),
    "steps": ("mean steps", ".0f", ""),
    "takeovers": ("takeovers", ",.0f", ""),
    "rescued": ("of these rescued", ".0%", ""),
    "person_steps": ("steps driven", ",.0f", ""),
    "advantage_gate": ("mean advantage gate", ".2f", "A gate above 1: better than usual at that place."),
    "efficiency_advantage": (
        "mean efficiency advantage",
        "+.1f",
        "The efficiency advantage: steps saved, over the horizon of the advantage; below 0 lost.",
    ),
    "value_rise": (
        "mean rise of the value",
        "+.3f",
        "The value is what success is worth (0 to 1), foretold from episodes other than its own; it rises, from a step "
        "to a chunk later, by what the person has brought about in that time.",
    ),
}
_NO_CURVE = {"kind", "round", "step", "wall_s", "time_s"}


def success(run: Run) -> str:
    """Success per round, with the controls and a table of the figures."""
    if not run.evaluations:
        return section("Success", missing("No policy has been evaluated yet."))
    names = list(dict.fromkeys(str(control.control) for control in run.controls))
    rows, at_limit = [], goes_on_after_success(run.path)
    for evaluation in [*run.policies, *run.controls]:
        index = None if evaluation.control is None else names.index(evaluation.control)
        icon = f'<svg viewBox="-9 -9 18 18" aria-hidden="true">{charts.mark(index)}</svg>'
        name = evaluation.label if evaluation.control is None else f"{evaluation.control}, round {evaluation.round}"
        rows.append([icon + html.escape(name), *_figures(evaluation, at_limit), _against_last(run, evaluation)])
    last = run.policies[-1].label if run.policies else "the last"
    heads = [
        "policy",
        "success",
        "95 %",
        "episodes",
        "trained on",
        "gradient steps",
        "steps to success",
        f"p (could it be chance?), against {last}",
    ]
    words = (
        f"On episodes that training never sees. Band and bars: Wilson's 95 % interval. {P_VALUE} "
        "Trained on: demonstrations and practice episodes."
    )
    chart = charts.success_chart(run.policies, run.controls, names)
    return section("Success", lead(words) + f"<figure>{chart}</figure>" + table(heads, rows) + _per_task(run))


def calibration(run: Run) -> str:
    """How often the viability critic is right about episodes that it has not been trained on."""
    title = "Is the viability critic right as often as it says?"
    forecasts = run.forecasts
    if not forecasts:
        why = "they begin with the second round of practice, for an algorithm that has a viability critic"
        return section(title, missing(f"There are no forecasts: {why}."))
    words = (
        "Measured on the practice episodes of a round with the critic as the round before left it, so that it was "
        "trained on none of them. Counted is every fourth of the policy's steps: with the outcome of the episode where "
        "no person took over after it, otherwise as a failure. Calibration error: mean distance between predicted and "
        "observed over ten bins, weighted by steps. Area under the curve: how often a step that led to success "
        "has a higher prediction than one that did not."
    )
    if forecasts[-1].discount < 1:
        words += (
            f" Here a success counts {forecasts[-1].discount:g} to the power of the ticks until it came, in what is "
            "predicted and in what is observed."
        )
    rows = [
        [
            f"round {forecast.round}",
            f"{forecast.calibration_error:.3f}",
            f"{forecast.brier:.3f}",
            "-" if forecast.auc is None else f"{forecast.auc:.3f}",
            percent(forecast.mean_predicted),
            percent(forecast.mean_observed),
            f"{forecast.steps:,}",
        ]
        for forecast in forecasts
    ]
    heads = [
        "episodes of",
        "calibration error",
        "Brier score",
        "area under the curve",
        "mean predicted",
        "observed",
        "steps",
    ]
    key = {"newest": f"round {forecasts[-1].round}"} | ({"older": "rounds before"} if len(forecasts) > 1 else {})
    note = f'<p class="note">{legend(key)}. Dotted: perfect calibration. Area of a mark: its share of the steps.</p>'
    chart = f"<figure>{charts.reliability_chart(forecasts)}{note}</figure>"
    return section(title, lead(words) + f'<div class="beside">{chart}{table(heads, rows)}</div>')


def training(run: Run) -> str:
    """Training curves over gradient steps."""
    records = [
        {"samples_per_s": _float(record.get("steps_per_s")) * run.actor_batch(record.get("round", 0)), **record}
        for record in run.records("train")
    ]
    steps = np.array([record["step"] for record in records], np.float64)
    rounds = [record.get("round") for record in records]
    boundaries = [float(steps[i - 1]) for i in range(1, len(rounds)) if rounds[i] != rounds[i - 1]]
    names = sorted({name for record in records for name in record} - _NO_CURVE)
    others = [name for name in names if not any(name in curve for _, curve in _CURVES)]

    def figure(title: str, curve: Sequence[str]) -> str:
        columns = [np.array([_float(record.get(name)) for record in records]) for name in curve]
        known = [(steps, column) for column in columns if np.isfinite(column).any()]
        if not known:
            return ""
        series = dict(zip(("first", "second"), known, strict=False))
        latest = {name: f"{values[np.isfinite(values)][-1]:.4g}" for name, (_, values) in series.items()}
        values = " ".join(f'<span class="latest {name}">{value}</span>' for name, value in latest.items())
        caption = f"<figcaption>{html.escape(title)}<span>{values}</span></figcaption>"
        return f"<figure>{caption}{charts.curve_chart(series, boundaries, title)}</figure>"

    shown = "".join(figure(title, curve) for title, curve in _CURVES)
    more = "".join(figure(name.replace("_", " "), (name,)) for name in others)
    if not shown and not more:
        return section("Training", missing("No gradient steps have been logged yet."))
    words = (
        "Over gradient steps; a dotted line begins a round of practice. At the right of each title, the latest value."
    )
    folded = f'<details><summary>More curves</summary><div class="curves">{more}</div></details>' if more else ""
    return section("Training", lead(words) + f'<div class="curves">{shown}</div>' + folded)


def collection(run: Run) -> str:
    """What each round of practice brought in."""
    records = [record for record in run.records("collect") if _float(record.get("episodes")) > 0]
    if not records:
        return section("Practice episodes", missing("No practice episodes have been logged yet."))
    rows = []
    for record in records:
        episodes, successes, takeovers, rescued = (
            int(_float(record.get(name), 0)) for name in ("episodes", "successes", "takeovers", "rescued")
        )
        alone, lost = successes - rescued, takeovers - rescued
        shares = (("good", alone), ("human", rescued), ("human tint", lost), ("bad", episodes - alone - takeovers))
        bar = "".join(
            f'<span class="fill-{name}" style="width:{100 * n / episodes:.2f}%"></span>' for name, n in shares
        )
        length = _float(record.get("mean_length"))
        name = "demonstrations" if record.get("round") == 0 else f"round {record.get('round')}"
        figures = [
            f"{episodes:,}",
            f"{alone:,}",
            f"{takeovers:,}",
            f"{rescued:,}",
            f"{length:.0f}" if length >= 0 else _UNKNOWN,
        ]
        rows.append([html.escape(name), *figures, f'<div class="bar">{bar}</div>'])
    heads = ["", "episodes", "autonomous successes", "takeovers", "of these rescued", "mean steps", ""]
    names = {"good": "success alone", "human": "rescued", "human tint": "taken over in vain", "bad": "failure"}
    return section("Practice episodes", table(heads, rows) + f'<p class="note">{legend(names)}</p>')


def operators(run: Run) -> str:
    """Whose demonstrations and rescues help; nothing where nobody is known by name."""
    records = run.records("operators")
    if not records:
        return ""
    newest = records[-1]
    names = sorted({key.partition("/")[0] for key in newest if "/" in key})

    figures = {
        figure: shown
        for figure, shown in _OF_OPERATORS.items()
        if any(math.isfinite(_float(newest.get(f"{name}/{figure}"))) for name in names)
    }

    def cell(name: str, figure: str) -> str:
        value = _float(newest.get(f"{name}/{figure}"))
        return _UNKNOWN if math.isnan(value) else format(value, figures[figure][1])

    rows = [[html.escape(name), *(cell(name, figure) for figure in figures)] for name in names]
    heads = ["", *(head for head, _, _ in figures.values())]
    means = " ".join(meaning for _, _, meaning in figures.values() if meaning)
    said = f"What the critics of the last round say of the steps that each person decided. {means}"
    return section("Whose steps help", (lead(said) if means else "") + table(heads, rows))


def machine(run: Run) -> str:
    """The machine, the versions, and where the time went."""
    body = ""
    if run.stages:
        total_s = sum(wall_s for _, wall_s in run.stages) or 1.0
        rows = [
            [
                html.escape(name),
                duration(wall_s),
                f'<div class="bar"><span class="fill-policy" style="width:{100 * wall_s / total_s:.2f}%"></span></div>',
            ]
            for name, wall_s in run.stages
        ]
        body += table(["stage", "wall clock", ""], rows)
    facts = {str(name): _plain(value) for name, value in run.machine.items() if value is not None}
    if facts:
        body += (
            f"<dl>{''.join(f'<dt>{html.escape(name)}</dt><dd>{html.escape(facts[name])}</dd>' for name in facts)}</dl>"
        )
    return section("Machine and time", body or missing("The machine and the wall-clock times are not known yet."))


def config(run: Run) -> str:
    """The resolved config, folded."""
    if not run.config_text:
        return section("Configuration", missing("There is no config.yaml in this run folder."))
    return section(
        "Configuration", f"<details><summary>config.yaml</summary><pre>{html.escape(run.config_text)}</pre></details>"
    )


def _figures(evaluation: Evaluation, at_limit: bool) -> list[str]:
    length = evaluation.mean_success_length
    steps = _UNKNOWN if length is None else f"{length:.0f}"
    return [
        percent(evaluation.rate),
        percent_interval(evaluation.interval),
        f"{evaluation.successes} / {evaluation.episodes}",
        _UNKNOWN if evaluation.real_episodes is None else f"{evaluation.real_episodes:,}",
        _UNKNOWN if evaluation.gradient_steps is None else f"{evaluation.gradient_steps:,}",
        f"{steps} (limit)" if at_limit else steps,
    ]


def _per_task(run: Run) -> str:
    """Success on each task, of policies that have several; else nothing."""
    tasks = list(dict.fromkeys(task for policy in run.policies for task in policy.tasks))
    if not tasks:
        return ""
    rows = []
    for policy in run.policies:
        counts = [policy.tasks.get(task, (0, 0)) for task in tasks]
        cells = [
            f"{percent(successes / episodes)} {percent_interval(wilson_interval(successes, episodes))}"
            if episodes
            else _UNKNOWN
            for successes, episodes in counts
        ]
        rows.append([html.escape(policy.label), *cells])
    return table(["policy", *tasks], rows)


def _against_last(run: Run, evaluation: Evaluation) -> str:
    last = run.policies[-1] if run.policies else evaluation
    if evaluation is last:
        return ""
    return f"{last.p_value(evaluation):.2g}"


def _float(value: Any, default: float = math.nan) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else default


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)
