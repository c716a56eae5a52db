"""Sources of takeover: a person at a leader device, and intervals laid down in advance.

Implement `vla_rl.core.protocols.TakeoverSource`; `vla_rl.execution.sources.TakeoverSwitch` puts them beside the policy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, override

import numpy as np

from vla_rl.core.errors import UserError
from vla_rl.core.protocols import TakeoverSource
from vla_rl.core.types import Float32Array


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What a leader device says.

    Attributes:
        engaged: the person holds the dead man's switch.
        position: float32 [A], the device's posture in the action's units.
    """

    engaged: bool
    position: Float32Array


class LeaderDevice(Protocol):
    """A leader arm, a space mouse, a controller: anything with a posture and a switch."""

    def read(self) -> DeviceReading:
        """The newest reading, at once."""
        ...


class ClutchedTakeover(TakeoverSource):
    """A person takes over by engaging the clutch. Motion is relative to where the robot was then, so nothing jumps.

    Args:
        device: what the person holds.
        absolute_dims: dimensions that follow the device itself (grippers: the person sees what they squeeze).
    """

    def __init__(self, device: LeaderDevice, absolute_dims: Sequence[int] = ()) -> None:
        self._device = device
        self._absolute = list(absolute_dims)
        self._offset: Float32Array | None = None

    @override
    def reset(self, seed: int) -> None:
        """Let go. A person needs no seed."""
        self._offset = None

    @override
    def command(self, tick: int, proposed: Float32Array) -> Float32Array | None:
        """See `vla_rl.core.protocols.TakeoverSource.command`.

        Raises:
            UserError: if the device has another number of dimensions than the robot.
        """
        reading = self._device.read()
        if not reading.engaged:
            self._offset = None
            return None
        if reading.position.shape != proposed.shape:
            raise UserError(
                f"the leader device gives {list(reading.position.shape)} numbers, "
                f"the robot's action has {list(proposed.shape)}; map the device to the robot first"
            )
        if self._offset is None:
            self._offset = proposed - reading.position
            self._offset[self._absolute] = 0.0
        return np.asarray(reading.position + self._offset, np.float32)


class ScheduledTakeover(TakeoverSource):
    """Takes over in given intervals of ticks: for rehearsals, replays and tests.

    Args:
        intervals: (first tick, tick after the last) of every takeover.
        act: the command, float32 [A], from the tick and the policy's proposal.
    """

    def __init__(self, intervals: Sequence[tuple[int, int]], act: Callable[[int, Float32Array], Float32Array]) -> None:
        self._intervals = intervals
        self._act = act

    @override
    def reset(self, seed: int) -> None:
        """The intervals are the same in every attempt."""

    @override
    def command(self, tick: int, proposed: Float32Array) -> Float32Array | None:
        """See `vla_rl.core.protocols.TakeoverSource.command`."""
        if any(first <= tick < after for first, after in self._intervals):
            return self._act(tick, proposed)
        return None
