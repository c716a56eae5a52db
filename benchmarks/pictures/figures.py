"""The pictures of docs/method.md, drawn by the code that they explain: credit, gate, critics and weights of a real run.

`save_figures` draws all of them that a run has data for.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.pictures.episode_figures import draw_segments, draw_values, draw_weights, newest_traces
from benchmarks.pictures.plotting import (
    BAD,
    GOOD,
    INK,
    MUTED,
    POLICY,
    WEIGHT,
    axis_labels,
    new_figure,
    plain,
    save_svg,
    title,
)
from vla_rl.advantage import SATURATED_TANH, AdvantageConfig, advantage_gate
from vla_rl.core.types import Origin, Source
from vla_rl.credit import RULES, CreditConfig, assign_batch
from vla_rl.report.run_episodes import open_store
from vla_rl.report.run_files import Forecasts, read_run

_VIABILITIES = (0.1, 0.5, 0.9)
# (what it is called, efficiency_scale): the paper, and steps counted in chunks of six with a unit of 0.15.
_SCALES = (("paper: A$_e$ in raw steps", 1.0), ("efficiency_scale = 0.15", 0.15))
# The columns of a trace that a picture is drawn from.
_NEEDED = {
    "values": {"viability", "efficiency"},
    "weights": {"viability_advantage", "efficiency_advantage", "advantage_gate", "weight"},
}
_SUCCESS_RATE = 0.36  # of the policy whose label bias is drawn, as in the paper's first task


def save_figures(run_dir: Path, out_dir: Path) -> list[Path]:
    """Draw the pictures into a folder as ``method_*.svg`` and return those that were drawn.

    Gate and label bias need no run. Segments need practice episodes, values and weights the traces of an algorithm with
    both critics, reliability a run of two rounds.

    Raises:
        UserError: if the folder holds no run, or a file cannot be written.
    """
    run = read_run(run_dir)
    store = open_store(run_dir / "episodes", [])
    traces = newest_traces(run_dir, store)
    traced = {
        name: [trace for trace in traces.values() if columns <= trace.columns.keys()]
        for name, columns in _NEEDED.items()
    }
    pictures = {
        "gate": draw_gate(),
        "label_bias": draw_label_bias(),
        "segments": draw_segments(store) if store else None,
        "values": draw_values(traced["values"]) if traced["values"] else None,
        "weights": draw_weights(traced["weights"]) if traced["weights"] else None,
        "reliability": draw_reliability(run.forecasts) if run.forecasts else None,
    }
    return [save_svg(figure, out_dir / f"method_{name}.svg") for name, figure in pictures.items() if figure is not None]


def draw_gate() -> Any:
    """The gate over both advantages, for three viabilities and two scales of A_e; dashed where it saturates."""
    figure = new_figure(9.6, 6.1)
    a_v, a_e = np.meshgrid(np.linspace(-3, 3, 241), np.linspace(-10, 10, 241))
    for row, (name, scale) in enumerate(_SCALES):
        config = AdvantageConfig(efficiency_scale=scale)
        for column, p_v in enumerate(_VIABILITIES):
            axes = figure.add_axes((0.075 + 0.285 * column, 0.575 - 0.485 * row, 0.25, 0.355))
            logit = np.full_like(a_v, np.log(p_v / (1 - p_v)))
            gates = advantage_gate(logit, a_v, a_e, config)
            image = axes.imshow(
                gates, origin="lower", extent=(-3, 3, -10, 10), aspect="auto", cmap="RdBu", vmin=0, vmax=2
            )
            lines = axes.contour(a_v, a_e, gates, levels=[0.5, 1.0, 1.5], colors=INK, linewidths=0.7)
            axes.clabel(lines, fmt="%g", fontsize=6.5)
            ends = [1 - SATURATED_TANH, 1 + SATURATED_TANH]
            axes.contour(a_v, a_e, gates, levels=ends, colors="white", linewidths=1.1, linestyles="--")
            axes.set_xticks([-3, -2, -1, 0, 1, 2, 3])
            axes.set_yticks([-10, -5, 0, 5, 10])
            title(axes, f"p$_v$ = {p_v:g}, {name}" if column == 0 else f"p$_v$ = {p_v:g}")
            axis_labels(axes, "A$_v$, logits" if row else "", "" if column else "A$_e$, steps")
            plain(axes)
    bar = figure.colorbar(image, cax=figure.add_axes((0.93, 0.09, 0.014, 0.84)), ticks=[0, 0.5, 1, 1.5, 2])
    bar.ax.tick_params(length=0, labelsize=7.5, colors=MUTED)
    bar.outline.set_visible(False)
    bar.ax.set_title("g", fontsize=9, color=INK)
    return figure


def draw_label_bias() -> Any:
    """Draw the value of the initial state by the labels, over the share of failures that a person rescues."""
    figure = new_figure(6.2, 3.5)
    axes = figure.add_axes((0.1, 0.14, 0.87, 0.76))
    rescued = np.linspace(0, 1, 101)
    biased = _SUCCESS_RATE / (_SUCCESS_RATE + (1 - rescued) * (1 - _SUCCESS_RATE))
    axes.plot(rescued, biased, color=BAD, linewidth=1.2, label="s / (s + (1 \N{MINUS SIGN} f)(1 \N{MINUS SIGN} s))")
    axes.axhline(_SUCCESS_RATE, color=GOOD, linewidth=1.2, label=f"s = {_SUCCESS_RATE:g}, what the policy can do alone")
    shares = np.linspace(0, 0.9, 10)
    for rule, color, marker in zip(RULES, (BAD, GOOD), "os", strict=True):
        found = [_taught_value(rule, float(share)) for share in shares]
        axes.plot(shares, found, marker, color=color, markersize=4.5, label=f"labels of 4,000 episodes, rule {rule}")
    axes.set_ylim(0, 1.02)
    axes.set_xlim(-0.02, 1.0)
    axis_labels(axes, "f, share of the failing episodes that a person rescues", "p$_v$ of the initial state")
    title(axes, "Dropping what came before a rescue makes every start look better than it is")
    axes.legend(fontsize=7, frameon=False, loc="upper left", labelcolor=INK)
    plain(axes, "y")
    return figure


def draw_reliability(forecasts: Sequence[Forecasts]) -> Any:
    """Observed against predicted success per round, before the critic was trained on these episodes."""
    figure = new_figure(4.6, 4.2)
    axes = figure.add_axes((0.13, 0.12, 0.84, 0.79))
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=":")
    for forecast, color in zip(reversed(forecasts), (POLICY, WEIGHT, MUTED), strict=False):
        area = 400 * np.array(forecast.samples) / sum(forecast.samples)
        axes.plot(forecast.predicted, forecast.observed, color=color, linewidth=1.4)
        label = f"round {forecast.round}: calibration error {forecast.calibration_error:.2f}"
        look = {"color": color, "edgecolors": "white", "zorder": 3}
        axes.scatter(forecast.predicted, forecast.observed, 12 + area, label=label, **look)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axis_labels(axes, "predicted chance of success", "observed share of successes")
    title(axes, "The viability critic on episodes before it learnt from them")
    legend = axes.legend(fontsize=7.5, frameon=False, loc="upper left", labelcolor=INK)
    for handle in legend.legend_handles:
        handle.set_sizes([30])
    plain(axes, "both")
    return figure


def _taught_value(rule: str, rescued: float, episodes: int = 4000) -> float:
    """The mean label of the first step of simulated episodes: some succeed, some of the others are rescued."""
    random = np.random.default_rng(0)
    alone = random.random(episodes) < _SUCCESS_RATE
    saved = ~alone & (random.random(episodes) < rescued)
    steps = 12
    source = np.full((episodes, steps), Source.POLICY, np.uint8)
    source[saved, 1:] = Source.HUMAN
    credit = assign_batch(
        source.ravel(),
        np.full(episodes, steps),
        (alone | saved).tolist(),
        [Origin.SIM] * episodes,
        CreditConfig(rule=rule),
    )
    first: NDArray[np.bool_] = credit.viability_mask[::steps]
    return float(credit.viability_label[::steps][first].mean())
