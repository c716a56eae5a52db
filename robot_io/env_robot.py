"""A gymnasium environment as a robot, so that the one loop drives simulators, imagined worlds and real arms alike."""

from typing import Any

import numpy as np

from vla_rl.core.clock import Clock, VirtualClock
from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array, Observation

_KINDS = ("absolute", "delta")


class EnvRobot:
    """Wraps an environment with a Box of actions.

    Its observations are ``{"pixels": {camera: uint8 [H, W, 3]}, "agent_pos": float32 [S]}``, new arrays at every step.
    Time is virtual unless another clock is given: a tick takes no longer than the environment needs to compute it.
    ``write`` steps the environment, so it takes one command a tick; the loop's deadlines move its clock.

    Args:
        env: a gymnasium environment; ``env.unwrapped.task_description`` is the task sentence,
            ``env.metadata["render_fps"]`` the rate, and ``env.unwrapped.action_kind``, if it has that, the kind of
            every action dimension.
        clock: the time that the environment lives in.
        control_hz: overrides the environment's rate.
        task: overrides the task sentence.

    Attributes:
        action_kind: of each of the A dimensions, "absolute" (a target: repeated, it holds still; the default) or
            "delta" (a step: 0 holds still).

    Raises:
        UserError: if the environment's spaces or metadata do not fit.
    """

    world_ends = True
    """No command reaches an environment after its episode, see `vla_rl.execution.loop.EpisodicRobot`."""

    def __init__(
        self, env: Any, clock: Clock | None = None, control_hz: float | None = None, task: str | None = None
    ) -> None:
        self.env = env
        self.clock = clock or VirtualClock()
        rate = control_hz or env.metadata.get("render_fps")
        if not rate:
            raise UserError(f"{env} does not say its rate; set metadata['render_fps'] or pass control_hz")
        self.control_hz = float(rate)
        self.task: str = task if task is not None else getattr(env.unwrapped, "task_description", "")
        if len(getattr(env.action_space, "shape", None) or ()) != 1:
            raise UserError(f"{env} has the action space {env.action_space}; expected a Box of shape [A]")
        self._action_size = env.action_space.shape[0]
        self.action_kind = _action_kind(env, self._action_size)
        self._raw: dict[str, Any] = {}
        self._tick = 0
        self._ended = True
        self.terminated = False
        self.truncated = False
        self.success: bool | None = None

    def connect(self) -> None:
        """An environment is always there."""

    def reset(self, seed: int) -> None:
        """Start an episode of the environment with this seed."""
        self._raw, _ = self.env.reset(seed=seed)
        if not isinstance(self._raw, dict) or not {"pixels", "agent_pos"} <= self._raw.keys():
            raise UserError(f"{self.env} does not observe a dictionary with 'pixels' and 'agent_pos'")
        if isinstance(self.clock, VirtualClock):  # so that an episode does not depend on the ones before it
            self.clock.restart()
        self._tick = 0
        self._ended = self.terminated = self.truncated = False
        self.success = None

    def read(self) -> Observation:
        """The observation after the last step, captured now."""
        now_ns = self.clock.now_ns()
        images = self._raw["pixels"]
        captured_ns = dict.fromkeys(images, now_ns)
        captured_ns["state"] = now_ns
        return Observation(images, self._raw["agent_pos"], self.task, self._tick, captured_ns)

    def rest_command(self) -> Float32Array:
        """``env.unwrapped.rest_action(state)`` if it has that, else the first A numbers of the state (joint targets).

        Raises:
            UserError: if the state is shorter than the action.
        """
        state: Float32Array = self._raw["agent_pos"]
        rest_action = getattr(self.env.unwrapped, "rest_action", None)
        if rest_action is not None:
            return np.asarray(rest_action(state), np.float32)
        if len(state) < self._action_size:
            raise UserError(
                f"{self.env} has {len(state)} state numbers for {self._action_size} action dimensions: "
                "give it a method rest_action(state) that returns the action that keeps it still"
            )
        return state[: self._action_size].astype(np.float32)

    def write(self, action: Float32Array) -> Float32Array:
        """Step the environment. Returns the action: an environment sends what it is given."""
        if self._ended:
            raise UserError("the episode has ended; reset before the next command")
        self._raw, _, terminated, truncated, info = self.env.step(action)
        self._tick += 1
        self.terminated, self.truncated = bool(terminated), bool(truncated)
        self._ended = self.terminated or self.truncated
        if self._ended:
            self.success = bool(info.get("is_success", False))
        return action

    def stop(self) -> None:
        """A stopped attempt has failed, unless the environment has already judged it."""
        if not self._ended:
            self._ended = True
            self.success = False

    def close(self) -> None:
        self.env.close()


def _action_kind(env: Any, size: int) -> tuple[str, ...]:
    """What the environment says of its action dimensions; targets where it says nothing."""
    kinds = tuple(getattr(env.unwrapped, "action_kind", (_KINDS[0],) * size))
    if len(kinds) != size or not set(kinds) <= set(_KINDS):
        raise UserError(f"{env} declares action_kind {kinds}; expected {size} entries, each of them one of {_KINDS}")
    return kinds
