"""The keyboard of the terminal as a device that moves things: for demonstrations where there is nothing better."""

import time
from dataclasses import dataclass
from typing import override

import numpy as np

from robot_io.motion import MotionSteps
from vla_rl.core.errors import ConfigError
from vla_rl.core.protocols import TakeoverSource
from vla_rl.core.types import Float32Array

MOVES = {"left": (0, -1), "right": (0, 1), "down": (1, -1), "up": (1, 1), "k": (2, -1), "i": (2, 1)}
"""Key -> (axis, direction)."""
HELP = "arrows: axes 1 and 2; i, k: axis 3; g: gripper; 1, 2, ...: which three dimensions of the action"


@dataclass(frozen=True)
class KeyboardConfig:
    """How keys move things.

    Attributes:
        speed: of a held key, the share of a target's range a second, or of the largest step a tick.
        hold_s: Time for which a key counts as held after its last repeat; terminals report no release.
    """

    speed: float = 0.3
    hold_s: float = 0.12

    def __post_init__(self) -> None:
        if not (self.speed > 0 and self.hold_s > 0):
            raise ConfigError(f"speed is {self.speed} and hold_s is {self.hold_s}; both must be positive")


class Keyboard(TakeoverSource):
    """Commands while a key is held, made of directions by ``steps``; holds still otherwise.

    Threading law: `press` is called by the thread that reads the keys, `command` by the control thread.
    """

    def __init__(self, steps: MotionSteps, config: KeyboardConfig) -> None:
        self._steps, self._config = steps, config
        self._pressed_s: dict[str, float] = {}
        self._toggles = self._toggled = 0
        self._open = True

    def press(self, key: str) -> None:
        """Take a pressed or repeated key: a character, or ``left``, ``right``, ``up``, ``down``."""
        if key in MOVES:
            self._pressed_s[key] = time.monotonic()
        elif key == "g":
            self._toggles += 1
        elif key.isdigit() and 0 < int(key) <= len(self._steps.groups):
            self._steps.group = int(key) - 1

    @override
    def reset(self, seed: int) -> None:
        """Nothing is held. A person needs no seed."""
        self._pressed_s = {}
        self._toggled, self._open = self._toggles, True

    @override
    def command(self, tick: int, proposed: Float32Array) -> Float32Array | None:
        """Return the person's command of this tick, or None; ``proposed`` is the command that holds still."""
        oldest_s = time.monotonic() - self._config.hold_s
        held = [MOVES[key] for key, pressed_s in list(self._pressed_s.items()) if pressed_s > oldest_s]
        direction = np.zeros(3, np.float32)
        for axis, sign in held:
            direction[axis] += sign
        gripper, toggles = 0.0, self._toggles
        if (toggles - self._toggled) % 2:
            self._open = not self._open
            gripper = 1.0 if self._open else -1.0
        self._toggled = toggles
        if not held and not gripper:
            return None
        return self._steps(proposed, direction, gripper)
