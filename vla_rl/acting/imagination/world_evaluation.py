"""Evaluation of a world model's folder: state probe, horizon curves, judged successes, counterfactuals.

A world model's folder, as ``vla-rl imagine train`` makes it::

    task.yaml          the task that it imagines
    episodes/          what it learnt from: a run's episodes and near successes
    near/              the near successes as they were collected
    held_out/          real episodes that it never saw
    model/             the model
    probe/             the state probe and the true positions that it was trained on
    cache/, held_out_cache/   can be deleted at any time
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from robot_io.gate import GateConfig
from vla_rl.acting.imagination.ground_truth import SimulatorTruth
from vla_rl.acting.imagination.near_success import collect_counterfactuals
from vla_rl.acting.imagination.world_data import episodes_of, open_cache
from vla_rl.acting.task_config import TaskConfig
from vla_rl.core.config import load_config
from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic
from vla_rl.core.keys import code_of, key_of
from vla_rl.core.outside import reading
from vla_rl.core.types import Float32Array
from vla_rl.data.cache import FrameCache
from vla_rl.data.store import EpisodeStore
from world_model.evaluation import HorizonConfig, horizon_curves, judge_successes, probe_floor
from world_model.imagined_env import ImaginedEnv
from world_model.model import load_world_model
from world_model.open_loop import imagine
from world_model.probe import StateProbe, train_probe, true_positions
from world_model.windows import LatentEpisodes

COUNTERFACTUAL_SEED = 900_000_000  # apart from all others


@dataclass
class WorldFolder:
    """The paths of a world model's folder."""

    path: Path

    def __post_init__(self) -> None:
        self.task_file = self.path / "task.yaml"
        self.episodes, self.near, self.held_out = (self.path / name for name in ("episodes", "near", "held_out"))
        self.model, self.probe = self.path / "model", self.path / "probe"
        self.cache, self.held_out_cache = self.path / "cache", self.path / "held_out_cache"

    def task(self) -> TaskConfig:
        """The task. Raises UserError if there is none."""
        if not self.task_file.exists():
            raise UserError(f"{self.path} holds no world model (no task.yaml); make one with `vla-rl imagine train`")
        return load_config(TaskConfig, self.task_file)

    def open_env(self) -> ImaginedEnv:
        """Open the world model as an environment, whose episodes begin in the held-out ones."""
        model = load_world_model(self.model)
        data = LatentEpisodes(open_cache(self.held_out, self.held_out_cache), model.autoencoder)
        return ImaginedEnv(model, data)


class WorldJudge:
    """Everything that an evaluation needs, loaded once.

    Args:
        folder: of the world model.
        instruments: another world model's folder of the same task and held-out episodes, whose probe and
            counterfactuals are used, so that both are judged alike.
    """

    def __init__(self, folder: WorldFolder, instruments: WorldFolder | None = None) -> None:
        self.folder, self._instruments = folder, instruments or folder
        self.task = folder.task()
        self.truth = SimulatorTruth(self.task)
        self.model = load_world_model(folder.model)
        self.cache = open_cache(folder.held_out, folder.held_out_cache)
        self.data = LatentEpisodes(self.cache, self.model.autoencoder)

    def probe(self) -> StateProbe:
        """The state probe, trained on the episodes of its folder when it is first asked for."""
        folder = self._instruments
        learned_from = episodes_of(EpisodeStore(folder.episodes, create=False))
        key = key_of([self.model.spec, self.task, learned_from, code_of("world_model", "sim")])
        file = folder.probe / f"probe-{key}.safetensors"
        if file.exists():
            probe = StateProbe(self.model.spec, len(self.truth.names))
            with reading(file, "remove it to train the probe anew"):
                probe.load_state_dict(safetensors.torch.load_file(file))
            return probe.eval()
        cache = open_cache(folder.episodes, folder.cache)
        probe = train_probe(self.model.spec, cache, self._positions(cache))
        folder.probe.mkdir(exist_ok=True)
        write_atomic(file, safetensors.torch.save(probe.state_dict()))
        return probe

    def horizons(self, config: HorizonConfig | None = None) -> dict[str, Any]:
        """Floor of the probe and horizon curves on held-out episodes, millimetres and pixels."""
        probe, positions = self.probe(), self._positions(self.cache)
        points: dict[str, Sequence[int]] = {"objects": self.truth.objects, "all": range(len(self.truth.names))}
        pixel_m = self.truth.metres_per_pixel(self.model.spec.image_size[0])
        floor = probe_floor(self.model, self.cache, probe, positions)
        curves = horizon_curves(self.model, self.data, probe, positions, points, config)
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
        """From one state, the expert's actions against spoilt ones: do imagined outcomes agree with real ones?"""
        folder = self._instruments.path / "counterfactuals"
        store = EpisodeStore(folder / "episodes")
        parting = collect_counterfactuals(self.task, GateConfig(), store, pairs, COUNTERFACTUAL_SEED)
        data = LatentEpisodes(open_cache(store.path, folder / "cache"), self.model.autoencoder)
        scores, truths = [], []
        for index, episode in enumerate(data.episodes):
            if episode.episode_id not in parting:
                continue
            first, length = parting[episode.episode_id], int(data.length[index])
            start = int(data.start[index])
            actions = data.action[start + first : start + length][None]
            future = imagine(self.model, data, torch.tensor([index]), torch.tensor([first]), actions)
            scores.append(float(future.success.max()))
            truths.append(episode.success is True)
        return judge_successes(np.array(scores), np.array(truths))

    def outcomes(self, versions: Sequence[int], episodes: int) -> dict[str, Any]:
        """Real episodes imagined from their first frame with the actions that were sent: do the outcomes agree?

        Args:
            versions: of the policies whose held-out episodes are taken.
            episodes: of each, at most.

        Returns:
            version -> see `judge_successes`; ``all`` for all of them together.
        """
        data, scores, truths = self.data, {}, {}
        for version in versions:
            own = [index for index, episode in enumerate(data.episodes) if episode.policy_version == version][:episodes]
            reached = []
            for index in own:
                frames = slice(int(data.start[index]), int(data.start[index] + data.length[index]))
                future = imagine(self.model, data, torch.tensor([index]), torch.tensor([0]), data.action[frames][None])
                reached.append(float(future.success.max()))
            scores[str(version)] = np.array(reached)
            truths[str(version)] = data.success[own].numpy()
        scores["all"], truths["all"] = np.concatenate([*scores.values()]), np.concatenate([*truths.values()])
        return {name: judge_successes(scores[name], truths[name]) for name in scores}

    def _positions(self, cache: FrameCache) -> Float32Array:
        episodes = [(episode.episode_id, episode.digest) for episode in cache.episodes]
        key = key_of([self.task, episodes, code_of("sim")])
        file = self._instruments.probe / f"positions-{key}.npy"
        if file.exists():
            with reading(file, "remove it to replay the episodes anew"):
                known: Float32Array = np.load(file, allow_pickle=False)
                return known
        positions = true_positions(cache, self.truth)
        self._instruments.probe.mkdir(exist_ok=True)
        np.save(file, positions)
        return positions
