"""The scripted expert of a simulated task as a policy, for trying robots and transports without any training.

It does not see the true state of the robot's world. The expert solves a copy of the world from the same seed. The
policy follows this solution from the point nearest to the observed state. Named like a policy folder:
``expert:sim:vla_rl/PegInsert-v0?difficulty=0.3``.
"""

import contextlib
import functools
import json
from pathlib import Path
from typing import Any, override
from urllib.parse import parse_qsl

import numpy as np

from robot_io.env_interface import EnvDeclaration, read_actions
from vla_rl.acting.action_kinds import delta_dims
from vla_rl.acting.policy_folder import PolicyFolder
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import with_still_end
from vla_rl.core.protocols import Policy
from vla_rl.core.types import ActionChunk, Float32Array, Observation

EXPERT = "expert:"
_HORIZON = 16
_LOOK_AHEAD = 12  # how many steps of the solution the robot may have gone since it was asked last


class ExpertPolicy(Policy):
    """The scripted expert of a gymnasium id, made with options, as a policy.

    From ``nan_from_tick`` on it plans NaN, to rehearse a policy that fails; -1: never.
    """

    version = 0  # it never learns

    def __init__(self, env: str, options: dict[str, Any], nan_from_tick: int = -1) -> None:
        import sim

        # The smallest pictures: they are not used.
        self._env = _make(env, {**options, "image_size": 16})
        self._expert = sim.make_expert(self._env)
        self._steps = delta_dims(read_actions(self._env, EnvDeclaration()).kind)
        self._nan_from_tick = nan_from_tick
        self.reset(0)

    @override
    def reset(self, seed: int) -> None:
        """Solve the copy of the world with this seed."""
        observation, _ = self._env.reset(seed=seed)
        self._expert.reset(seed)
        states, actions, ended = [], [], False
        while not ended:
            states.append(observation["agent_pos"])
            actions.append(self._expert.act()[0])
            observation, _, terminated, truncated, _ = self._env.step(actions[-1])
            ended = terminated or truncated
        self._states = np.stack(states)  # [T, S]
        self._actions = with_still_end(np.stack(actions), len(actions) + _HORIZON, self._steps)  # [T + H, A]
        self._row = 0

    @override
    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan a chunk (`vla_rl.core.protocols.Policy.infer`). Committed actions are ignored."""
        near = self._states[self._row : self._row + _LOOK_AHEAD] - observation.state
        self._row += int(np.linalg.norm(near, axis=1).argmin())
        actions = self._actions[self._row : self._row + _HORIZON].astype(np.float32)
        if 0 <= self._nan_from_tick < observation.tick + _HORIZON:
            actions[max(self._nan_from_tick - observation.tick, 0) :] = np.nan
        return ActionChunk(actions, observation.tick, 0, self.version)


def find_expert(name: str) -> tuple[PolicyFolder, functools.partial[ExpertPolicy]]:
    """Return the interface of the expert of that name, and how to load it; UserError for an unknown environment."""
    from robot_io.env_robot import EnvRobot  # needs gymnasium, which a robot does not have
    from vla_rl.acting.task import spec_of_robot

    env, _, query = name.removeprefix(EXPERT).partition("?")
    options = {key: _value(value) for key, value in parse_qsl(query)}
    nan_from_tick = options.pop("nan_from_tick", -1)
    with contextlib.closing(_make(env, options)) as opened:
        robot = EnvRobot(opened)
        spec = spec_of_robot(robot.env.spec.id, robot)
    folder = PolicyFolder(Path(), spec, _HORIZON, robot.actions.gripper_dims, version=0)
    return folder, functools.partial(ExpertPolicy, env, options, nan_from_tick)


def _make(env: str, options: dict[str, Any]) -> Any:
    import gymnasium

    try:
        return gymnasium.make(env, disable_env_checker=True, **options)
    except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
        raise UserError(f"there is no environment {env!r} with {options}: {error}") from error


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
