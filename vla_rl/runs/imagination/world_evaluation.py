"""Evaluation of a world model's folder: state probe, horizon curves, judged successes, ranking, counterfactuals.

A world model's folder, as ``vla-rl imagine train`` makes it::

    task.yaml          the task that it imagines
    episodes/          what it learnt from: a run's episodes and near successes
    near/              the near successes as they were collected
    held_out/          real episodes that it never saw
    model/             the model
    probe/             the state probe and the true positions that it was trained on
    cache/, held_out_cache/   can be deleted at any time
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from robot_io.gate import GateConfig
from vla_rl.core.config import load_config
from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic
from vla_rl.core.outside import read_json, reading
from vla_rl.core.types import Float32Array
from vla_rl.data.cache import FrameCache
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.runs.config import TaskConfig
from vla_rl.runs.imagination.ground_truth import SimulatorTruth
from vla_rl.runs.imagination.near_success import collect_counterfactuals
from vla_rl.runs.imagination.rollouts import ImaginationWorker, ImaginedWorldConfig
from vla_rl.runs.imagination.world_data import open_cache
from vla_rl.training.workers import RolloutJob
from world_model.evaluation import HorizonConfig, horizon_curves, probe_floor
from world_model.model import load_world_model
from world_model.open_loop import imagine
from world_model.probe import ProbeConfig, StateProbe, train_probe, true_positions
from world_model.ranking import RankedPolicy, judge_successes, rank_policies
from world_model.windows import LatentEpisodes

COUNTERFACTUAL_SEED = 900_000_000  # apart from all others
_HOLD_STEPS = 20  # an imagined success may come a little before the true one


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


@dataclass(frozen=True)
class JudgedPolicy:
    """A policy to rank.

    Attributes:
        name: for files and tables.
        folder: of the policy version.
        episodes: store of its real episodes.
        prefix: of their ids in it.
    """

    name: str
    folder: Path
    episodes: Path
    prefix: str = ""


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
        self.model, self.version = load_world_model(folder.model)
        self.cache = open_cache(folder.held_out, folder.held_out_cache)
        self.data = LatentEpisodes(self.cache, self.model.autoencoder)

    def probe(self, config: ProbeConfig | None = None) -> StateProbe:
        """The state probe, trained on the episodes of its folder when it is first asked for."""
        folder = self._instruments
        file = folder.probe / "probe.safetensors"
        config = config or ProbeConfig()
        if file.exists():
            probe = StateProbe(config, self.model.spec, len(self.truth.names))
            with reading(file, "remove it to train the probe anew"):
                probe.load_state_dict(safetensors.torch.load_file(file))
            return probe.eval()
        cache = open_cache(folder.episodes, folder.cache)
        probe = train_probe(config, self.model.spec, cache, self._positions(cache, "train"))
        folder.probe.mkdir(exist_ok=True)
        write_atomic(file, safetensors.torch.save(probe.state_dict()))
        return probe

    def horizons(self, config: HorizonConfig | None = None) -> dict[str, Any]:
        """Floor of the probe and horizon curves on held-out episodes, millimetres and pixels."""
        probe, positions = self.probe(), self._positions(self.cache, "held_out")
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
        return judge_successes(np.array(scores), np.array(truths), self.model.config.heads.success_threshold)

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
        threshold = self.model.config.heads.success_threshold
        return {name: judge_successes(scores[name], truths[name], threshold) for name in scores}

    def rank(
        self, policies: Sequence[JudgedPolicy], episodes: int, execution: ExecutionConfig, gate: GateConfig
    ) -> dict[str, Any]:
        """Real against imagined success of policies, from the same starts.

        Args:
            policies: with their real episodes, whose seeds must be among those of the held-out episodes.
            episodes: imagined episodes of each.
            execution, gate: as the real episodes were run with.
        """
        ranked, scores, truths = [], [], []
        for policy in policies:
            name, store = policy.name, EpisodeStore(policy.episodes, create=False)
            headers = [store.read_header(own) for own in store.ids() if own.startswith(policy.prefix)][:episodes]
            seeds = [header.seed for header in headers if header.seed is not None]
            known = {episode.seed for episode in self.data.episodes}
            if missing := [seed for seed in seeds if seed not in known]:
                raise UserError(
                    f"{policy.name} was evaluated from seed {missing[0]}, which no held-out episode of "
                    f"{self.folder.path} begins with; rank policies on the evaluation seeds of the run that the "
                    "world model learnt from"
                )
            imagined = self._imagined(policy, seeds, execution, gate)
            ranked.append(
                RankedPolicy(
                    name,
                    np.array([header.success is True for header in headers]),
                    np.array([own["success"] for own in imagined]),
                    np.array([own["score"] for own in imagined]),
                )
            )
            scores += [own["score"] for own in imagined]
            truths += [own["truth"] for own in imagined]
        judged = judge_successes(np.array(scores), np.array(truths), self.model.config.heads.success_threshold)
        return {**rank_policies(ranked), "reward": judged}

    def _imagined(
        self, policy: JudgedPolicy, seeds: Sequence[int], execution: ExecutionConfig, gate: GateConfig
    ) -> list[dict[str, Any]]:
        """Imagined episodes of a policy, each with its score and with what its actions do in the simulator; cell by
        cell, kept in the folder.
        """
        folder = self.folder.path / "ranking-model"
        store = EpisodeStore(folder / "episodes")
        own, model = self.folder, self.folder.model
        world = ImaginedWorldConfig(model, own.held_out, own.held_out_cache, execution, gate)
        worker: ImaginationWorker | None = None
        results = []
        for seed in seeds:
            episode_id = f"{policy.name}-{seed}"
            file = folder / f"{episode_id}.json"
            if not file.exists():
                worker = worker or ImaginationWorker(world)
                episode = worker.imagine(RolloutJob(episode_id, store.path, self.task.env, (seed,), policy.folder))
                if episode_id not in store:
                    store.add(episode)
                _, truth, _ = self.truth.replay(seed, episode.action_sent, _HOLD_STEPS)
                result = {"success": episode.success is True, "score": worker.highest_success, "truth": truth}
                write_atomic(file, json.dumps(result).encode())
            with reading(file, "remove it to judge this attempt anew"):
                results.append(read_json(file))
        return results

    def _positions(self, cache: FrameCache, name: str) -> Float32Array:
        file = self._instruments.probe / f"{name}.npy"
        if file.exists():
            with reading(file, "remove it to replay the episodes anew"):
                known: Float32Array = np.load(file, allow_pickle=False)
            if len(known) == cache.total_frames:
                return known
        positions = true_positions(cache, self.truth)
        self._instruments.probe.mkdir(exist_ok=True)
        np.save(file, positions)
        return positions
