"""Judge a world model: state probe, horizon curves, judged successes, counterfactuals.

True positions come from replaying the actions of recorded episodes in the simulator, so this works for the tasks of
`sim` only.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import safetensors.torch
import torch

from benchmarks.world_horizons import HorizonConfig, horizon_curves, judge_successes, probe_floor
from benchmarks.world_probe import StateProbe, train_probe, true_positions
from robot_io.gate import GateConfig
from sim.experts.perturbed import PerturbationConfig, PerturbedExpert
from vla_rl.acting.attempt import Attempts
from vla_rl.acting.task import make_env, make_gate, open_robot
from vla_rl.acting.task_config import TaskConfig
from vla_rl.acting.world_folder import WorldFolder, episodes_of, open_cache
from vla_rl.core.cache_keys import cache_key, code_digest
from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic
from vla_rl.core.json_files import reading
from vla_rl.core.progress import track
from vla_rl.core.types import Episode, Float32Array, Origin
from vla_rl.data.cache import CachedEpisode, FrameCache
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.sources import Demonstrator
from world_model.protocol import Observations

COUNTERFACTUAL_SEED = 900_000_000  # of the first pair; apart from all other seeds
_SMALLEST_IMAGE = 16  # the images of replays are unused
_TOLERANCE_M = 1e-4
_NEVER = 1_000_000


class WorldJudge:
    """Evaluate the world model of a folder.

    Args:
        folder: Folder of the world model.
        instruments: Folder of another world model with the same task and held-out episodes. Its probe and
            counterfactuals are used, so that both models are judged alike.
    """

    def __init__(self, folder: WorldFolder, instruments: WorldFolder | None = None) -> None:
        self._instruments = instruments or folder
        self._probe_folder = self._instruments.path / "probe"
        self.task = folder.task()
        self.truth = SimulatorTruth(self.task)
        self.world, self.spec = folder.load()
        self.cache = open_cache(folder.held_out, folder.held_out_cache)

    def probe(self) -> StateProbe:
        """Return the state probe; the first call trains it on the training episodes."""
        folder = self._instruments
        learned_from = episodes_of(EpisodeStore(folder.episodes, create=False))
        key = cache_key([self.spec, self.task, learned_from, code_digest("sim", "benchmarks.world_probe")])
        file = self._probe_folder / f"probe-{key}.safetensors"
        if file.exists():
            probe = StateProbe(self.spec, len(self.truth.names))
            with reading(file, "remove it to train the probe anew"):
                probe.load_state_dict(safetensors.torch.load_file(file))
            return probe.eval()
        cache = open_cache(folder.episodes, folder.cache)
        probe = train_probe(self.spec, cache, self._positions(cache))
        self._probe_folder.mkdir(exist_ok=True)
        write_atomic(file, safetensors.torch.save(probe.state_dict()))
        return probe

    def horizons(self, config: HorizonConfig | None = None) -> dict[str, Any]:
        """Return the probe's floor and horizon curves on held-out episodes, in millimeters and pixels."""
        probe, positions = self.probe(), self._positions(self.cache)
        points: dict[str, Sequence[int]] = {"objects": self.truth.objects, "all": range(len(self.truth.names))}
        pixel_m = self.truth.meters_per_pixel(self.spec.image_size[0])
        floor = probe_floor(self.world, self.cache, probe, positions)
        curves = horizon_curves(self.world, self.cache, probe, positions, points, config)
        for name in points:
            for kind, curve in curves[name].items():
                if kind != "ratio":
                    curves[name][kind] = [round(1e3 * value, 3) for value in curve]
        return {
            "unit": "mm",
            "mm_per_pixel": 1e3 * pixel_m,
            "probe_floor_px": {name: value / pixel_m for name, value in floor.items()},
            **curves,
        }

    def counterfactuals(self, pairs: int) -> dict[str, Any]:
        """Compare imagined with real outcomes of the expert's and of perturbed actions from one state."""
        folder = self._instruments.path / "counterfactuals"
        store = EpisodeStore(folder / "episodes")
        parting = collect_counterfactuals(self.task, GateConfig(), store, pairs, COUNTERFACTUAL_SEED)
        cache = open_cache(store.path, folder / "cache")
        own = [episode for episode in cache.episodes if episode.episode_id in parting]
        scores = [self._imagined_success(cache, episode, parting[episode.episode_id]) for episode in own]
        return judge_successes(np.array(scores), np.array([episode.success is True for episode in own]))

    def _imagined_success(self, cache: FrameCache, episode: CachedEpisode, first: int = 0) -> float:
        """Return the highest success probability with the sent actions, imagined from one step on."""
        frames = np.arange(episode.start + first, episode.start + episode.length)
        state = self.world.encode(Observations(cache, frames[:1]))
        return float(self.world.predict(state, torch.from_numpy(cache.action_sent[frames])[None]).success)

    def outcomes(self, versions: Sequence[int], episodes: int) -> dict[str, Any]:
        """Compare imagined with real outcomes of held-out episodes, imagined from the first frame.

        Args:
            versions: Policy versions of the episodes.
            episodes: Largest number of episodes of each version.

        Returns:
            Version -> result of `judge_successes`; ``all`` for all versions together.
        """
        scores, truths = {}, {}
        for version in versions:
            own = [episode for episode in self.cache.episodes if episode.policy_version == version][:episodes]
            scores[str(version)] = np.array([self._imagined_success(self.cache, episode) for episode in own])
            truths[str(version)] = np.array([episode.success is True for episode in own], bool)
        scores["all"], truths["all"] = np.concatenate([*scores.values()]), np.concatenate([*truths.values()])
        return {name: judge_successes(scores[name], truths[name]) for name in scores}

    def _positions(self, cache: FrameCache) -> Float32Array:
        episodes = [(episode.episode_id, episode.digest) for episode in cache.episodes]
        key = cache_key([self.task, episodes, code_digest("sim")])
        file = self._probe_folder / f"positions-{key}.npy"
        if file.exists():
            with reading(file, "remove it to replay the episodes anew"):
                known: Float32Array = np.load(file, allow_pickle=False)
                return known
        positions = true_positions(cache, self.truth)
        self._probe_folder.mkdir(exist_ok=True)
        np.save(file, positions)
        return positions


def collect_counterfactuals(
    task: TaskConfig, gate: GateConfig, store: EpisodeStore, pairs: int, first_seed: int, before_end: int = 30
) -> dict[str, int]:
    """Add the missing pairs of episodes that part from one state: the expert continues with and without errors.

    Args:
        task: The environment.
        gate: Limits of the robot.
        store: Where the episodes ``pair-KEY-00000-expert`` and ``pair-KEY-00000-perturbed`` go.
        pairs: Number of pairs.
        first_seed: The environment's seed of the first pair; the others follow.
        before_end: Steps before the expert's success at which a pair parts.

    Returns:
        Episode id -> the step at which the pair parts.
    """
    robot, config = open_robot(task), PerturbationConfig(accurate=0.0, blind=0.0, rough=0.0)
    attempts = Attempts(robot, make_gate(robot, gate), Origin.SIM, task.env)

    def record(name: str, seed: int, perturbed_from: int) -> None:
        if name not in store:
            expert = PerturbedExpert(robot.env, config, perturbed_from)
            attempts.run(Demonstrator(expert.act, expert.reset), name, seed, policy_version=-1, keep=store.add)

    key = cache_key([task, gate, config, first_seed, before_end, code_digest("sim", __name__)])
    parting: dict[str, int] = {}
    for index in track(range(pairs), "counterfactuals", "pair"):
        clean, perturbed = (f"pair-{key}-{index:05d}-{kind}" for kind in ("expert", "perturbed"))
        record(clean, first_seed + index, _NEVER)
        step = max(store.read_header(clean).length - before_end, 1)
        record(perturbed, first_seed + index, step)
        parting |= {clean: step, perturbed: step}
    robot.close()
    return parting


class SimulatorTruth:
    """True positions of recorded episodes, by replay. An argument of `true_positions`.

    Args:
        task: The environment of the episodes.

    Attributes:
        names: Names of the K points: the grip points of the arms, then the objects.
    """

    def __init__(self, task: TaskConfig) -> None:
        self._task = task
        self._env = make_env(replace(task, image_size=_SMALLEST_IMAGE)).unwrapped
        if not hasattr(self._env, "grip_points"):
            raise UserError(f"{task.env} has no true positions; the state probe needs a task of `sim`")
        self._arms = [f"grip_{arm.side}" for arm in self._env.arms]
        self.names = [*self._arms, *self._env.objects]

    @property
    def objects(self) -> list[int]:
        """Indices of the points that are objects."""
        return list(range(len(self._arms), len(self.names)))

    def __call__(self, episode: Episode) -> Float32Array:
        """Return the positions at every observation of an episode, float32 [T, K, 3], meters.

        Raises:
            UserError: If the episode does not replay, because task, difficulty or program version differ.
        """
        env = self._env
        observation, _ = env.reset(seed=episode.seed)
        rows = np.empty((len(episode), len(self.names), 3), np.float32)
        for step in range(len(episode)):
            if np.abs(observation["agent_pos"] - episode.state[step]).max() > _TOLERANCE_M:
                raise UserError(
                    f"episode {episode.episode_id!r} does not replay in {self._task.env} at difficulty "
                    f"{self._task.difficulty:g} (step {step}); give the task that it was recorded in"
                )
            rows[step] = self._positions()
            observation = env.step(episode.action_sent[step])[0]
        return rows

    def meters_per_pixel(self, image_size: int) -> float:
        """Return the size of a pixel on the table, in the camera that looks down."""
        model: Any = self._env.model
        camera = model.camera("top").id
        height = float(model.cam_pos[camera][2])
        return 2 * height * math.tan(math.radians(float(model.cam_fovy[camera])) / 2) / image_size

    def _positions(self) -> Float32Array:
        env = self._env
        objects = np.array([env.position(name) for name in env.objects])
        return np.concatenate([env.grip_points(), objects]).astype(np.float32)
