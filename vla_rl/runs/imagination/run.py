"""Imagination inside a practice run: trains and refines the run's world model, measures how far it flatters the policy,
and adds imagined episodes to the run's store. Carries out what `world_model.coevolution` decides.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from robot_io.gate import GateConfig
from vla_rl.core.config import load_config
from vla_rl.core.errors import UserError
from vla_rl.core.progress import track
from vla_rl.data.cache import FrameCache
from vla_rl.data.episode_header import EpisodeHeader
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.runs.config import TaskConfig, world_preset
from vla_rl.runs.imagination.config import ImaginationConfig
from vla_rl.runs.imagination.near_success import collect_near_success, near_success_ratio
from vla_rl.runs.imagination.rollouts import ImaginationWorker, ImaginedWorldConfig
from vla_rl.runs.imagination.world_data import gather_episodes, open_cache
from vla_rl.runs.task import episode_limit, open_robot
from vla_rl.training.run_folder import RunFolder
from vla_rl.training.workers import RolloutJob, RolloutPool
from world_model.coevolution import CoEvolution, Ledger, LedgerEntry
from world_model.config import WorldModelConfig, WorldSpec
from world_model.model import load_world_model, save_world_model
from world_model.training import refine_world_model, train_world_model
from world_model.windows import spec_of

NEAR_SUCCESS_SEED = 700_000_000  # apart from those of practice and evaluation
_IMAGINED_SEED = 800_000_000


class RunImagination:
    """Implements `world_model.coevolution.Imagination` and `vla_rl.training.rounds.Imagination` for one run; everything
    lies under ``RUN_DIR/imagination``.

    Args:
        config: see `ImaginationConfig`.
        folder: the run's.
        task: its environment.
        execution: of the policy's chunks.
        gate: limits of the robot.
        workers: processes that imagine; 0: this one.
    """

    def __init__(
        self,
        config: ImaginationConfig,
        folder: RunFolder,
        task: TaskConfig,
        execution: ExecutionConfig,
        gate: GateConfig,
        workers: int,
    ) -> None:
        self.config, self._folder, self._task = config, folder, task
        self._execution, self._gate, self._workers = execution, gate, workers
        self.path = folder.path / "imagination"
        bound_s = config.coevolution.train_cpu_seconds
        changes = [f"training.cpu_seconds={bound_s}"] if bound_s else []
        self.world: WorldModelConfig = load_config(WorldModelConfig, world_preset(config.preset), changes)
        self.ledger = Ledger.open(self.path / "ledger.json")
        self.evolution = CoEvolution(config.coevolution, self, self.ledger)

    @property
    def restarts_policy(self) -> bool:
        """Whether each round's improvement starts from the supervised policy."""
        return self.evolution.restarts_policy

    def after_collection(self, round_number: int) -> dict[str, float]:
        """What the loop calls when a round's real episodes are in the store.

        Returns:
            numbers for the metrics; the ledger says more. Nothing if imagination is off.
        """
        if self.config.coevolution.mode == "off":
            return {}
        if self.ledger.of(0) is None:
            self.ledger.write(LedgerEntry(0, real_episodes=len(self._headers("demo-"))))
        headers = self._headers(f"round{round_number:03d}-")
        # Who was rescued would have failed: without these the real success would be that of the lucky ones.
        alone = [header.success is True and header.human_steps == 0 for header in headers]
        near = self.config.near_success_episodes if round_number == 1 else 0
        if near:
            collect_near_success(self._task, self._gate, EpisodeStore(self.path / "near"), near, NEAR_SUCCESS_SEED)
        ratio = near_success_ratio(self.path / "near") if (self.path / "near").exists() else 0.0
        spent = LedgerEntry(round_number, len(headers), near_success_episodes=near, near_success_ratio=ratio)
        return self.evolution.after_collection(spent, alone).numbers()

    def train(self, version: int) -> None:
        """See `Imagination.train`."""
        target = self._model(version)
        # Even for a model that stays as it is: imagined episodes begin where the newest real ones do.
        store = EpisodeStore(self.path / "episodes")
        sources = {"run": self._folder.episodes}
        if (self.path / "near").exists():
            sources["near"] = self.path / "near"
        gather_episodes(store, sources, self._task.env)
        if (target / "config.json").exists():
            return
        cache = open_cache(store.path, self.path / "cache")
        config = self.config.coevolution
        if version == 0 and self.config.begin_with:
            self._adopt(Path(self.config.begin_with), world_spec(self._task, cache), target)
        elif version == 0:
            train_world_model(self.world, world_spec(self._task, cache), cache, target)
        elif config.refine_steps:
            model, _ = load_world_model(self._model(version - 1))
            refine_world_model(model, version, cache, target, config.refine_steps)
        else:
            first, _ = load_world_model(self._model(0))
            own = replace(first.config, training=self.world.training)  # sizes may be those of `begin_with`
            train_world_model(own, first.spec, cache, target, version=version)

    def imagined_outcomes(self, round_number: int, version: int, episodes: int) -> Sequence[bool | None]:
        """See `Imagination.imagined_outcomes`. An episode without a seed cannot be begun again."""
        headers = self._headers(f"round{round_number:03d}-")[:episodes]
        seeds = {header.episode_id: header.seed for header in headers if header.seed is not None}
        store = EpisodeStore(self.path / "gap")
        world = replace(self._world(version), env=replace(self.config.env, horizon=0))
        self._run(world, store, round_number, seeds)
        return [store.read_header(name).success if name in seeds else None for name in (h.episode_id for h in headers)]

    def imagine(self, round_number: int, version: int, episodes: int) -> int:
        """See `Imagination.imagine`."""
        store = EpisodeStore(self._folder.episodes)
        first = _IMAGINED_SEED + round_number * 100_000
        jobs = {f"imagined{round_number:03d}-{index:05d}": first + index for index in range(episodes)}
        world = replace(self._world(version), env=self.config.env)
        self._run(world, store, round_number, jobs)
        return len(jobs)

    def _adopt(self, folder: Path, spec: WorldSpec, target: Path) -> None:
        """Begin with another's world model."""
        model, _ = load_world_model(folder)
        if not model.spec.fits(spec):
            found, needed = (
                f"{each.env_id} with {each.image_size} px of {', '.join(each.cameras)}, state and action "
                f"{[list(names.names) for names in each.dimensions]}"
                for each in (model.spec, spec)
            )
            raise UserError(
                f"imagination.begin_with: {folder} imagines {found}; this run needs {needed}, and the same actions and "
                "length of an episode"
            )
        save_world_model(target, model)

    def _run(self, world: ImaginedWorldConfig, store: EpisodeStore, round_number: int, seeds: dict[str, int]) -> None:
        policy = self._folder.policy(round_number - 1)
        jobs = [
            RolloutJob(name, store.path, self._task.env, (seed,), policy)
            for name, seed in seeds.items()
            if name not in store
        ]
        with RolloutPool(functools.partial(ImaginationWorker, world), self._workers) as pool:
            for _ in track(pool.run(jobs), "imagining", "episode", len(jobs)):
                pass

    def _headers(self, prefix: str) -> list[EpisodeHeader]:
        store = EpisodeStore(self._folder.episodes)
        return [store.read_header(name) for name in store.ids() if name.startswith(prefix)]

    def _model(self, version: int) -> Path:
        return self.path / f"model_{version:04d}"

    def _world(self, version: int) -> ImaginedWorldConfig:
        return ImaginedWorldConfig(
            self._model(version), self.path / "episodes", self.path / "cache", self._execution, self._gate
        )


def world_spec(task: TaskConfig, cache: FrameCache) -> WorldSpec:
    """The spec of a task's world model: what the episodes show, and the limits of the environment."""
    robot = open_robot(task)
    actions, limit = robot.actions, episode_limit(robot.env)
    assert limit is not None, "every environment of a task has a limit"
    robot.close()
    spec = spec_of(cache, limit, actions.low.tolist(), actions.high.tolist())
    return replace(spec, action_kind=actions.kind, gripper_dims=actions.gripper_dims)
