"""The charts of the report, as data for uPlot: it draws them, zooms, and shows the values at the pointer."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vla_rl.report.markup import embedded
from vla_rl.report.run_files import Evaluation, Forecasts, Run

_MAX_POINTS = 400


class Line(NamedTuple):
    """A line of a chart: points [N], x ascending and NaN breaking it, with or without a band.

    The band goes from ``low`` to ``high``. The look is "line", "dashed", or "points" with an interval each.
    """

    label: str
    x: ArrayLike
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    color: int = 0
    look: str = "line"


def chart(title: str, lines: Sequence[Line], axis: str, **options: Any) -> str:
    """Return a figure, with at least one line, that the script of the page fills. The axis is the horizontal one.

    Args:
        options: ``percent`` for rates from 0 to 1, ``logarithmic``, ``square``, ``whole`` for whole numbers on the
            horizontal axis, and ``rounds``, positions of vertical lines.
    """
    plain = [
        {key: value if isinstance(value, str | int) else numbers(value) for key, value in line._asdict().items()}
        for line in lines
    ]
    return f'<figure class="chart">{embedded({"title": title, "axis": axis, "lines": plain, **options})}</figure>'


def success_chart(runs: Mapping[str, Run]) -> str:
    """Return success per round with Wilson's intervals: a line for each run, points for the controls of one."""
    lines = [_evaluated(name, run.policies, color) for color, (name, run) in enumerate(runs.items()) if run.policies]
    if len(runs) == 1:
        controls = [control for run in runs.values() for control in run.controls]
        for number, name in enumerate(dict.fromkeys(str(control.control) for control in controls), 1):
            own = [control for control in controls if str(control.control) == name]
            lines.append(_evaluated(name, sorted(own, key=lambda control: control.round), number, 0.12 * number))
    return chart("", lines, "rounds of practice", percent=True, whole=True)


type _Curve = tuple[NDArray[np.float64], NDArray[np.float64]]


def curve_chart(title: str, curves: Mapping[str, _Curve], **options: Any) -> str:
    """Return curves over gradient steps: the mean and the range of each bucket of adjacent points.

    A curve is (gradient steps [N], values [N]); values may be NaN, but not all. Options as of `chart`.
    """
    lines = [Line(label, *_bucket(*curve), color=color) for color, (label, curve) in enumerate(curves.items())]
    values = np.concatenate([np.asarray(line.y) for line in lines])
    spread = bool(values.min() > 0 and values.max() > 10 * values.min())
    return chart(title, lines, "gradient steps", logarithmic=spread, **options)


def reliability_chart(forecasts: Sequence[Forecasts]) -> str:
    """Return observed over predicted success, a line for each round, and the diagonal of perfect calibration."""
    lines = [Line("perfect", [0.0, 1.0], [0.0, 1.0], color=len(forecasts), look="dashed")]
    for number, forecast in enumerate(reversed(forecasts)):
        order = np.argsort(forecast.predicted)
        predicted, observed = (np.asarray(values)[order] for values in (forecast.predicted, forecast.observed))
        lines.append(Line(f"round {forecast.round}", predicted, observed, color=number))
    return chart("", lines, "predicted chance of success", percent=True, square=True)


def numbers(values: ArrayLike | None) -> list[float | None] | None:
    """Return values as JSON has them, with five digits; None stands for what is not finite."""
    if values is None:
        return None
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in np.ravel(values).tolist()]


def _evaluated(name: str, evaluations: Sequence[Evaluation], color: int, shift: float = 0.0) -> Line:
    low, high = zip(*(each.interval for each in evaluations), strict=True)
    at, rates = [each.round + shift for each in evaluations], [each.rate for each in evaluations]
    return Line(name, at, rates, low, high, color, "points" if shift else "line")


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
