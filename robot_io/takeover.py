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


class Clutch:
    """Motion relative to where robot and device were when it engaged, so that no posture of the device makes it jump.

    Args:
        absolute_dims: dimensions that follow the device itself (grippers: the person sees what they squeeze).
        step_dims: dimensions that are steps of a tick (velocities), ``delta_dims`` of the limits. They follow the
            device itself as well: steps have no posture to be relative to.
    """

    def __init__(self, absolute_dims: Sequence[int] = (), step_dims: Sequence[int] = ()) -> None:
        self._steps = list(step_dims)
        self._absolute = [*absolute_dims, *self._steps]
        self._offset: Float32Array | None = None

    def release(self) -> None:
        """The next command engages it anew."""
        self._offset = None

    def hold(self, last: Float32Array) -> Float32Array:
        """Nobody drives: the command that keeps the robot where ``last``, the one that was sent last, has brought it,
        float32 [A]. Targets stay, steps are 0. The next command engages anew.
        """
        self.release()
        still = last.copy()
        still[self._steps] = 0.0
        return still

    def command(self, position: Float32Array, last: Float32Array) -> Float32Array:
        """The robot's command, float32 [A]; see `hold` while the device says NaN.

        Args:
            position: float32 [A], the device's posture.
            last: float32 [A], the command that was sent last: what the robot does, whatever a policy wanted.
        """
        if not np.isfinite(position).all():
            return self.hold(last)
        if self._offset is None:
            self._offset = last - position
            self._offset[self._absolute] = 0.0
        return np.asarray(position + self._offset, np.float32)


class ClutchedTakeover(TakeoverSource):
    """A person takes over by engaging the clutch.

    Args:
        device: what the person holds.
        last_command: the command that was sent last, float32 [A].
        absolute_dims, step_dims: see `Clutch`.
    """

    def __init__(
        self,
        device: LeaderDevice,
        last_command: Callable[[], Float32Array],
        absolute_dims: Sequence[int] = (),
        step_dims: Sequence[int] = (),
    ) -> None:
        self._device = device
        self._last_command = last_command
        self._clutch = Clutch(absolute_dims, step_dims)

    @override
    def reset(self, seed: int) -> None:
        """Let go. A person needs no seed."""
        self._clutch.release()

    @override
    def command(self, tick: int, proposed: Float32Array) -> Float32Array | None:
        """See `vla_rl.core.protocols.TakeoverSource.command`.

        Raises:
            UserError: if the device has another number of dimensions than the robot.
        """
        reading = self._device.read()
        if not reading.engaged:
            self._clutch.release()
            return None
        last = self._last_command()
        if reading.position.shape != last.shape:
            raise UserError(
                f"the leader device gives {list(reading.position.shape)} numbers, "
                f"the robot's action has {list(last.shape)}; map the device to the robot first"
            )
        return self._clutch.command(reading.position, last)


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
