"""What `vla-rl play` drives: an environment, and a world model that imagines the same actions beside it.

Threading law: one thread owns the environments and calls `PlaySession.run`; all others touch only the controls and the
newest picture, under their lock.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_io.env_robot import EnvRobot
from vla_rl.report.images import resize

MOVES = {
    "ArrowLeft": (0, -1.0),
    "ArrowRight": (0, 1.0),
    "ArrowDown": (1, -1.0),
    "ArrowUp": (1, 1.0),
    "s": (2, -1.0),
    "w": (2, 1.0),
}
"""Key -> (axis, direction) of the chosen arm."""


@dataclass(frozen=True)
class PlayConfig:
    """How it feels.

    Attributes:
        speed: of a held key, in the action's units a second.
        drag: of the mouse, in the action's units a picture width.
        scale: size of the pictures on the page over that of the cameras.
    """

    speed: float = 0.25
    drag: float = 0.35
    scale: float = 4.0


class Controls:
    """The keys that are held and what the mouse has dragged since the last tick."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._pressed: list[str] = []
        self._drag = np.zeros(2)

    def update(self, keys: Sequence[str], pressed: Sequence[str], drag: Sequence[float]) -> None:
        """What the page reports: keys that are down now, keys that went down since, and dragged picture widths."""
        with self._lock:
            self._held = set(keys)
            self._pressed += pressed
            self._drag += np.asarray(drag, float)[:2]

    def take(self) -> tuple[set[str], list[str], NDArray[np.float64]]:
        """Held keys, and what happened since the last call."""
        with self._lock:
            taken = set(self._held), self._pressed, self._drag
            self._pressed, self._drag = [], np.zeros(2)
            return taken


class PlaySession:
    """Runs the environments tick by tick.

    Args:
        real: any task.
        imagined: a `world_model.imagined_env.ImaginedEnv`; None: there is no world model.
        config: see `PlayConfig`.
    """

    def __init__(self, real: EnvRobot, imagined: Any | None, config: PlayConfig) -> None:
        self.controls = Controls()
        self._real, self._imagined, self._config = real, imagined, config
        self._actions, self._rate = real.actions, real.control_hz
        self._grippers = list(real.actions.gripper_dims)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._picture: NDArray[np.uint8] = np.zeros((1, 1, 3), np.uint8)
        self._status: dict[str, Any] = {}
        self._seed = 0
        self.reset()

    @property
    def arms(self) -> int:
        """How many arms there are to choose from."""
        return max(len(self._grippers), 1)

    def reset(self) -> None:
        """The next episode; imagination begins at the same picture."""
        self._real.reset(self._seed)
        self._seed += 1
        self._action = self._real.rest_command()
        observation = self._observed()
        self._tick, self._arm, self._ended = 0, 0, False
        self._success = {"real": False, "imagined": False}
        seen = None if self._imagined is None else self._imagined.begin_at(observation, self._seed)
        self._show(observation, seen)

    def step(self) -> None:
        """One tick: keys and mouse move the targets, and both worlds follow."""
        held, pressed, drag = self.controls.take()
        if "r" in pressed:
            self.reset()
            return
        for key in pressed:
            if key in map(str, range(1, self.arms + 1)):
                self._arm = int(key) - 1
            elif key == " " and self._grippers:
                self._toggle(self._grippers[self._arm])
        if self._ended:
            return
        action = self._moved(held, drag)
        self._real.write(action)
        self._success["real"] = self._real.success is True
        seen = None
        if self._imagined is not None:
            seen, *_, imagined_info = self._imagined.step(action)
            self._success["imagined"] |= imagined_info["is_success"]
        self._tick += 1
        self._ended = self._real.terminated or self._real.truncated
        self._show(self._observed(), seen)

    def run(self) -> None:
        """Tick in real time until `stop`."""
        due_s = time.monotonic()
        while not self._stopped.is_set():
            self.step()
            due_s = max(due_s + 1 / self._rate, time.monotonic())
            self._stopped.wait(due_s - time.monotonic())

    def stop(self) -> None:
        """End `run` after the present tick."""
        self._stopped.set()

    def newest(self) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """The newest picture, uint8 [h, w, 3], and status."""
        with self._lock:
            return self._picture, dict(self._status)

    def _moved(self, held: set[str], drag: NDArray[np.float64]) -> NDArray[np.float32]:
        """The action of this tick: targets move, steps are what is moved now."""
        change = np.zeros(len(self._action), np.float32)
        first = self._grippers[self._arm - 1] + 1 if self._arm else 0
        for key in held & MOVES.keys():
            axis, direction = MOVES[key]
            change[first + axis : first + axis + 1] += direction * self._config.speed / self._rate
        dragged = change[first : first + 2]  # there may be one, or none
        dragged += (self._config.drag * drag * (1, -1))[: len(dragged)]  # the page's y points down
        absolute = np.array([kind == "absolute" for kind in self._actions.kind])
        self._action = np.where(absolute, self._action + change, change).astype(np.float32)
        self._action = np.clip(self._action, self._actions.low, self._actions.high)
        return self._action

    def _toggle(self, dim: int) -> None:
        low, high = self._actions.low[dim], self._actions.high[dim]
        self._action[dim] = low if self._action[dim] > (low + high) / 2 else high

    def _observed(self) -> dict[str, Any]:
        """The task's observation as an imagined world takes it."""
        seen = self._real.read()
        return {"pixels": seen.images, "agent_pos": seen.state}

    def _show(self, real: dict[str, Any], imagined: dict[str, Any] | None) -> None:
        rows = [np.concatenate(list(seen["pixels"].values()), 1) for seen in (real, imagined) if seen is not None]
        picture = np.asarray(resize(np.concatenate(rows, 0), self._config.scale))
        status = {"tick": self._tick, "arm": self._arm + 1, "ended": self._ended, "success": dict(self._success)}
        status["action"] = [round(float(number), 4) for number in self._action]
        with self._lock:
            self._picture, self._status = picture, status
