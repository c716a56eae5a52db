"""SVG as text: axes, lines, bands. Colors come from the page's style sheet and follow the theme."""

import html
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Axis:
    """Maps values in [low, high] to pixels; an inverted pixel range draws upwards."""

    low: float
    high: float
    start_px: float
    end_px: float
    logarithmic: bool = False

    def __call__(self, values: ArrayLike) -> NDArray[np.float64]:
        """Return the pixels of values of any shape; values are clipped to the ends, NaN stays NaN."""
        low, high, at = self.low, self.high, np.asarray(values, np.float64)
        if self.logarithmic:
            low, high, at = math.log(low), math.log(high), np.log(np.clip(at, low, None))
        share: NDArray[np.float64] = np.clip((at - low) / (high - low), 0, 1)
        return self.start_px + share * (self.end_px - self.start_px)

    def ticks(self, count: int = 4) -> list[float]:
        """Return about ``count`` round numbers within the range."""
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if len(powers) < 4 else (1, 3) if len(powers) < 6 else (1,)
            values = [round(step * 10.0**power, 12) for power in powers for step in steps]
            return [value for value in values if self.low <= value <= self.high]
        rough = (self.high - self.low) / count
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
        return [
            round(index * step, 12)
            for index in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
        ]


def element(name: str, content: str = "", **attributes: Any) -> str:
    """Return an element. Attribute values are escaped, the content is not; ``text_anchor`` becomes text-anchor."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_plain(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{written}>{content}</{name}>"


def text(x: float, y: float, words: str, **attributes: Any) -> str:
    """Return words at a place in pixels, escaped."""
    return element("text", html.escape(words), x=x, y=y, **attributes)


def tooltip(words: str) -> str:
    """Return the tooltip of the enclosing element, escaped."""
    return element("title", html.escape(words))


def line(x: ArrayLike, y: ArrayLike, **attributes: Any) -> str:
    """Return a line through points in pixels; NaN breaks it."""
    points = list(zip(np.ravel(x).tolist(), np.ravel(y).tolist(), strict=True))
    path, pen_down = [], False
    for index, (px, py) in enumerate(points):
        if not (math.isfinite(px) and math.isfinite(py)):
            pen_down = False
            continue
        alone = not pen_down and (index + 1 == len(points) or not all(map(math.isfinite, points[index + 1])))
        path.append(f"{'L' if pen_down else 'M'}{px:.1f} {py:.1f}" + ("h0" if alone else ""))
        pen_down = True
    return element("path", d="".join(path), **attributes)


def band(x: ArrayLike, low: ArrayLike, high: ArrayLike, **attributes: Any) -> str:
    """Return the area between two lines in pixels; points with NaN are skipped."""
    points = np.stack([np.ravel(x), np.ravel(low), np.ravel(high)], axis=1)
    points = points[np.isfinite(points).all(axis=1)]
    there = [f"{px:.1f} {py:.1f}" for px, py in points[:, [0, 1]]]
    back = [f"{px:.1f} {py:.1f}" for px, py in points[::-1][:, [0, 2]]]
    return element("path", d="M" + "L".join(there + back) + "Z" if len(points) else "", **attributes)


def picture(width: float, height: float, body: str, label: str, class_: str = "") -> str:
    """Return a picture that scales with the page; ``label`` is for screen readers."""
    return element("svg", body, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label, class_=class_)


def grid(x: Axis, y: Axis, x_ticks: list[float], y_ticks: list[float], percent: str = "") -> str:
    """Return horizontal grid lines, and numbers at the left and the bottom; ``percent`` names the axes of rates."""
    parts = []
    for value in y_ticks:
        py = float(y(value))
        parts.append(line([x.start_px, x.end_px], [py, py], class_="grid"))
        words = number(value, "y" in percent)
        parts.append(text(x.start_px - 7, py, words, text_anchor="end", dominant_baseline="central"))
    parts += [
        text(
            float(x(value)),
            y.start_px + 7,
            number(value, "x" in percent),
            text_anchor="middle",
            dominant_baseline="hanging",
        )
        for value in x_ticks
    ]
    return "".join(parts)


def number(value: float, percent: bool = False) -> str:
    """Format a number on an axis: 1500 -> "1.5k", -30 -> "−30"."""
    if percent:
        return f"{100 * value:g} %"
    short = f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k" if abs(value) >= 1e3 else f"{value:g}"
    return short.replace("-", "\N{MINUS SIGN}")


def _plain(value: Any) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
