"""The picture of a run for a README: success per round, and an episode with its values and weights, by matplotlib."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pictures.episode_figures import draw_strip, newest_traces, strip_height
from benchmarks.pictures.plotting import INK, POLICY, SHADES, WEIGHT, axis_labels, new_figure, plain, save_png
from vla_rl.core.errors import UserError
from vla_rl.core.types import Source
from vla_rl.report.run_episodes import Trace, open_store, segments
from vla_rl.report.run_files import Run, headline, read_run
from vla_rl.report.wording import percent

_CONTROL_COLOURS = ("#c2571a", "#7b4fd6", "#12805c", "#b0317a", "#5f6873")
_CONTROL_MARKERS = "Ds^pP"


def save_picture(run_dir: Path, out_png: Path) -> Path:
    """Draw the success of a run, and its most telling trace (a takeover if there is one), 1200 pixels wide, as PNG;
    returns the file.

    Raises:
        UserError: if the run has neither an evaluation nor a trace yet, or the file cannot be written.
    """
    run = read_run(run_dir)
    store = open_store(run_dir / "episodes", [])
    found = newest_traces(run_dir, store)
    trace = found.get("takeover") or found.get("success") or found.get("failure") or found.get("demonstration")
    if not run.evaluations and trace is None:
        raise UserError(f"{run_dir} has neither an evaluation nor a trace to draw yet; let the run get further")
    figure = new_figure(8.0, 3.7)
    figure.suptitle(headline(run), x=0.015, y=0.975, ha="left", fontsize=9.5, fontweight="bold", color=INK)
    shares = [0.36 * bool(run.evaluations), 0.64 * (trace is not None)]
    left_end = shares[0] / sum(shares)
    if run.evaluations:
        _draw_success(figure.add_axes((0.062, 0.13, left_end - 0.075, 0.74)), run)
    if trace is not None:
        _draw_trace(figure, trace, left_end + 0.045, 0.985)
    return save_png(figure, out_png)


def _draw_success(axes: Any, run: Run) -> None:
    policies = run.policies
    rounds, rates = [policy.round for policy in policies], np.array([policy.rate for policy in policies])
    if policies:
        low, high = np.array([policy.interval for policy in policies]).T
        axes.fill_between(rounds, low, high, color=POLICY, alpha=0.14, linewidth=0)
        bars = np.array([rates - low, high - rates])
        axes.errorbar(rounds, rates, bars, color=POLICY, marker="o", linewidth=1.8, elinewidth=1)
        for number, rate, top in zip(rounds, rates, high, strict=True):
            place = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "fontweight": "bold"}
            axes.annotate(percent(rate), (number, max(top, rate + 0.02)), color=POLICY, fontsize=8.5, **place)
    names = list(dict.fromkeys(control.control for control in run.controls))
    for control in run.controls:
        index = names.index(control.control)
        look = {"color": _CONTROL_COLOURS[index % 5], "marker": _CONTROL_MARKERS[index % 5], "markersize": 5}
        low_end, high_end = control.interval
        bar = [[control.rate - low_end], [high_end - control.rate]]
        axes.errorbar(
            [control.round + 0.16 * (index + 1)], [control.rate], bar, elinewidth=1, label=control.control, **look
        )
    if names:
        axes.legend(loc="lower right", fontsize=6.5, frameon=False, handletextpad=0.3)
    last_round = max(evaluation.round for evaluation in run.evaluations)
    axes.set_xlim(-0.35, max(last_round, 1) + 0.35 + 0.12 * len(names))
    axes.set_ylim(0, 1.08)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], [percent(share) for share in (0, 0.25, 0.5, 0.75, 1)])
    axes.set_xticks(range(last_round + 1))
    axis_labels(axes, "rounds of practice")
    plain(axes, "y")


def _draw_trace(figure: Any, trace: Trace, left: float, right: float) -> None:
    """A film strip over panels with one time axis between two shares of the picture's width."""
    length, width, top = len(trace.episode), right - left, 0.87
    height = strip_height(figure, width, trace.episode)
    draw_strip(figure, (left, top - height, width, height), trace.episode)
    top -= height + 0.01
    panels = trace.panels
    height = (top - 0.13) / len(panels)
    for index, (panel, lines) in enumerate(panels):
        axes = figure.add_axes((left, 0.13 + (len(panels) - 1 - index) * height, width, height - 0.055))
        for source, start, end in segments(trace.episode.source):
            axes.axvspan(start, end, color=SHADES[Source(source)], linewidth=0)
        for name, values in lines.items():
            look = {"color": WEIGHT, "linestyle": "--"} if name == "weight" else {"color": POLICY}
            axes.plot(np.arange(length) + 0.5, values, linewidth=1.3, **look)
        axes.set_xlim(0, length)
        axes.set_ylim(panel.low, panel.high)
        axes.set_title(panel.title, fontsize=7, color=INK, loc="left", pad=2.5)
        axes.locator_params(axis="y", nbins=3)
        plain(axes)
        if index < len(panels) - 1:
            axes.set_xticklabels([])
    axis_labels(axes, "step" + " (orange: a person acts)" * (trace.kind == "takeover"))
