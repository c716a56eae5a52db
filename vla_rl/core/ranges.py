"""Ranges of options: one rule, and one sentence that names the option, its value and the range."""

import math
import operator
import re
from typing import Any

from vla_rl.core.errors import ConfigError

_INTERVAL = re.compile(r"([\[(])\s*([^,]+),\s*([^\])]+)([\])])")
_SIDES = {">=": operator.ge, ">": operator.gt}


def check_ranges(section: Any, name: str, **ranges: str) -> None:
    """Refuse an option that is outside its range; NaN is outside every range.

    Args:
        section: Config that has the options as attributes. A list is within a range if each of its numbers is.
        name: Name of the section, for the error; empty for the top level.
        ranges: Option -> ``>= 1``, ``> 0``, or an interval such as ``[0, 1)``.

    Raises:
        ConfigError: With option, value and range.

    Example:
        >>> from types import SimpleNamespace
        >>> check_ranges(SimpleNamespace(learning_rate=-1), "actor", learning_rate="> 0")
        Traceback (most recent call last):
        ...
        vla_rl.core.errors.ConfigError: actor.learning_rate is -1; expected > 0
    """
    for option, expected in ranges.items():
        value = getattr(section, option)
        numbers = value if isinstance(value, tuple | list) else (value,)
        if not numbers or not all(_is_within(number, expected) for number in numbers):
            key = f"{name}.{option}" if name else option
            kind = "a number in " if expected[0] in "[(" else ""
            raise ConfigError(f"{key} is {value}; expected {kind}{expected}")


def _is_within(number: float, expected: str) -> bool:
    if found := _INTERVAL.fullmatch(expected):
        opens, low, high, closes = found.groups()
        above = number >= float(low) if opens == "[" else number > float(low)
        return above and (number <= float(high) if closes == "]" else number < float(high))
    sign, bound = expected.split()
    return math.isfinite(number) and bool(_SIDES[sign](number, float(bound)))
