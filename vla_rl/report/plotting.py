"""What all pictures drawn with matplotlib share: colours, plain axes, and files that are whole or not there."""

import io
from pathlib import Path
from typing import Any

from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic
from vla_rl.core.types import Source

DPI = 150
INK, MUTED, RULE, POLICY, WEIGHT = "#1b1f24", "#5f6873", "#e3e5e8", "#1764c8", "#c2571a"
GOOD, BAD, HUMAN, DEMO, NOTHING = "#12805c", "#c3381c", "#e08a00", "#7b4fd6", "#eceef0"
# Backgrounds that tell who acted.
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
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, content.getvalue())
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
