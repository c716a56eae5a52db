"""What all pictures drawn with matplotlib share: colors, plain axes, and files that are whole or not there."""

import colorsys
import io
import re
from pathlib import Path
from typing import Any

from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic
from vla_rl.core.types import Source

DPI = 150
INK, MUTED, RULE, POLICY, WEIGHT = "#1b1f24", "#5f6873", "#e3e5e8", "#1764c8", "#c2571a"
GOOD, BAD, HUMAN, DEMO, NOTHING = "#12805c", "#c3381c", "#e08a00", "#7b4fd6", "#eceef0"
# Backgrounds that show the actor.
SHADES = {Source.POLICY: "#eef4fc", Source.HUMAN: "#f9dfb5", Source.DEMO: "#e4dafa", Source.HOLD: "#dddfe2"}


def new_figure(width_in: float, height_in: float) -> Any:
    """An empty white figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: Any, file: Path) -> Path:
    """Write a figure as PNG and return the file.

    Raises:
        UserError: if it cannot be written.
    """
    content = io.BytesIO()
    # No date and no version of the library: the same figure gives the same bytes.
    figure.savefig(content, format="png", metadata={"Software": None})
    return _write(content.getvalue(), file)


def save_svg(figure: Any, file: Path) -> Path:
    """Write a figure as SVG, which is dark where the reader's system is, and return the file.

    Raises:
        UserError: if it cannot be written.
    """
    from matplotlib import rc_context

    content = io.StringIO()
    with rc_context({"svg.hashsalt": "vla-rl", "svg.fonttype": "none"}):  # the same bytes again; words stay words
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return _write(_following_the_system(content.getvalue()).encode(), file)


def _following_the_system(svg: str) -> str:
    """Make every color of an SVG a variable that has its lightness inverted where dark pages are preferred."""
    # What is drawn without a color of its own is black.
    svg = re.sub(r"(<svg\b[^>]*>)", r'\1\n <g style="fill: #000000">', svg, count=1).replace("</svg>", "</g>\n</svg>")
    colors = sorted(set(re.findall(r"(?<=(?:fill|roke): )#[0-9a-f]{6}\b", svg)))
    light = "; ".join(f"--c{color[1:]}: {color}" for color in colors)
    dark = "; ".join(f"--c{color[1:]}: {_inverted(color)}" for color in colors)
    style = f" <style>svg {{ {light} }} @media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}</style>\n <g "
    svg = re.sub(r"(?<=(?:fill|roke): )#([0-9a-f]{6})\b", r"var(--c\1)", svg)
    return svg.replace(" <g ", style, 1)


def _inverted(color: str) -> str:
    """Return the hue on a dark page: paper becomes dark and ink light, and colors between stay readable."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*(int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)))
    rgb = colorsys.hls_to_rgb(hue, 0.66 if 0.3 < lightness < 0.8 else 0.96 - 0.85 * lightness, saturation)
    return "#" + "".join(f"{round(255 * value):02x}" for value in rgb)


def _write(content: bytes, file: Path) -> Path:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, content)
    except OSError as error:
        raise UserError(f"cannot write the picture {file}: {error.strerror}") from error
    return file


def plain(axes: Any, grid: str | None = None) -> None:
    """No frame, no tick marks, small numbers; ``grid``: x, y or both."""
    axes.tick_params(length=0, labelsize=7.5, colors=MUTED)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if grid:
        axes.grid(axis=grid, color=RULE, linewidth=0.7)
        axes.set_axisbelow(True)


def title(axes: Any, words: str) -> None:
    """A title at the left, above the axes."""
    axes.set_title(words, fontsize=8.5, color=INK, loc="left", pad=4)


def axis_labels(axes: Any, x: str = "", y: str = "") -> None:
    """What the axes count, with units."""
    axes.set_xlabel(x, fontsize=8, color=MUTED)
    axes.set_ylabel(y, fontsize=8, color=MUTED)
