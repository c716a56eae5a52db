"""Motions of a device in space as commands of any environment, three dimensions of the action at a time."""

from robot_io.env_interface import ActionInterface
from vla_rl.core.types import Float32Array

_AXES = 3


class MotionSteps:
    """Turns a direction into a command. For a device that gives motions, such as a SpaceMouse.

    A group is up to three dimensions in a row that are no grippers, and the gripper behind them. This is an arm if the
    action lists x, y, z and the gripper of each. At full deflection ``speed`` is the share of a target's range a
    second, or of the largest step a tick.

    Attributes:
        groups: (moved dimensions, gripper or None) of every group.
        group: The one that is moved.
    """

    def __init__(self, actions: ActionInterface, control_hz: float, speed: float) -> None:
        self._actions = actions
        self._per_tick = (actions.high - actions.low) * speed / control_hz
        self._largest = speed * actions.high, speed * actions.low
        self.groups = _groups(actions)
        self.group = 0

    def __call__(self, last: Float32Array, direction: Float32Array, gripper: float) -> Float32Array:
        """Return the command after the last one, float32 [A] both, for a direction [3], each from -1 to 1.

        A negative gripper closes (the lowest action), a positive one opens (the highest), 0 keeps it.
        """
        actions, command = self._actions, last.copy()
        moved, grips = self.groups[self.group]
        for dim, amount in zip(moved, direction.tolist(), strict=False):
            if actions.kind[dim] == "delta":
                up, down = self._largest
                command[dim] = amount * up[dim] if amount > 0 else -amount * down[dim]
            else:
                command[dim] += amount * self._per_tick[dim]
        if grips is not None and gripper:
            command[grips] = actions.high[grips] if gripper > 0 else actions.low[grips]
        return command.clip(actions.low, actions.high)


def _groups(actions: ActionInterface) -> list[tuple[tuple[int, ...], int | None]]:
    groups: list[tuple[tuple[int, ...], int | None]] = []
    moved: tuple[int, ...] = ()
    for dim in range(actions.size):
        if dim in actions.gripper_dims:
            groups.append((moved, dim))
            moved = ()
        elif len(moved) == _AXES:
            groups.append((moved, None))
            moved = (dim,)
        else:
            moved = (*moved, dim)
    return [*groups, (moved, None)] if moved else groups
