"""Two ways to the same end that take turns on one machine, seed by seed. A cell has ``NAME_s`` and ``NAME_success`` of
each.
"""

from typing import Any

import numpy as np


def seconds_ratio(cells: list[dict[str, Any]], one: str, other: str) -> float:
    """The time of one over that of the other, mean over cells."""
    return float(np.mean([cell[f"{one}_s"] / cell[f"{other}_s"] for cell in cells]))


def success_points(cells: list[dict[str, Any]], one: str, other: str) -> float:
    """The success of one minus that of the other in points, mean over cells."""
    return 100 * float(np.mean([cell[f"{one}_success"] - cell[f"{other}_success"] for cell in cells]))


def table(cells: list[dict[str, Any]], one: str, other: str, words: tuple[str, str]) -> str:
    """Markdown: one row per seed; ``words`` are what people call the two."""
    rows = [f"| seed | {words[0]} | {words[1]} | seconds |", "|---|---|---|---|"]
    for cell in cells:
        success = f"{cell[f'{one}_success']:.1%} | {cell[f'{other}_success']:.1%}"
        rows.append(f"| {cell['seed']} | {success} | {cell[f'{one}_s']:.0f} -> {cell[f'{other}_s']:.0f} |")
    return "\n".join(rows)
