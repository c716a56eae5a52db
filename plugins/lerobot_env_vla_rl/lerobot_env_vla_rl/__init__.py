"""lerobot's environment type ``vla_rl``: ``lerobot-eval --env.type=vla_rl --env.task=vla_rl/PegInsert-v0 ...``.

lerobot imports this package by the name of its distribution, which is what registers the type. The code is here and
not in ``vla_rl``: it is the one place where lerobot and the simulators meet, and only lerobot needs it.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import AddRenderObservation
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig

from vla_rl.acting.task_names import find_task
from vla_rl.core.errors import UserError

_STATES = {"agent_pos": "observation.state", "environment_state": "observation.environment_state"}


@EnvConfig.register_subclass("vla_rl")
@dataclass
class VlaRlEnvConfig(EnvConfig):
    """A task of ours, or any gymnasium environment with observations and actions that lerobot knows.

    Its features, its rate and the length of its episodes are read from the environment itself, when the config is made.

    Attributes:
        task: name of a task, as in vla-rl; ``package:Name-v0`` imports the package first.
        fps: steps per second, as the environment says.
        difficulty, image_size, renderer: of our tasks, see `sim.interface.CameraEnv`; None: the environment's default.
        episode_length: steps after which an episode ends; None: as long as the environment says.
        options: further arguments of the environment.

    Raises:
        UserError: if there is no such environment, or lerobot cannot use its spaces.
    """

    task: str | None = "vla_rl/PegInsert-v0"
    fps: int = 30
    difficulty: float | None = None
    image_size: int | None = None
    renderer: str | None = None
    episode_length: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        env = self._maker()()
        try:
            self.fps = round(env.metadata.get("render_fps", self.fps))
            found = list(_features(env))
        finally:
            env.close()
        self.features = {key: feature for key, _, feature in found}
        self.features_map = {key: policy_key for key, policy_key, _ in found}

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        """What `gymnasium.make` is given beside the id."""
        named = {"difficulty": self.difficulty, "image_size": self.image_size, "renderer": self.renderer}
        named["max_episode_steps"] = self.episode_length
        return {**{name: value for name, value in named.items() if value is not None}, **self.options}

    def create_envs(self, n_envs: int, use_async_envs: bool = False) -> dict[str, dict[int, VectorEnv]]:
        """The task ``n_envs`` times, as lerobot keeps them: ``{suite: {task number: vector environment}}``."""
        makers = [self._maker()] * n_envs
        if use_async_envs and n_envs > 1:
            vector: VectorEnv = AsyncVectorEnv(makers, context="forkserver", autoreset_mode=AutoresetMode.SAME_STEP)
        else:
            vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
        return {self.type: {0: vector}}

    def _maker(self) -> "functools.partial[_AsLerobotAsks]":
        return functools.partial(make_environment, self.task or "", self.gym_kwargs)


class _AsLerobotAsks(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Has the attributes that lerobot asks every environment for; without one of them a worker process would die.

    Attributes:
        task: gymnasium id.
        task_description: the policy's task sentence; "" if the environment has none.

    Raises:
        UserError: if nothing says how long an episode is.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], task: str) -> None:
        super().__init__(env)
        self.task = task
        self.task_description: str = getattr(env.unwrapped, "task_description", "")
        limit = env.spec.max_episode_steps if env.spec else None
        self._max_episode_steps: int | None = limit or getattr(env.unwrapped, "max_episode_steps", None)
        if self._max_episode_steps is None:
            raise UserError(f"{task} does not say how long an episode is; add --env.episode_length=STEPS")

    def observation(self, observation: Any) -> Any:
        self._seen = observation
        return observation

    def render(self) -> Any:
        """What the policy has just seen, uint8 [H, cameras x W, 3]. It costs nothing. A picture for people may take
        more than a second of ray casting, and lerobot-eval always draws each step of its first ten episodes.
        """
        pixels = self._seen.get("pixels")
        if not isinstance(pixels, dict):
            return self.env.render() if pixels is None else pixels
        first, *others = pixels.values()
        return np.hstack([first, *(picture for picture in others if picture.shape == first.shape)])


def make_environment(task: str, options: dict[str, Any]) -> _AsLerobotAsks:
    """One environment for lerobot. One that observes nothing but numbers is given its own picture as a camera.

    Raises:
        UserError: if there is none of this name, or it does not say how long an episode is.
        TypeError: if it does not take the options.
    """
    env = gymnasium.make(find_task(task), render_mode="rgb_array", disable_env_checker=True, **options)
    if isinstance(env.observation_space, spaces.Box) and len(env.observation_space.shape) == 1:
        env = AddRenderObservation(env, render_only=False, render_key="pixels", obs_key="agent_pos")
    return _AsLerobotAsks(env, task)


def _features(env: _AsLerobotAsks) -> Iterator[tuple[str, str, PolicyFeature]]:
    """(key in lerobot's recordings, key for the policy, feature) of all that a policy sees and does."""
    observed, acted = env.observation_space, env.action_space
    known = dict(observed.spaces) if isinstance(observed, spaces.Dict) else {}
    pixels = known.get("pixels")
    if isinstance(pixels, spaces.Dict):
        for camera, space in pixels.spaces.items():
            key = f"observation.images.{camera}"
            yield key, key, PolicyFeature(FeatureType.VISUAL, space.shape)
    elif pixels is not None:
        yield "pixels", "observation.image", PolicyFeature(FeatureType.VISUAL, pixels.shape)
    for key, policy_key in _STATES.items():
        if key in known:
            kind = FeatureType.STATE if key == "agent_pos" else FeatureType.ENV
            yield key, policy_key, PolicyFeature(kind, known[key].shape)
    if not known.keys() & {"pixels", *_STATES} or not isinstance(acted, spaces.Box) or len(acted.shape) != 1:
        raise UserError(
            f"lerobot cannot use {env.task}: it observes {observed} and takes {acted}. Expected a Dict with 'pixels', "
            "'agent_pos' or 'environment_state', and a Box of shape [A]"
        )
    yield "action", "action", PolicyFeature(FeatureType.ACTION, acted.shape)


__all__ = ["VlaRlEnvConfig", "make_environment"]
