"""The sections of the report: each renders a part of the run, or says that it does not exist yet."""

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vla_rl.report import charts
from vla_rl.report.markup import UNKNOWN, lead, legend, missing, section, table
from vla_rl.report.run_episodes import goes_on_after_success
from vla_rl.report.run_files import Run
from vla_rl.report.statistics import wilson_interval
from vla_rl.report.wording import P_VALUE, duration, percent, percent_interval

# Every number that an algorithm logs in `update` becomes a curve. To give it a title and a place before the folded
# curves, add a line; two names share an axis.
CURVES = (
    ("Actor loss", ("actor_loss",)),
    ("Viability loss", ("viability_loss",)),
    ("Efficiency loss", ("efficiency_loss",)),
    ("Advantage gate: mean, saturated", ("gate_mean", "gate_saturated")),
    ("Actor samples per second", ("samples_per_s",)),
)
_OF_OPERATORS = {  # figure -> head of its column, format, meaning
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
        "The value is the discounted chance of success (0 to 1), predicted from other episodes. Its rise within one "
        "chunk is the effect of the person.",
    ),
}
_MODEL_SHARES = {  # head of a column -> figure
    "unexplained, data of the model": "imagined_unexplained",
    "older episodes, unseen": "imagined_unexplained_older",
    "newest episodes, unseen": "imagined_unexplained_newest",
}
_NO_CURVE = {"kind", "round", "step", "wall_s", "time_s"}


def success(run: Run) -> str:
    """Render success per round, with the controls and a table of the figures."""
    if not run.evaluations:
        return section("Success", missing("No policy has been evaluated yet."))
    rows, at_limit = [], goes_on_after_success(run.path)
    for evaluation in [*run.policies, *run.controls]:
        name = evaluation.label if evaluation.control is None else f"{evaluation.control}, round {evaluation.round}"
        last = run.policies[-1] if run.policies else evaluation
        row = {
            "policy": html.escape(name),
            "success": percent(evaluation.rate),
            "95 %": percent_interval(evaluation.interval),
            "episodes": f"{evaluation.successes} / {evaluation.episodes}",
            "episodes until then": _figure(evaluation.real_episodes),
            "gradient steps": _figure(evaluation.gradient_steps),
            "steps to success": _figure(evaluation.mean_success_length) + (" (limit)" if at_limit else ""),
            f"p (could it be chance?), against {last.label}": f"{last.p_value(evaluation):.2g}",
        }
        rows.append(row | ({[*row][-1]: ""} if evaluation is last else {}))
    words = (
        f"On episodes that training never sees. Bands: Wilson's 95 % interval. {P_VALUE} "
        "Episodes until then: demonstrations, practice, comparisons and checks."
    )
    return section("Success", lead(words) + charts.success_chart({"policy": run}) + table(rows) + _per_task(run))


def calibration(run: Run) -> str:
    """Render the calibration of the viability critic on episodes that it has not been trained on."""
    title = "Calibration of the viability critic"
    forecasts = run.forecasts
    if not forecasts:
        words = (
            "There are no predictions yet. They begin with the second round, for algorithms with a viability critic."
        )
        return section(title, missing(words))
    words = (
        "The viability critic of the round before predicts the episodes of a round, so it was trained on none of them. "
        "Every fourth step of the policy counts. Its label is the outcome of the episode, or failure if a person took "
        "over later. Calibration error: mean distance between predicted and observed over ten bins, weighted by steps. "
        "Area under the curve: how often a step that led to success has a higher prediction than one that did not."
    )
    if forecasts[-1].discount < 1:
        words += (
            f" Here a success counts {forecasts[-1].discount:g} to the power of the ticks until it came, in predicted "
            "and observed figures."
        )
    rows = [
        {
            "episodes of": f"round {forecast.round}",
            "calibration error": f"{forecast.calibration_error:.3f}",
            "Brier score": f"{forecast.brier:.3f}",
            "area under the curve": "-" if forecast.auc is None else f"{forecast.auc:.3f}",
            "mean predicted": percent(forecast.mean_predicted),
            "observed": percent(forecast.mean_observed),
            "steps": f"{forecast.steps:,}",
        }
        for forecast in forecasts
    ]
    return section(
        title, lead(words) + f'<div class="chart-and-table">{charts.reliability_chart(forecasts)}{table(rows)}</div>'
    )


def training(runs: Mapping[str, Run]) -> str:
    """Render training curves over gradient steps: name of a run -> the run."""
    logged = {name: _trained(run) for name, run in runs.items()}
    rounds = [record.get("round") for record in (logged[next(iter(logged))] if len(logged) == 1 else [])]
    records = next(iter(logged.values()))
    boundaries = [_float(records[i - 1]["step"]) for i in range(1, len(rounds)) if rounds[i] != rounds[i - 1]]
    names = sorted({name for records in logged.values() for record in records for name in record} - _NO_CURVE)
    others = [name for name in names if not any(name in curve for _, curve in CURVES)]

    def figure(title: str, curve: Sequence[str]) -> str:
        curves = {}
        for run, name in itertools.product(logged, curve):
            values = np.array([_float(record.get(name)) for record in logged[run]])
            if np.isfinite(values).any():
                label = [run] if len(logged) > 1 else []
                label += [name.replace("_", " ")] if len(curve) > 1 or not label else []
                curves[", ".join(label)] = np.array([_float(record["step"]) for record in logged[run]]), values
        return charts.curve_chart(title, curves, rounds=boundaries) if curves else ""

    shown = "".join(figure(title, curve) for title, curve in CURVES)
    more = "".join(figure(name.replace("_", " "), (name,)) for name in others)
    if not shown and not more:
        return section("Training", missing("No gradient steps have been logged yet."))
    words = (
        "Over gradient steps; a band is the range of adjacent steps. Drag to zoom, double-click to see all of it again."
    )
    words += " A dotted line begins a round of practice." if boundaries else ""
    folded = f'<details><summary>More curves</summary><div class="curves">{more}</div></details>' if more else ""
    return section("Training", lead(words) + f'<div class="curves">{shown}</div>' + folded)


def _trained(run: Run) -> list[dict[str, Any]]:
    return [
        {"samples_per_s": _float(record.get("steps_per_s")) * run.actor_batch(record.get("round", 0)), **record}
        for record in run.records("train")
    ]


def world_models(run: Run) -> str:
    """Render what the world model of each round predicts, and whether practice used it; empty without one."""
    fitted = [record for record in run.records("train") if any(name.startswith("imagined_") for name in record)]
    if not fitted:
        return ""
    rows = []
    for number, record in sorted({int(record["round"]): record for record in fitted}.items()):
        row = {"round": str(number)}
        row |= {head: _figure(record.get(name), ".0%", "not checked") for head, name in _MODEL_SHARES.items()}
        row["accepted"] = "no: nothing was imagined" if record.get("imagined_stopped") else "yes"
        row["imagined gain"] = _figure(record.get("imagined_gain"), "+.3f", "not checked")
        rows.append(row)
    words = (
        "Each round fits a world model anew. The shares are what it leaves unexplained of the change within a chunk. "
        "The out-of-distribution check compares the newest episodes with older ones, which its model has not seen. "
        "A high imagined gain says nothing: it is as high in a wrong world."
    )
    return section("The world model of each round", lead(words) + table(rows))


def collection(run: Run) -> str:
    """Render the outcomes of the practice episodes by round."""
    records = [record for record in run.records("collect") if _float(record.get("episodes")) > 0]
    if not records:
        return section("Practice episodes", missing("No practice episodes have been logged yet."))
    rows, verdicts = [], []
    for record in records:
        counts = ("episodes", "successes", "takeovers", "rescued")
        episodes, successes, takeovers, rescued = (int(_float(record.get(name), 0)) for name in counts)
        alone, lost = successes - rescued, takeovers - rescued
        shares = {"good": alone, "human": rescued, "human tint": lost, "bad": episodes - alone - takeovers}
        row = {
            "": "demonstrations" if record.get("round") == 0 else html.escape(f"round {record.get('round')}"),
            "episodes": _figure(episodes),
            "autonomous successes": _figure(alone),
            "takeovers": _figure(takeovers),
            "of these rescued": _figure(rescued),
            "mean steps": _figure(record.get("mean_length")),
            " ": _bar({style: n / episodes for style, n in shares.items()}),
        }
        rows.append(row)
    for record in run.records("compare"):
        whole, plain = (percent(_float(record.get(name), 0.0)) for name in ("success", "plain_success"))
        acts = "the whole policy acts." if record.get("whole_acts") else "the policy acts without them."
        verdicts.append(
            f"Round {_figure(record.get('round'))}, comparison of {_figure(record.get('episodes'))} more episodes: "
            f"{whole} succeed with critic and residual, {plain} without. By all comparisons so far, {acts}"
        )
    names = {"good": "success alone", "human": "rescued", "human tint": "taken over in vain", "bad": "failure"}
    notes = "".join(f'<p class="note">{words}</p>' for words in (legend(names), *verdicts))
    return section("Practice episodes", table(rows) + notes)


def operators(run: Run) -> str:
    """Render the figures of each operator; empty without names of operators."""
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
    rows = []
    for name in names:
        values = {figure: _float(newest.get(f"{name}/{figure}")) for figure in figures}
        cells = {head: _figure(values[figure], style) for figure, (head, style, _) in figures.items()}
        rows.append({"": html.escape(name)} | cells)
    means = " ".join(meaning for _, _, meaning in figures.values() if meaning)
    words = f"Estimates of the last round's critics for the steps that each person decided. {means}"
    return section("Operators", (lead(words) if means else "") + table(rows))


def machine(run: Run) -> str:
    """Render the machine, the versions, and the time of each stage."""
    body = ""
    if run.stages:
        total_s = sum(wall_s for _, wall_s in run.stages) or 1.0
        rows = [
            {"stage": html.escape(name), "wall clock": duration(s), "": _bar({"policy": s / total_s})}
            for name, s in run.stages
        ]
        body += table(rows)
    facts = {str(name): value for name, value in run.machine.items() if value is not None}
    if facts:
        body += f"<dl>{''.join(map(_fact, facts, facts.values()))}</dl>"
    return section("Machine and time", body or missing("The machine and the wall-clock times are not known yet."))


def config(run: Run) -> str:
    """Render the resolved config, folded."""
    if not run.config_text:
        return section("Configuration", missing("There is no config.yaml in this run folder."))
    return section(
        "Configuration", f"<details><summary>config.yaml</summary><pre>{html.escape(run.config_text)}</pre></details>"
    )


def _figure(value: Any, style: str = ",.0f", unknown: str = UNKNOWN) -> str:
    number = _float(value)
    return unknown if math.isnan(number) else format(number, style)


def _per_task(run: Run) -> str:
    tasks = list(dict.fromkeys(task for policy in run.policies for task in policy.tasks))
    if not tasks:
        return ""
    rows = []
    for policy in run.policies:
        cells = {}
        for task in tasks:
            successes, episodes = policy.tasks.get(task, (0, 0))
            words = f"{percent(successes / max(episodes, 1))} {percent_interval(wilson_interval(successes, episodes))}"
            cells[task] = words if episodes else UNKNOWN
        rows.append({"policy": html.escape(policy.label)} | cells)
    return table(rows)


def _bar(shares: dict[str, float]) -> str:
    """Return a bar of colored shares: style -> share."""
    spans = (f'<span class="fill-{style}" style="width:{100 * share:.2f}%"></span>' for style, share in shares.items())
    return f'<div class="bar">{"".join(spans)}</div>'


def _fact(name: str, value: Any) -> str:
    words = ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)
    return f"<dt>{html.escape(name)}</dt><dd>{html.escape(words)}</dd>"


def _float(value: Any, default: float = math.nan) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else default
