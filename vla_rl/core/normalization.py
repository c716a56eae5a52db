"""Statistics of states and actions, and the scales of their normalization. The statistics are taken once, from
demonstrations, and travel with the checkpoint. Numpy only: a deployment reads them without torch.
"""

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.dimensions import UNDECLARED, Pair
from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.core.validation import check_vector

RELATIVE_CONSTANT_RANGE = 1e-6
INPUT_LIMIT = 10.0
"""Largest normalized input, in scales; further out a trained network sees nothing else."""
LITTLE = 0.05
"""Share of the largest scale below which a dimension moves little."""
_CHANGES = 3.0  # most usual changes of an action in one unit of an offset, see `Statistics.offset_scale`
_RARELY = 5.0  # scales from the mean: a dimension that goes further in the data is at rest most of the time
_OF_LARGEST = 0.02  # least scale of a dimension, as a share of the largest scale that has its unit
_OF_MAGNITUDE = 0.001, 0.01  # its least and, without a declared unit, its largest share of the dimension's magnitude


@dataclass(frozen=True)
class VectorStatistics:
    """Per-dimension statistics of a vector column, each a tuple of D floats, in the column's raw units.

    `with_floor` sets ``floor``, the least scale of each dimension, and ``limit``, the largest size of each normalized
    input in scales.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    q01: tuple[float, ...]
    q99: tuple[float, ...]
    floor: tuple[float, ...] = ()
    limit: tuple[float, ...] = ()

    @classmethod
    def from_array(
        cls,
        column: NDArray[np.floating[Any]],
        name: str,
        present: NDArray[np.bool_] | None = None,
        units: Sequence[str] = (),
    ) -> Self:
        """Return the statistics of a column [N, D] of a name, of the entries that are present, bool [N, D].

        Units are as of `with_floor`.

        Raises:
            UserError: for an empty column, or one with numbers that are not finite.
        """
        if column.ndim != 2 or len(column) == 0:
            raise UserError(
                f"statistics of {name} need an array [N, D] with N > 0, found {list(column.shape)}; record first"
            )
        values = column.astype(np.float64)
        if not np.isfinite(values).all():
            raise UserError(
                f"statistics of {name}: dimension {int(np.argwhere(~np.isfinite(values))[0, 1])} is not always finite"
            )
        if present is None:
            present = np.ones(column.shape, dtype=bool)
        dimensions = [values[present[:, dim], dim] for dim in range(column.shape[1])]
        rows = [(row.mean(), row.std(), row.min(), row.max(), *np.quantile(row, [0.01, 0.99])) for row in dimensions]
        return cls(*(tuple(map(float, row)) for row in np.array(rows).reshape(-1, 6).T)).with_floor(units)

    def with_floor(self, units: Sequence[str] = (), shown: NDArray[np.int64] | None = None) -> Self:
        """Return the statistics with a least scale and an input limit for every dimension.

        Noise of a dimension that hardly moves would otherwise become its unit, and a normal motion a huge input. The
        floor is 2 % of the largest scale with the same unit, and at least 0.1 % of the dimension's magnitude. Without a
        declared unit the others may have a far smaller one (deg beside m): then it is at most 1 % of the magnitude.
        Inputs are limited to 10 scales of a dimension that moves little or rarely, else to 10 of the largest scales.

        A dimension that does not change within an episode, such as a goal, is shown once by each. Few episodes do not
        show its scale. With a declared unit its floor is at least the largest scale with that unit, divided by the
        square root of their number.

        Args:
            units: One unit per dimension (``""``: not declared), or empty.
            shown: How many episodes show a dimension that does not change within them, int64 [D]; 0: it changes in one.
        """
        named = np.array(units or [""] * self.size, dtype=str)
        std = np.where(self.constant, 0.0, self.std)
        largest = np.array([std[named == unit].max() for unit in named])
        magnitude = np.maximum(np.abs(self.low), np.abs(self.high))
        floor = np.maximum(_OF_LARGEST * largest, _OF_MAGNITUDE[0] * magnitude)
        floor = np.where(named == "", np.minimum(floor, _OF_MAGNITUDE[1] * magnitude), floor)
        if shown is not None:
            stays = (shown > 0) & (named != "") & ~self.constant
            floor = np.where(stays, np.maximum(floor, largest / np.sqrt(np.maximum(shown, 1))), floor)
        scale = np.maximum(std, floor)
        away = np.maximum(np.subtract(self.high, self.mean), np.subtract(self.mean, self.low))
        at_rest = (std < floor) | (scale < LITTLE * largest) | (away > _RARELY * scale)
        further = np.divide(largest, scale, out=np.ones_like(scale), where=~at_rest & (scale > 0))
        limit = INPUT_LIMIT * np.maximum(further, 1.0)
        return replace(self, floor=tuple(map(float, floor)), limit=tuple(map(float, limit)))

    @property
    def size(self) -> int:
        return len(self.mean)

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Dimensions that never change, bool [D]."""
        mean, low, high = (np.asarray(row) for row in (self.mean, self.low, self.high))
        return (high - low) <= RELATIVE_CONSTANT_RANGE * np.maximum(1.0, np.abs(mean))

    def check(self) -> None:
        """Raise ValueError for numbers that cannot be those of a column.

        The deviation is 0 only for constants, and at most half of the range.
        """
        columns = asdict(self)
        for name, least in (("floor", 0.0), ("limit", 1.0)):
            row = columns.pop(name)
            check_vector(name, row, self.size, least=least)
        for name, row in columns.items():
            check_vector(name, row, self.size)
        mean, std, low, high, q01, q99 = (np.asarray(row) for row in columns.values())
        room = 1e-4 * np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))  # of statistics in single precision
        in_order = (low - room <= q01) & (q01 <= q99 + room) & (q99 <= high + room) & (std >= 0)
        in_order &= (low - room <= mean) & (mean <= high + room) & (std <= (high - low) / 2 + room)
        in_order &= self.constant | (std > 0)
        if not in_order.all():
            d = int(np.argmin(in_order))
            raise ValueError(f"dimension {d} has mean {mean[d]}, deviation {std[d]}, range {low[d]} to {high[d]}")

    @property
    def scale(self) -> NDArray[np.float64]:
        """Standard deviations, at least the floor, [D]."""
        return np.maximum(self.std, self.floor)

    @property
    def floored(self) -> NDArray[np.bool_]:
        """Dimensions that move, but less than their floor, bool [D]."""
        return ~self.constant & (self.scale > self.std)

    def affine(self, discrete_dims: Sequence[int] = ()) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return offset and scale, float32 [D] each, such that ``normalized = (raw - offset) / scale`` has mean 0 and
        standard deviation 1, or less where a floor holds. Scale 0 marks a constant dimension.

        Discrete dimensions map their range to [-1, 1], so that their two levels lie equally far from zero however
        rarely one of them occurs.
        """
        mean, low, high = (np.asarray(row) for row in (self.mean, self.low, self.high))
        offset, scale = mean.copy(), self.scale
        chosen = list(discrete_dims)
        offset[chosen], scale[chosen] = (low[chosen] + high[chosen]) / 2, (high[chosen] - low[chosen]) / 2
        offset, scale = np.where(self.constant, mean, offset), np.where(self.constant, 0.0, scale)
        return offset.astype(np.float32), scale.astype(np.float32)

    def widened(self, constants: bool) -> Self:
        """Return the statistics with deviations and ranges of at least the floor, for lerobot's processors.

        Args:
            constants: Widen constant dimensions too. Their inputs stay small when they move after all; as outputs they
                would no longer be constant.
        """
        least = np.where(self.constant & (np.array(self.floor) == 0), 1.0, self.floor)
        least = least if constants else np.where(self.constant, 0.0, least)
        rows = {"std": np.maximum(self.std, least)}
        for lower, upper in (("low", "high"), ("q01", "q99")):
            below, above = np.array(getattr(self, lower)), np.array(getattr(self, upper))
            narrow, middle = above - below < 2 * least, (below + above) / 2
            rows |= {lower: np.where(narrow, middle - least, below), upper: np.where(narrow, middle + least, above)}
        return replace(self, **{name: tuple(map(float, row)) for name, row in rows.items()})

    def limits(self) -> NDArray[np.float32]:
        """Largest size of each normalized input, float32 [D]."""
        return np.array(self.limit, dtype=np.float32)


@dataclass(frozen=True)
class Statistics:
    """Statistics of the state and of the action, with the action dimensions that are discrete (grippers).

    ``change`` is the root mean square change of each action dimension while one chunk is executed, raw units; empty:
    not known.
    """

    state: VectorStatistics
    action: VectorStatistics
    discrete_dims: tuple[int, ...] = ()
    change: tuple[float, ...] = ()

    @classmethod
    def from_arrays(
        cls,
        state: NDArray[np.floating[Any]],
        action: NDArray[np.floating[Any]],
        discrete_dims: Sequence[int] = (),
        state_present: NDArray[np.bool_] | None = None,
        action_present: NDArray[np.bool_] | None = None,
        dimensions: Pair = (UNDECLARED, UNDECLARED),
    ) -> Self:
        """Return the statistics of a state [N, S] and an action column [N, A], see `VectorStatistics.from_array`.

        The discrete dimensions are those of the action. ``dimensions``, of state and action, give the units.
        """
        dims = tuple(int(dim) for dim in discrete_dims)
        if any(not 0 <= dim < action.shape[-1] for dim in dims):
            raise UserError(
                f"discrete_dims {list(dims)} do not fit an action of {action.shape[-1]} dimensions, counted from 0"
            )
        return cls(
            VectorStatistics.from_array(state, "state", state_present, dimensions[0].units),
            VectorStatistics.from_array(action, "action", action_present, dimensions[1].units),
            dims,
        )

    def offset_scale(self) -> NDArray[np.float32]:
        """Return what an offset of one unit is in raw units, float32 [A]: 0 in discrete dimensions.

        It is the scale of the action, or three usual changes of the action where that is less. The scale of an absolute
        target of a joint is the whole motion, of which a chunk executes a small part. A target that stays until an
        episode ends has no change, and its scale counts.
        """
        _, scale = self.action.affine(self.discrete_dims)
        scale[list(self.discrete_dims)] = 0
        if not self.change:
            return scale
        most = np.float32(_CHANGES) * np.array(self.change, np.float32)
        return np.where(most > 0, np.minimum(scale, most), scale)

    def widened(self) -> Self:
        """Return the statistics that lerobot's processors normalize by, see `VectorStatistics.widened`."""
        return replace(self, state=self.state.widened(constants=True), action=self.action.widened(constants=False))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON. Floats survive exactly."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """Return the inverse of `to_dict`; CheckpointError if a field is missing or no number, or lengths differ."""
        try:
            state, action = (
                VectorStatistics(**{name: tuple(float(value) for value in row) for name, row in raw[part].items()})
                for part in ("state", "action")
            )
            dims = tuple(int(dim) for dim in raw["discrete_dims"])
            change = tuple(float(value) for value in raw.get("change", ()))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"normalization statistics are damaged ({type(error).__name__}: {error}); take the checkpoint anew"
            ) from error
        size = action.size if change else 0
        of_change = functools.partial(check_vector, "change", change, size, least=0.0)
        for name, check in (("state", state.check), ("action", action.check), ("action", of_change)):
            try:
                check()
            except ValueError as error:
                raise CheckpointError(f"statistics of {name} are damaged: {error}; take the checkpoint anew") from error
        if not {*dims} <= {*range(action.size)}:
            raise CheckpointError(
                f"discrete_dims {list(dims)} do not fit {action.size} actions; take the checkpoint anew"
            )
        return cls(state, action, dims, change)
