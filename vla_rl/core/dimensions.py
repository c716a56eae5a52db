"""Names and units of the numbers in a state or an action vector, and the one rule by which two vectors are matched.

Meaning travels by name, never by position: where both sides declare names, the numbers of one are reordered for the
other, or refused. Where one side declares none, the vectors are matched by position, and the caller says so once.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import UserError

_SPELLINGS = {"radian": "rad", "radians": "rad", "degree": "deg", "degrees": "deg", "°": "deg", "meter": "m"}
_SPELLINGS |= {"meters": "m", "millimeter": "mm", "millimeters": "mm", "centimeter": "cm"}
_SPELLINGS |= dict.fromkeys(("metre", "metres"), "m")  # codespell:ignore metre,metres
# Factor to the base unit of each convertible unit, by the base unit.
_SCALES: dict[str, tuple[str, float]] = {
    "rad": ("rad", 1.0),
    "deg": ("rad", np.pi / 180),
    "m": ("m", 1.0),
    "cm": ("m", 1e-2),
    "mm": ("m", 1e-3),
}
_SCALES |= {f"{unit}/s": (f"{base}/s", factor) for unit, (base, factor) in _SCALES.items()}
_LONGEST_NAME = 200  # characters


@dataclass(frozen=True)
class Dimensions:
    """Names and units of the D numbers of a vector.

    Attributes:
        names: One name per number, or empty if the source declares none.
        units: One unit per number (``rad``, ``deg``, ``m``, ``mm``, ``rad/s``, ``normalized`` ...; ``""``: not
            declared), or empty if none is declared.

    Raises:
        UserError: For a repeated or an empty name, or for units that are not as many as the names.

    Example:
        >>> arm = Dimensions(("shoulder", "elbow"), ("rad", "degrees"))
        >>> arm.units
        ('rad', 'deg')
    """

    names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "units", tuple(_SPELLINGS.get(unit, unit) for unit in self.units))
        for name in (*self.names, *self.units):
            if not isinstance(name, str) or len(name) > _LONGEST_NAME:
                raise UserError(f"a dimension or unit is called {str(name)[:80]!r}; expected a text")
        if "" in self.names:
            raise UserError(f"the dimension names {list(self.names)} contain an empty name; name every dimension")
        repeated = [name for name, count in Counter(self.names).items() if count > 1]
        if repeated:
            raise UserError(f"the dimension name {repeated[0]!r} stands twice in {list(self.names)}; name each once")
        if self.units and len(self.units) != len(self.names):
            raise UserError(f"there are {len(self.units)} units for the dimensions {list(self.names)}; give one each")
        if not any(self.units):
            object.__setattr__(self, "units", ())

    def __len__(self) -> int:
        return len(self.names)

    def __add__(self, other: "Dimensions") -> "Dimensions":
        """Return the dimensions of two vectors, one behind the other."""
        units = (*self.unit_of_each(), *other.unit_of_each())
        return Dimensions((*self.names, *other.names), units)

    def unit_of_each(self) -> tuple[str, ...]:
        """Return one unit per name; ``""`` where none is declared."""
        return self.units or ("",) * len(self.names)

    def check_size(self, size: int, what: str) -> Self:
        """Return the dimensions if they are undeclared or as many as the vector has numbers.

        Raises:
            UserError: If they are not; ``what`` names the vector and its source.
        """
        if self.names and len(self.names) != size:
            raise UserError(f"{what} has {size} numbers, but {len(self.names)} names: {list(self.names)}")
        return self

    def take(self, index: Sequence[int]) -> "Dimensions":
        """Return the dimensions at these positions; undeclared ones stay undeclared."""
        if not self.names:
            return self
        units = tuple(self.units[i] for i in index) if self.units else ()
        return Dimensions(tuple(self.names[i] for i in index), units)

    def agrees(self, other: "Dimensions") -> bool:
        """Return whether the names, their order and the declared units are the same, as far as both declare them."""
        units = zip(self.unit_of_each(), other.unit_of_each(), strict=False)
        same = self.names == other.names and all(one == two or not (one and two) for one, two in units)
        return same or not (self and other)

    def words(self) -> str:
        """Return the names with their units, as text: ``shoulder (rad), grip``."""
        pairs = zip(self.names, self.unit_of_each(), strict=True)
        return ", ".join(f"{name} ({unit})" if unit else name for name, unit in pairs)

    def to_plain(self) -> dict[str, Any]:
        """Return the dimensions as JSON data."""
        return {"names": list(self.names), "units": list(self.units)}

    @classmethod
    def from_plain(cls, raw: dict[str, Any]) -> Self:
        """Return the dimensions from JSON data. Raises KeyError, TypeError or UserError for anything else."""
        return cls(tuple(raw["names"]), tuple(raw["units"]))


UNDECLARED = Dimensions()

Pair = tuple[Dimensions, Dimensions]
"""Dimensions of a state and of an action."""


@dataclass(frozen=True, slots=True)
class Match:
    """How a found vector becomes the expected one: ``expected[i] = found[index[i]] * factor[i]``.

    Attributes:
        index: int64 [D], position in the found vector.
        factor: float64 [D], conversion of units.
        by_name: Both sides declare names; False: matched by position.
    """

    index: NDArray[np.int64]
    factor: NDArray[np.float64]
    by_name: bool

    @property
    def changes(self) -> bool:
        """Whether the expected vector differs from the found one."""
        return not (np.array_equal(self.index, np.arange(len(self.index))) and (self.factor == 1).all())

    def apply(self, vectors: NDArray[Any]) -> NDArray[Any]:
        """Return the vectors [..., D] in the expected order and units, with their own dtype."""
        if not self.changes:
            return vectors
        return (vectors[..., self.index] * self.factor).astype(vectors.dtype)

    def inverse(self) -> "Match":
        """Return the match from the expected vector to the found one."""
        back = np.argsort(self.index)
        return Match(back, 1 / self.factor[back], self.by_name)


def match(
    expected: Dimensions,
    found: Dimensions,
    size: int,
    expected_in: str,
    found_in: str,
    what: str,
    remedy: str = "Map the names, or use data of the same robot",
) -> Match:
    """Match a found vector of ``size`` numbers with an expected one, by name where both declare names.

    Args:
        expected, found: What receiver and source declare.
        size: D, numbers in both vectors.
        expected_in, found_in: Names of both, for the error ("the policy runs/a").
        what: ``state`` or ``action``.
        remedy: What to do if a name is missing.

    Raises:
        UserError: If a name is missing on either side, or two declared units differ and cannot be converted. The
            message shows both lists.
    """
    expected.check_size(size, f"the {what} of {expected_in}")
    found.check_size(size, f"the {what} of {found_in}")
    if not (expected and found):
        return Match(np.arange(size), np.ones(size), by_name=False)
    missing = [name for name in expected.names if name not in found.names]
    if missing:
        raise UserError(
            f"{found_in}: the {what} has no dimension {missing[0]!r}. Found: {list(found.names)}. Expected by "
            f"{expected_in}: {list(expected.names)}. {remedy}"
        )
    index = np.array([found.names.index(name) for name in expected.names], dtype=np.int64)
    taken = found.take(index.tolist()).unit_of_each()
    pairs = zip(expected.names, taken, expected.unit_of_each(), strict=True)
    factors = [_factor(unit, wanted, name, what, found_in, expected_in) for name, unit, wanted in pairs]
    return Match(index, np.array(factors, dtype=np.float64), by_name=True)


def match_both(
    expected: Pair, found: Pair, sizes: tuple[int, int], expected_in: str, found_in: str
) -> tuple[Match, Match]:
    """Match the state and the action of a source with those of a receiver, ``sizes`` S and A; see `match`."""
    state, action = (
        match(one, other, size, expected_in, found_in, what)
        for one, other, size, what in zip(expected, found, sizes, ("state", "action"), strict=True)
    )
    return state, action


def _factor(unit: str, wanted: str, name: str, what: str, found_in: str, expected_in: str) -> float:
    """Return the factor from one unit to another; 1 where either is undeclared."""
    if unit == wanted or not unit or not wanted:
        return 1.0
    base, factor = _SCALES.get(unit, (unit, 1.0))
    wanted_base, wanted_factor = _SCALES.get(wanted, (wanted, 1.0))
    if base != wanted_base:
        raise UserError(
            f"{found_in}: the unit of {what} {name!r} is {unit}. Expected by {expected_in}: {wanted}. There is no "
            f"conversion; correct the declared units, or use data or a policy in the other unit"
        )
    return factor / wanted_factor


def missing_dimensions(sizes: Sequence[int], width: int) -> NDArray[np.bool_]:
    """Return the dimensions that each episode does not have, bool [E, width], from its number of dimensions."""
    return np.arange(width) >= np.array(sizes, dtype=np.int64)[:, None]
