"""The recorder: a subscriber that turns the steps of an attempt into an `Episode`, whole, however it ended.

`on_step` runs in the control thread while the robot moves: it copies its own row and nothing else. Columns are put
together when the attempt is over, after the loop has stopped the robot.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robot_io.images import LazyImages
from vla_rl.core.dimensions import UNDECLARED, Pair
from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Subscriber
from vla_rl.core.types import PICTURED, Episode, Origin, Step, Uint8Array

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 20  # small: where memory is locked, all pages of a new block are filled at once


class Recorder(Subscriber):
    """Records steps into columns and hands each finished episode to its listeners.

    Call `begin` before an attempt. The episode is complete at the step that is terminated or truncated. `finish`
    completes an attempt that broke off (an exception in the loop). Every episode carries the names and units of
    ``dimensions``, of state and action.
    """

    def __init__(
        self,
        origin: Origin,
        env_id: str,
        control_hz: float,
        listeners: Sequence[Subscriber] = (),
        dimensions: Pair = (UNDECLARED, UNDECLARED),
    ) -> None:
        self._origin = origin
        self._env_id = env_id
        self._control_hz = control_hz
        self._listeners = listeners
        self._dimensions = dimensions
        self._columns: dict[str, _Column] = {}
        self._extras: dict[str, list[int | float]] = {}
        self._length = 0
        self._last: Step | None = None
        self._last_images: Mapping[str, Uint8Array] = {}
        self._begun = False
        self.episode: Episode | None = None

    def begin(self, episode_id: str, seed: int | None, policy_version: int, origin: Origin | None = None) -> None:
        """Name the next attempt; ``origin``: another one than the recorder's. What was recorded of an unfinished
        attempt is dropped.
        """
        self._episode_id = episode_id
        self._episode_origin = origin or self._origin
        self._seed = seed
        self._policy_version = policy_version
        self._length = 0
        self._extras = {}
        self._last = None
        self._begun = True
        self.episode = None

    def on_step(self, step: Step) -> None:
        if not self._begun:
            raise UserError("the recorder got a step before begin(); name the episode first")
        observation = step.observation
        row = self._length
        if row == 0:
            self._start(step)
        columns = self._columns
        images: Mapping[str, Uint8Array] = observation.images
        if isinstance(images, LazyImages) and row:  # the first picture lays the columns out
            self._extras[PICTURED].append(int(images.drawn))
            if not images.drawn:
                images = self._last_images
        for camera, image in images.items():
            columns[camera].put(row, image)
        self._last_images = images
        columns["#state"].put(row, observation.state)
        columns["#action_policy"].put(row, step.action_policy)
        columns["#action_sent"].put(row, step.action_sent)
        columns["#source"].put(row, step.source)
        extras = self._extras
        for name, value in step.extras.items():
            extras[name].append(value)
        for stream, captured_ns in observation.captured_ns.items():
            extras["captured_ns." + stream].append(captured_ns)
        self._length = row + 1
        self._last = step
        if step.terminated or step.truncated:
            self.finish()

    def finish(self, success: bool | None = None) -> Episode | None:
        """Complete the attempt and notify the listeners. Returns None if there is nothing to complete.

        Args:
            success: the outcome, if a person has to say it; None keeps what the last step says.
        """
        if not self._begun or self._last is None:
            return None
        self._begun = False
        length = self._length
        columns = {name: column.rows(length) for name, column in self._columns.items()}
        # What a policy asked for may not be finite; the gate's reasons say so, and an episode holds only numbers.
        wanted, sent = columns["#action_policy"], columns["#action_sent"]
        columns["#action_policy"] = np.where(np.isfinite(wanted).all(axis=1, keepdims=True), wanted, sent)
        self.episode = Episode(
            episode_id=self._episode_id,
            images={name: columns[name] for name in self._last.observation.images},  # type: ignore[misc]
            state=columns["#state"],  # type: ignore[arg-type]
            action_policy=columns["#action_policy"],  # type: ignore[arg-type]
            action_sent=columns["#action_sent"],  # type: ignore[arg-type]
            source=columns["#source"],  # type: ignore[arg-type]
            task=self._last.observation.task,
            success=self._last.success if success is None else success,
            terminated=self._last.terminated,
            origin=self._episode_origin,
            policy_version=self._policy_version,
            seed=self._seed,
            control_hz=self._control_hz,
            env_id=self._env_id,
            extras={name: _as_column(values[:length]) for name, values in self._extras.items()},
            state_dimensions=self._dimensions[0],
            action_dimensions=self._dimensions[1],
            **self._final(self._last),
        )
        for listener in self._listeners:
            listener.on_episode(self.episode)
        return self.episode

    def _final(self, last: Step) -> dict[str, Any]:
        """Return the fields of the observation after the last command; none for one that no episode can hold."""
        if last.final is None:
            return {}
        state = np.array(last.final.state, np.float32)
        images = {name: np.array(image) for name, image in last.final.images.items()}
        shapes = {name: column.shape for name, column in self._columns.items() if not name.startswith("#")}
        is_whole = state.shape == last.observation.state.shape and np.isfinite(state).all()
        if is_whole and {name: image.shape for name, image in images.items()} == shapes:
            return {"final_state": state, "final_images": images}
        logger.warning("episode %s: the observation after its last command is not whole, left out", self._episode_id)
        return {}

    def _start(self, step: Step) -> None:
        """Lay the columns out by the first step; blocks of an earlier episode of the same shapes are used again."""
        observation = step.observation
        state, action = self._dimensions
        state.check_size(len(observation.state), f"the state of {self._env_id}")
        action.check_size(len(step.action_sent), f"the action of {self._env_id}")
        rows: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
            camera: (image.shape, np.uint8) for camera, image in observation.images.items()
        }
        rows["#state"] = (observation.state.shape, np.float32)
        rows["#action_policy"] = rows["#action_sent"] = (step.action_sent.shape, np.float32)
        rows["#source"] = ((), np.uint8)
        known = {name: (column.shape, column.dtype) for name, column in self._columns.items()}
        if known != rows:
            self._columns = {name: _Column(shape, dtype) for name, (shape, dtype) in rows.items()}
        names = [*step.extras, *("captured_ns." + stream for stream in observation.captured_ns)]
        self._extras = {name: [] for name in names}
        if isinstance(observation.images, LazyImages):
            self._extras[PICTURED] = [1]


class _Column:
    """Rows of a shape and dtype in blocks that stay where they are, so that one row more never moves the others."""

    def __init__(self, shape: tuple[int, ...], dtype: type[np.generic]) -> None:
        self.shape, self.dtype = shape, dtype
        row_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        self._block_rows = max(_BLOCK_BYTES // max(row_bytes, 1), 1)
        self._blocks: list[NDArray[np.generic]] = []

    def put(self, row: int, value: ArrayLike) -> None:
        """Copy the value of a row, at most the one after the last."""
        block, index = divmod(row, self._block_rows)
        if block == len(self._blocks):
            self._blocks.append(np.empty((self._block_rows, *self.shape), self.dtype))
        self._blocks[block][index] = value

    def rows(self, length: int) -> NDArray[np.generic]:
        """Return a copy of the first rows, at least one: [length, *shape]."""
        last, index = divmod(length - 1, self._block_rows)
        return np.concatenate([*self._blocks[:last], self._blocks[last][: index + 1]])


def _as_column(values: list[int | float]) -> NDArray[np.generic]:
    column = np.asarray(values)
    return column.astype(np.float32) if column.dtype == np.float64 else column
