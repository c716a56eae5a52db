"""The folder of a world model: its paths, its episodes, and the model as an environment.

``vla-rl imagine train`` makes it::

    task.yaml          the task that the model imagines
    episodes/          training episodes: those of a run, and near successes
    near/              the near successes as they were collected
    held_out/          real episodes that training never sees
    encoder/           the frozen policy whose features are predicted
    model/             dynamics and decoder
    cache/, held_out_cache/   can be deleted at any time
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from robot_io.gate import GateConfig
from sim.experts.perturbed import PerturbedExpert
from sim.registration import make_expert
from vla_rl.acting.attempt import Attempts
from vla_rl.acting.task import episode_limit, make_gate, open_robot
from vla_rl.acting.task_config import TaskConfig
from vla_rl.core.config import load_config
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.progress import track
from vla_rl.core.types import Origin
from vla_rl.data.cache import FrameCache
from vla_rl.data.edits import Changes
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.sources import Demonstrator
from vla_rl.policies.base import example_row, flat_features
from vla_rl.policies.folders import load_model
from vla_rl.policies.layers import Normalizer
from vla_rl.policies.proxy.model import reduced
from vla_rl.policies.trainable import TrainablePolicy
from world_model.feature_world import FeatureWorld, load_world_model
from world_model.imagined_env import ImaginedEnv
from world_model.protocol import Observations, WorldSpec

_AT_ONCE = 512  # observations that a policy looks at
NEAR_SUCCESS_SEED = 700_000_000  # of the first near success; practice and evaluation never reach these seeds


@dataclass
class WorldFolder:
    """The paths of a world model's folder."""

    path: Path

    def __post_init__(self) -> None:
        self.task_file = self.path / "task.yaml"
        self.episodes, self.near, self.held_out = (self.path / name for name in ("episodes", "near", "held_out"))
        self.encoder, self.model = self.path / "encoder", self.path / "model"
        self.key = self.path / "key"
        self.cache, self.held_out_cache = self.path / "cache", self.path / "held_out_cache"

    def task(self) -> TaskConfig:
        """Return the task. Raises UserError if there is none."""
        if not self.task_file.exists():
            raise UserError(f"{self.path} holds no world model (no task.yaml); make one with `vla-rl imagine train`")
        return load_config(TaskConfig, self.task_file)

    def load(self) -> tuple[FeatureWorld, WorldSpec]:
        """Read the world model.

        Raises:
            UserError: If there is none, or it is damaged.
        """
        self.task()
        if not all((part / "config.json").exists() for part in (self.encoder, self.model)):
            raise UserError(
                f"{self.path} holds no finished world model of this version. Run `vla-rl imagine train` again; choose "
                "another --out for an earlier version"
            )
        eyes = Eyes(load_model(self.encoder)[0])
        return load_world_model(self.model, eyes.look, eyes.normalize, eyes.sense)

    def open_env(self) -> ImaginedEnv:
        """Open the world model as an environment, whose episodes begin in the held-out ones."""
        world, spec = self.load()
        return ImaginedEnv(world, spec, self.open_held_out())

    def open_held_out(self) -> FrameCache:
        """Open the episodes that training never saw, with the names of the encoder."""
        return open_cache(self.held_out, self.held_out_cache, load_model(self.encoder)[0].spec)


class Eyes:
    """What a world model reads: features of a frozen policy, then the robot's state in standard deviations.

    Args:
        policy: Gives features. More than sixteen tokens become their mean.

    Raises:
        UserError: For a policy that has no features, reads several observations, or serves several robots.
    """

    def __init__(self, policy: TrainablePolicy) -> None:
        if policy.n_obs_steps > 1 or policy.spec.sizes or "features" not in policy.capabilities:
            raise UserError(
                f"a world model sees through features of one observation of one robot; {policy.config.kind!r} gives "
                "none. Practice it as policy.base"
            )
        self.policy, self._own = policy.eval(), len(example_row(policy))
        state = policy.statistics.state
        scale = np.where(state.scale > 0, state.scale, 1.0)
        device = next(policy.parameters()).device
        self._mean, self._scale = (
            torch.tensor(np.asarray(row), dtype=torch.float32, device=device) for row in (state.mean, scale)
        )
        self._actions = Normalizer(policy.statistics.action, policy.statistics.discrete_dims).to(device)

    def normalize(self, actions: Tensor) -> Tensor:
        """Return actions [..., A] in raw units as the model reads them."""
        return self._actions.network_input(actions.to(self._mean))

    @torch.no_grad()
    def look(self, moments: Observations) -> Tensor:
        """Return what is seen at B moments, [B, F + S]."""
        blank = self._mean.new_empty(0, self._own + len(self._mean))
        numbers = np.arange(len(moments.frames))
        parts = [
            moments.at(torch.from_numpy(part)) for part in np.split(numbers, range(_AT_ONCE, len(numbers), _AT_ONCE))
        ]
        return torch.cat([blank, *map(self._seen, parts)])

    def sense(self, seen: Tensor) -> Tensor:
        """Return the robot's state, [B, S] in raw units, in what is seen."""
        return seen[:, self._own :] * self._scale + self._mean

    def _seen(self, moments: Observations) -> Tensor:
        policy, device = self.policy, self._mean.device
        cameras, (height, width) = policy.spec.cameras, policy.spec.image_size
        found = {camera: image.shape[1:3] for camera, image in moments.steps.images.items()}
        times = max(1, next(iter(found.values()))[0] // height) if found else 1  # a proxy sees pictures reduced
        known = [found.get(camera, (0, 0)) for camera in cameras]
        if any((high // times, wide // times) != (height, width) for high, wide in known):
            raise UserError(
                f"the world model sees {cameras} of {height} x {width} pixels, or a multiple; found are {found}. Take "
                "the task that it was trained on"
            )
        pictures = moments.pictures(cameras).to(device)
        images = dict(zip(cameras, pictures.unbind(1), strict=True))
        state = torch.from_numpy(moments.steps.state[moments.frames]).to(device)
        text = policy.tokenize(moments.tasks()).to(device)
        own = flat_features(*policy.features(reduced(images, times), state, text))
        return torch.cat([own, (state - self._mean) / self._scale], 1)


def has_expert(task: TaskConfig) -> bool:
    """Return whether the task has a scripted expert, as near successes need it."""
    robot = open_robot(task)
    try:
        make_expert(robot.env)
    except UserError:
        return False
    finally:
        robot.close()
    return True


def collect_near_success(
    task: TaskConfig, gate: GateConfig, store: EpisodeStore, episodes: int, first_seed: int
) -> None:
    """Add the missing episodes of the perturbed expert, ``near-00000`` and so on (World-VLA-Loop, arXiv 2602.06508).

    Their steps are demonstrations and their origin is the simulator, so no policy imitates a failure among them. The
    environment's seeds count from ``first_seed``.
    """
    if not episodes:  # a task without a scripted expert has none
        return
    robot = open_robot(task)
    attempts = Attempts(robot, make_gate(robot, gate), Origin.SIM, task.env)
    expert = PerturbedExpert(robot.env)
    for index in track(range(episodes), "near successes", "episode"):
        if (name := f"near-{index:05d}") not in store:
            source = Demonstrator(expert.act, expert.reset)
            attempts.run(source, name, first_seed + index, policy_version=-1, keep=store.add)
    expert.close()
    robot.close()


def gather_episodes(store: EpisodeStore, sources: dict[str, Path], env_id: str) -> None:
    """Copy the episodes of an environment from other stores, under the source's name and their own id.

    Copies that exist keep up with the source's edits.
    """
    for name, path in sources.items():
        source = EpisodeStore(path, create=False)
        for episode_id in track(source.ids(left_out=True), f"episodes of {name}", "episode"):
            copied, edited = f"{name}-{episode_id}", source.edited_values(episode_id)
            if copied not in store:
                episode = source.recorded(episode_id)
                if episode.env_id != env_id or edited["left_out"]:
                    continue
                # Simulated captures, chunks and ages say nothing to a world model.
                store.add(replace(episode, episode_id=copied, extras={}))
            if store.edited_values(copied) != edited:
                store.edit(copied, **edited)


def episodes_of(store: EpisodeStore) -> list[tuple[str, str, Changes]]:
    """Return id, digest of the recording and edits of each episode, for a key."""
    return [(name, store.recording(name).digest, store.changes(name)) for name in store.ids()]


def open_cache(folder: Path, directory: Path, expected: PolicySpec | None = None) -> FrameCache:
    """Open the frame cache of a store and bring it up to date; UserError if there are no episodes. ``expected`` is as
    of `FrameCache`.
    """
    cache = FrameCache(EpisodeStore(folder, create=False), directory, expected=expected)
    cache.refresh()
    if not cache.episodes:
        raise UserError(f"{folder} holds no episodes; record some first")
    return cache


def world_spec(task: TaskConfig, cache: FrameCache) -> WorldSpec:
    """Return the spec of a task's world model: what the episodes show, and the limits of the environment.

    Raises:
        UserError: For cameras of different sizes.
    """
    first = cache.episodes[0]
    sizes = set(first.cameras.values())
    if len(sizes) != 1:
        raise UserError(f"the cameras of {cache.store.path} have the sizes {sorted(sizes)}; expected one size")
    robot = open_robot(task)
    actions, limit = robot.actions, episode_limit(robot.env)
    assert limit is not None, "every environment of a task has a limit"
    robot.close()
    return WorldSpec(
        env_id=first.env_id,
        task=first.task,
        cameras=tuple(first.cameras),
        image_size=sizes.pop(),
        state_dim=first.state_dim,
        action_dim=first.action_dim,
        control_hz=first.control_hz,
        max_steps=limit,
        action_low=tuple(actions.low.tolist()),
        action_high=tuple(actions.high.tolist()),
        action_kind=actions.kind,
        gripper_dims=actions.gripper_dims,
        dimensions=first.dimensions,
    )
