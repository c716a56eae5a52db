"""Statistics of states and actions, and the scales of their normalisation. The statistics are taken once, from
demonstrations, and travel with the checkpoint. Numpy only: a deployment reads them without torch.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.core.outside import check_vector

RELATIVE_CONSTANT_RANGE = 1e-6


@dataclass(frozen=True)
class VectorStatistics:
    """Per-dimension statistics of a vector column, each a tuple of D floats, in the column's raw units."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    q01: tuple[float, ...]
    q99: tuple[float, ...]

    @classmethod
    def from_array(cls, column: NDArray[np.floating[Any]], name: str, present: NDArray[np.bool_] | None = None) -> Self:
        """Statistics of a column [N, D], over the entries that are present, bool [N, D] (default: all).

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
        return cls(*(tuple(map(float, row)) for row in np.array(rows).reshape(-1, 6).T))

    @property
    def size(self) -> int:
        return len(self.mean)

    def check(self) -> None:
        """Raise ValueError for numbers that cannot be those of a column: the deviation above all is 0 for constants
        alone, and at most half of the range.
        """
        for name, row in asdict(self).items():
            check_vector(name, row, self.size)
        mean, std, low, high, q01, q99 = (np.asarray(row) for row in asdict(self).values())
        constant = high - low <= RELATIVE_CONSTANT_RANGE * np.maximum(1.0, np.abs(mean))
        room = 1e-4 * np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))  # of statistics in single precision
        in_order = (low - room <= q01) & (q01 <= q99 + room) & (q99 <= high + room) & (std >= 0)
        in_order &= (low - room <= mean) & (mean <= high + room) & (std <= (high - low) / 2 + room)
        in_order &= constant | (std > 0)
        if not in_order.all():
            d = int(np.argmin(in_order))
            raise ValueError(f"dimension {d} has mean {mean[d]}, deviation {std[d]}, range {low[d]} to {high[d]}")

    def affine(self, discrete_dims: Sequence[int] = ()) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Offset and scale, float32 [D] each, such that ``normalised = (raw - offset) / scale`` has a mean of 0 and a
        standard deviation of 1; scale 0 marks a constant dimension.

        Discrete dimensions map their range to [-1, 1], so that their two levels lie equally far from zero however
        rarely one of them occurs.
        """
        mean, low, high = (np.asarray(row) for row in (self.mean, self.low, self.high))
        offset, scale = mean.copy(), np.array(self.std)
        chosen = list(discrete_dims)
        offset[chosen], scale[chosen] = (low[chosen] + high[chosen]) / 2, (high[chosen] - low[chosen]) / 2
        constant = (high - low) <= RELATIVE_CONSTANT_RANGE * np.maximum(1.0, np.abs(mean))
        offset, scale = np.where(constant, mean, offset), np.where(constant, 0.0, scale)
        return offset.astype(np.float32), scale.astype(np.float32)


@dataclass(frozen=True)
class Statistics:
    """Statistics of the state and of the action, with the action dimensions that are discrete (grippers)."""

    state: VectorStatistics
    action: VectorStatistics
    discrete_dims: tuple[int, ...] = ()

    @classmethod
    def from_arrays(
        cls,
        state: NDArray[np.floating[Any]],
        action: NDArray[np.floating[Any]],
        discrete_dims: Sequence[int] = (),
        state_present: NDArray[np.bool_] | None = None,
        action_present: NDArray[np.bool_] | None = None,
    ) -> Self:
        """Statistics of state [N, S] and action [N, A], raw units; of robots with fewer dimensions only the present
        entries count, bool of the same shapes.

        Raises:
            UserError: for empty or non-finite columns, or a discrete dimension that does not exist.
        """
        dims = tuple(int(dim) for dim in discrete_dims)
        if any(not 0 <= dim < action.shape[-1] for dim in dims):
            raise UserError(
                f"discrete_dims {list(dims)} do not fit an action of {action.shape[-1]} dimensions, counted from 0"
            )
        return cls(
            VectorStatistics.from_array(state, "state", state_present),
            VectorStatistics.from_array(action, "action", action_present),
            dims,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON. Floats survive exactly."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """The inverse of `to_dict`.

        Raises:
            CheckpointError: if a field is missing, is no number, or the lengths differ.
        """
        try:
            state, action = (
                VectorStatistics(**{name: tuple(float(value) for value in row) for name, row in raw[part].items()})
                for part in ("state", "action")
            )
            dims = tuple(int(dim) for dim in raw["discrete_dims"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"normalisation statistics are damaged ({type(error).__name__}: {error}); take the checkpoint anew"
            ) from error
        for name, vector in (("state", state), ("action", action)):
            try:
                vector.check()
            except ValueError as error:
                raise CheckpointError(f"statistics of {name} are damaged: {error}; take the checkpoint anew") from error
        if not {*dims} <= {*range(action.size)}:
            raise CheckpointError(
                f"discrete_dims {list(dims)} do not fit {action.size} actions; take the checkpoint anew"
            )
        return cls(state, action, dims)
