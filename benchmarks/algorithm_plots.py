"""The picture of the comparison of algorithms: learning curves, final success, and how long a success takes.

Drawn from the cells that there are; a task, algorithm or seed that has not been run is not there.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.pictures.plotting import POLICY, axis_labels, new_figure, plain, save_svg, title
from vla_rl.report.statistics import wilson_interval
from vla_rl.report.wording import count, percent

Cell = Mapping[str, Any]
_OURS = {"habc": POLICY, "habc_paper": "#6aa5ee"}
_RIVALS = ("#c2571a", "#12805c", "#7b4fd6", "#b0317a", "#a58600", "#0e8a9e", "#5f6873", "#8d5a3b")
_ROW_IN, _LINE_IN = 0.95, 0.27  # height of a task's panels: what titles and axes need, and what each algorithm adds


def save_algorithm_plot(cells: Sequence[Cell], file: Path) -> Path:
    """Draw one row per task and return the file.

    Args:
        cells: at least one, as in docs/results/algorithms/: task, seed, algorithm, successes, episodes,
            length_given_success, sft_length_given_success, and rounds, each with round, successes and episodes.
        file: an SVG.

    Raises:
        UserError: if the file cannot be written.
    """
    tasks = [task for task, _ in Counter(cell["task"] for cell in cells).most_common()]  # the best measured at the top
    names = sorted({cell["algorithm"] for cell in cells}, key=lambda name: (name not in _OURS, name))
    rivals = [name for name in names if name not in _OURS]
    colors = _OURS | {name: _RIVALS[index % len(_RIVALS)] for index, name in enumerate(rivals)}
    lines = [len({cell["algorithm"] for cell in cells if cell["task"] == task}) for task in tasks]
    heights = [_ROW_IN + _LINE_IN * max(number, 5) for number in lines]
    figure = new_figure(10.6, sum(heights))
    top = 1.0
    for task, height_in in zip(tasks, heights, strict=True):
        share, inch = height_in / sum(heights), 1 / sum(heights)
        bottom, height = top - share + 0.5 * inch, share - 0.87 * inch
        groups = _by_algorithm([cell for cell in cells if cell["task"] == task])
        curves = figure.add_axes((0.05, bottom, 0.3, height))
        _draw_curves(curves, groups, colors)
        title(curves, f"{task}: success")
        final = figure.add_axes((0.52, bottom, 0.22, height))
        _draw_final(final, groups, colors)
        title(final, "after the last round, 95 %")
        length = figure.add_axes((0.775, bottom, 0.21, height))
        _draw_lengths(length, groups, colors)
        title(length, "steps to success")
        top -= share
    return save_svg(figure, file)


def _by_algorithm(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells of each algorithm, the most successful first."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell["algorithm"], []).append(cell)
    return dict(sorted(groups.items(), key=lambda item: -_pooled(item[1])[0] / max(_pooled(item[1])[1], 1)))


def _pooled(cells: Sequence[Cell]) -> tuple[int, int]:
    """(successes, episodes) over seeds."""
    return sum(cell["successes"] for cell in cells), sum(cell["episodes"] for cell in cells)


def pooled_curve(cells: Sequence[Cell]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(rounds, success over the seeds that evaluated the round); empty for cells without curves."""
    rounds = sorted({entry["round"] for cell in cells for entry in cell.get("rounds", [])})
    rates = []
    for number in rounds:
        successes, episodes = _pooled([e for cell in cells for e in cell.get("rounds", []) if e["round"] == number])
        rates.append(successes / max(episodes, 1))
    return np.array(rounds, dtype=np.int64), np.array(rates)


def _draw_curves(axes: Any, groups: Mapping[str, Sequence[Cell]], colors: Mapping[str, str]) -> None:
    for name, cells in reversed(list(groups.items())):  # the best on top
        rounds, rates = pooled_curve(cells)
        ours = name in _OURS
        look = {"linewidth": 2.4 if ours else 1.3, "marker": "o", "markersize": 4.5 if ours else 3}
        axes.plot(rounds, rates, color=colors[name], **look)
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], [percent(share) for share in (0, 0.25, 0.5, 0.75, 1)])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axis_labels(axes, "rounds of practice, equal episodes and gradient steps")
    plain(axes, "y")


def _draw_final(axes: Any, groups: Mapping[str, Sequence[Cell]], colors: Mapping[str, str]) -> None:
    for row, (name, cells) in enumerate(groups.items()):
        successes, episodes = _pooled(cells)
        low, high = wilson_interval(successes, episodes)
        axes.plot([low, high], [row, row], color=colors[name], linewidth=2)
        axes.plot([successes / episodes], [row], "o", color=colors[name], markersize=6)
        words = {"color": colors[name], "fontweight": "bold" if name in _OURS else "normal"}
        place = {"xycoords": ("axes fraction", "data"), "va": "center", "ha": "right", "fontsize": 8}
        axes.annotate(f"{name}, {count(len(cells), 'seed')}", (-0.04, row), **words, **place)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_yticks([])
    axes.xaxis.set_major_formatter(lambda rate, _: percent(rate))
    axes.locator_params(axis="x", nbins=4)
    axis_labels(axes, "success")
    plain(axes, "x")


def _draw_lengths(axes: Any, groups: Mapping[str, Sequence[Cell]], colors: Mapping[str, str]) -> None:
    """How long a success takes: from the supervised policy (hollow) to the last one (full), means over seeds."""
    for row, (name, cells) in enumerate(groups.items()):
        pairs = [(cell["sft_length_given_success"], cell["length_given_success"]) for cell in cells]
        known = np.array([pair for pair in pairs if None not in pair], dtype=np.float64)
        if not len(known):
            continue
        first, last = known.mean(axis=0)
        axes.plot([first, last], [row, row], color=colors[name], linewidth=1.5)
        axes.plot([first], [row], "o", color=colors[name], markersize=5, markerfacecolor="white")
        axes.plot([last], [row], "o", color=colors[name], markersize=6)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_yticks([])
    axes.locator_params(axis="x", nbins=4)
    axis_labels(axes, "hollow: supervised, full: last policy")
    plain(axes, "x")
    axes.margins(x=0.12)
