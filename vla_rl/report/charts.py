"""The charts of the report, as SVG text: success per round, training curves, an episode over its values and weights."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.types import Source
from vla_rl.report import svg
from vla_rl.report.media import film_strip, image_uri
from vla_rl.report.run_episodes import Trace, segments
from vla_rl.report.run_files import Evaluation, Forecasts
from vla_rl.report.svg import Axis
from vla_rl.report.wording import count, percent

# Diamond, square, triangle, pentagon, cross: one for each control, then again from the start.
_OUTLINES = (
    "0,-8 8,0 0,8 -8,0",
    "-6,-6 6,-6 6,6 -6,6",
    "0,-8 7.5,6 -7.5,6",
    "0,-8 7.6,-2.5 4.7,6.5 -4.7,6.5 -7.6,-2.5",
    "-2.5,-7 2.5,-7 2.5,-2.5 7,-2.5 7,2.5 2.5,2.5 2.5,7 -2.5,7 -2.5,2.5 -7,2.5 -7,-2.5 -2.5,-2.5",
)
_MAX_POINTS = 160
_STRIP_FRAMES = 10


def mark(index: int | None, x: float = 0, y: float = 0) -> str:
    """Draw the mark of the run's own policies (None) or of a control, at a place in pixels."""
    if index is None:
        return svg.element("circle", cx=x, cy=y, r=6.5, class_="mark policy")
    look, place = index % len(_OUTLINES), f"translate({x:.1f} {y:.1f})"
    return svg.element("polygon", points=_OUTLINES[look], transform=place, class_=f"mark control-{look}")


def success_chart(policies: Sequence[Evaluation], controls: Sequence[Evaluation], control_names: Sequence[str]) -> str:
    """Draw the success rate per round with Wilson intervals: a line for the run's own policies, marks for controls."""
    width, height = 640, 336
    last_round = max(evaluation.round for evaluation in [*policies, *controls])
    x = Axis(-0.35, max(last_round, 1) + 0.35 + 0.12 * len(control_names), 74, width - 12)
    y = Axis(0, 1, height - 50, 34)
    rounds = [float(number) for number in range(0, last_round + 1, 1 + last_round // 12)]
    parts = [svg.grid(x, y, rounds, [0, 0.25, 0.5, 0.75, 1], percent="y")]
    parts.append(svg.text((x.start_px + x.end_px) / 2, height - 6, "rounds of practice", text_anchor="middle"))
    at = x([policy.round for policy in policies])
    parts.append(
        svg.band(at, y([p.interval[0] for p in policies]), y([p.interval[1] for p in policies]), class_="band")
    )
    parts.append(svg.line(at, y([policy.rate for policy in policies]), class_="line policy"))
    for control in controls:
        index = control_names.index(str(control.control))
        parts.append(_interval_mark(control, float(x(control.round + 0.16 * (index + 1))), y, index))
    for policy in policies:
        px = float(x(policy.round))
        parts.append(_interval_mark(policy, px, y, None))
        label_py = min(float(y(policy.interval[1])) - 8, float(y(policy.rate)) - 13)
        parts.append(svg.text(px, label_py, percent(policy.rate), text_anchor="middle", class_="value"))
    return svg.picture(width, height, "".join(parts), "Success rate after each round of practice", class_="wide")


def curve_chart(
    series: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]], boundaries: Sequence[float], label: str
) -> str:
    """Draw curves over gradient steps: the mean and the range of each bucket of points.

    Args:
        series: Style class -> (gradient steps [N], values [N]); values may be NaN.
        boundaries: Gradient steps at which a round began, as faint vertical lines.
        label: Words for screen readers.
    """
    width, height = 340, 178
    bucketed = {name: _bucket(steps, values) for name, (steps, values) in series.items()}
    means = np.concatenate([bucket[1] for bucket in bucketed.values()])
    steps = np.concatenate([bucket[0] for bucket in bucketed.values()])
    x = Axis(0, max(float(steps.max()), 1), 48, width - 16)
    y = _value_axis(means, height - 26, 10, logarithmic=len(series) == 1)
    parts = [svg.grid(x, y, x.ticks(4), y.ticks(4))]
    parts += [svg.line(x([step, step]), [y.start_px, y.end_px], class_="boundary") for step in boundaries]
    for name, (at, mean, low, high) in bucketed.items():
        parts.append(svg.band(x(at), y(low), y(high), class_=f"band {name}"))
        parts.append(svg.line(x(at), y(mean), class_=f"line {name}"))
    return svg.picture(width, height, "".join(parts), label)


def trace_chart(trace: Trace) -> str:
    """Draw frames of an episode above its values and weights; the background shows who acted."""
    width, left, right, panel, gap = 900, 48, 16, 92, 28
    length = len(trace.episode)
    x = Axis(0, length, left, width - right)
    strip, strip_height = _strip(trace, x)
    parts, top = [strip], strip_height + gap
    for shown, lines in trace.panels:
        y = _value_axis(np.concatenate([*lines.values(), [0]]), top + panel, top, shown.low, shown.high)
        parts += [_segment(source, start, end, x, y) for source, start, end in segments(trace.episode.source)]
        parts.append(svg.grid(x, y, [], y.ticks(3)))
        parts += [
            svg.line(x(np.arange(length) + 0.5), y(values), class_=f"line {name}") for name, values in lines.items()
        ]
        parts.append(svg.text(x.start_px, y.end_px - 7, shown.title, class_="panel"))
        top += panel + gap
    top -= gap
    ticks = svg.grid(x, Axis(0, 1, top, top), x.ticks(8), [])
    words = svg.text(x.start_px - 7, top + 7, "step", text_anchor="end", dominant_baseline="hanging")
    ends = {"x1": left, "x2": left, "y1": 0, "y2": top, "data_from": left, "data_to": width - right}
    cursor = svg.element("line", "", **ends, class_="cursor")
    label = f"Values and weights along a {trace.kind}"
    return svg.picture(width, top + 24, "".join([*parts, ticks, words, cursor]), label, class_="trace")


def reliability_chart(forecasts: Sequence[Forecasts]) -> str:
    """Draw observed against predicted success, bin by bin: one line per round. The diagonal is perfect calibration; the
    area of a mark is its share of the steps.
    """
    width, height = 420, 372
    x, y = Axis(0, 1, 66, width - 26), Axis(0, 1, height - 54, 12)
    quarters = [0, 0.25, 0.5, 0.75, 1]
    parts = [svg.grid(x, y, quarters, quarters, percent="xy")]
    parts.append(svg.text((x.start_px + x.end_px) / 2, height - 8, "predicted chance of success", text_anchor="middle"))
    sideways = f"rotate(-90 16 {(y.start_px + y.end_px) / 2:.1f})"
    parts.append(
        svg.text(16, (y.start_px + y.end_px) / 2, "observed successes", text_anchor="middle", transform=sideways)
    )
    parts.append(svg.line(x([0, 1]), y([0, 1]), class_="boundary"))
    for forecast in forecasts:
        style = "newest" if forecast is forecasts[-1] else "older"
        parts.append(svg.line(x(forecast.predicted), y(forecast.observed), class_=f"line {style}"))
        for predicted, observed, samples in zip(forecast.predicted, forecast.observed, forecast.samples, strict=True):
            words = f"round {forecast.round}: predicted {percent(predicted)}, observed {percent(observed)}, "
            radius = 2.5 + 12 * math.sqrt(samples / sum(forecast.samples))
            place = {"cx": float(x(predicted)), "cy": float(y(observed)), "r": radius}
            title = svg.tooltip(words + count(samples, "step"))
            parts.append(svg.element("circle", title, **place, class_=f"bin {style}"))
    return svg.picture(width, height, "".join(parts), "Reliability of the viability critic", class_="square")


def _strip(trace: Trace, x: Axis) -> tuple[str, float]:
    """Draw the film strip of the first camera over the time axis; return it and its height in pixels."""
    images = next(iter(trace.episode.images.values()), None)
    if images is None:
        return "", 0.0
    width, cell_px = x.end_px - x.start_px, (x.end_px - x.start_px) / _STRIP_FRAMES
    height = cell_px * images.shape[1] / images.shape[2]
    uri = image_uri(film_strip(images, _STRIP_FRAMES, scale=2 * cell_px / images.shape[2]))
    attributes = {"x": x.start_px, "y": 0, "width": width, "height": height, "href": uri, "preserveAspectRatio": "none"}
    cuts = [x.start_px + index * cell_px for index in range(1, _STRIP_FRAMES)]
    lines = [svg.line([cut, cut], [0, height], class_="cut") for cut in cuts]
    return svg.element("image", "", **attributes) + "".join(lines), height


def _interval_mark(evaluation: Evaluation, px: float, y: Axis, index: int | None) -> str:
    name, counts = evaluation.control or evaluation.label, f"{evaluation.successes} of {evaluation.episodes}"
    words = f"{name}: {evaluation.words}, {counts}"
    whisker = svg.line([px, px], y(evaluation.interval), class_="whisker")
    return svg.element("g", svg.tooltip(words) + whisker + mark(index, px, float(y(evaluation.rate))))


def _bucket(
    steps: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return (steps, mean, lowest, highest) of at most `_MAX_POINTS` buckets of adjacent points; NaN is ignored."""
    finite = np.isfinite(values)
    steps, values = steps[finite], values[finite]
    edges = np.unique(np.linspace(0, len(values), min(len(values), _MAX_POINTS) + 1).astype(int))[:-1]
    sizes = np.diff([*edges, len(values)])
    mean_step, mean = np.add.reduceat(steps, edges) / sizes, np.add.reduceat(values, edges) / sizes
    return mean_step, mean, np.minimum.reduceat(values, edges), np.maximum.reduceat(values, edges)


def _value_axis(
    values: NDArray[np.float64],
    start_px: float,
    end_px: float,
    low: float | None = None,
    high: float | None = None,
    logarithmic: bool = False,
) -> Axis:
    """Return a vertical axis: logarithmic, if allowed, for more than a decade; else from 0 unless some are negative.

    Args:
        values: At least one is not NaN.
        start_px, end_px: Pixels of both ends.
        low, high: Given ends; None: those of the values with a margin.
        logarithmic: Whether it may be logarithmic.
    """
    lowest, highest = float(np.nanmin(values)), float(np.nanmax(values))
    if logarithmic and lowest > 0 and highest > 10 * lowest:
        return Axis(lowest / 1.2, highest * 1.2, start_px, end_px, logarithmic=True)
    margin = 0.08 * (highest - lowest) or 0.1 * abs(highest) or 1.0
    if low is None:
        low = 0.0 if lowest >= 0 and high != 0 else lowest - margin
    return Axis(low, highest + margin if high is None else high, start_px, end_px)


def _segment(source: int, start: int, end: int, x: Axis, y: Axis) -> str:
    name = Source(source).name.lower()
    left, right = x([start, end]).tolist()
    title = svg.tooltip(f"{name}: {count(end - start, 'step')} from step {start}")
    return svg.element(
        "rect", title, x=left, y=y.end_px, width=right - left, height=y.start_px - y.end_px, class_=f"by-{name}"
    )
