"""Checks of values from outside: names, versions, vectors, chunks, and the ranges of options."""

import math
import operator
import re
from collections.abc import Sequence
from typing import Any

from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.types import ActionChunk

LARGEST_NUMBER = 1e9  # of a statistic or a scale, in any unit
_INTERVAL = re.compile(r"([\[(])\s*([^,]+),\s*([^\])]+)([\])])")
_SIDES = {">=": operator.ge, ">": operator.gt}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", re.ASCII)


def plain_name(name: Any) -> str:
    """Return a name from a file that may be joined to a folder. Raises ValueError for one that could lead elsewhere."""
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
        raise ValueError(f"{str(name)[:120]!r} is not the name of a file beside it")
    return name


def check_version(version: Any) -> int:
    """Return a policy's version. Raises ValueError unless it is an integer of at least -1 for a folder's name."""
    if type(version) is not int or not -1 <= version < 10**9:
        raise ValueError(f"the policy version is {str(version)[:80]!r}; expected an integer of at least -1")
    return version


def check_vector(
    name: str, values: Sequence[float], size: int, least: float = -LARGEST_NUMBER, most: float = LARGEST_NUMBER
) -> None:
    """Raise ValueError unless values are ``size`` finite numbers from ``least`` to ``most``."""
    if len(values) != size:
        raise ValueError(f"{name} has {len(values)} numbers, expected {size}")
    for value in values:
        if not least <= value <= most:  # nor is NaN
            raise ValueError(f"{name} holds {value}, expected are numbers from {least:g} to {most:g}")


def check_chunk(answer: Any, action_size: int) -> ActionChunk:
    """Return a policy's answer if it is a chunk of shape [H >= 1, A]; UserError for anything else."""
    if not isinstance(answer, ActionChunk):
        raise UserError(
            f"the policy answered with a {type(answer).__name__}; expected an ActionChunk. Return "
            "ActionChunk(actions, observation.tick, 0, self.version)"
        )
    shape = answer.actions.shape
    if len(shape) != 2 or shape[0] == 0 or shape[1] != action_size:
        raise UserError(
            f"the policy answered with actions of shape {list(shape)}; this robot takes [H >= 1, {action_size}]"
        )
    return answer


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
