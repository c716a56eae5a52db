"""Adversaries of the success detector: their reward is its probability at the end of an episode.

Both begin with the supervised policy and play one round of episodes after the other.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.types import ActionChunk, Float32Array, Observation

if TYPE_CHECKING:
    from vla_rl.data.run_folder import RunFolder
    from vla_rl.training.run import Run

_ELITE = 4  # best episodes of a round, from which the next search distribution is fitted
_STD = 0.4  # of the first search distribution, in standard deviations of the actions
_THIRD_TICKS = 40
_EXPLORATION = 0.15  # of residual PPO, as in its own runs


class Adversary(Protocol):
    """Plays rounds of `episodes` each, and learns from its rewards."""

    episodes: int

    def __init__(self, run: "Run", folder: "RunFolder", seed: int) -> None: ...

    def play(self, number: int, starts: Mapping[str, int]) -> None:
        """Play those episodes of a round that are not in the store yet, each from the start of a seed."""
        ...

    def learn(self, number: int, rewards: Mapping[str, float]) -> None:
        """Prepare the next round, from the reward of each episode of this one."""
        ...

    def close(self) -> None: ...


class Moved:
    """A policy whose actions are moved by an offset, float32 [3, A], for each third of an episode."""

    version = 0

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.n_obs_steps = getattr(policy, "n_obs_steps", 1)
        self.offset: NDArray[np.float64] = np.zeros((3, 1))

    def reset(self, seed: int) -> None:
        self._policy.reset(seed)

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        chunk = self._policy.infer(observation, committed)
        ticks = observation.tick + np.arange(len(chunk.actions))
        offset = self.offset[np.minimum(ticks // _THIRD_TICKS, 2)]
        return ActionChunk((chunk.actions + offset).astype(np.float32), chunk.start_tick, chunk.chunk_id, self.version)


class Search:
    """The cross-entropy method (Rubinstein 1999): searches an offset of the actions for each third of an episode."""

    episodes = 16

    def __init__(self, run: "Run", folder: "RunFolder", seed: int) -> None:
        from vla_rl.data.store import EpisodeStore
        from vla_rl.training.simulator import SimulatorWorker

        self._run, self._folder, self._store = run, folder, EpisodeStore(folder.episodes)
        self._policy = Moved(run.policy(0))
        self._worker = SimulatorWorker(run.config, policy=self._policy)
        first = [name for name in self._store.ids() if name.startswith("round001")][:20]
        self._scale = np.concatenate([self._store.read(name).action_sent for name in first]).std(axis=0)
        shape = (3, len(self._scale))
        self._random, self._mean, self._std = np.random.default_rng(seed), np.zeros(shape), np.full(shape, _STD)

    def play(self, number: int, starts: Mapping[str, int]) -> None:
        from vla_rl.training.workers import RolloutJob

        del number
        shape = (len(starts), *self._mean.shape)
        self._offsets = self._mean + self._std * self._random.standard_normal(shape)
        task, policy = self._run.config.task.env, self._folder.policy(0)
        for offset, (name, seed) in zip(self._offsets, starts.items(), strict=True):
            self._policy.offset = offset * self._scale
            if name not in self._store:
                list(self._worker.run([RolloutJob(name, self._folder.episodes, task, (seed,), policy)]))

    def learn(self, number: int, rewards: Mapping[str, float]) -> None:
        del number
        elite = self._offsets[np.argsort(-np.array([*rewards.values()]), kind="stable")[:_ELITE]]
        self._mean, self._std = elite.mean(axis=0), elite.std(axis=0) + 0.05

    def close(self) -> None:
        self._worker.close()


class ResidualPPOAdversary:
    """Residual PPO (`vla_rl_baselines.residual_ppo`): trains a residual of the supervised policy, on policy."""

    episodes = 50

    def __init__(self, run: "Run", folder: "RunFolder", seed: int) -> None:
        from vla_rl_baselines.residual_ppo import ResidualPPO, ResidualPPOLearning

        from vla_rl.data.cache import FrameCache
        from vla_rl.data.store import EpisodeStore
        from vla_rl.policies.folders import load_model
        from vla_rl.training.checkpoint import load_newest_checkpoint
        from vla_rl.training.simulator import SimulatorWorker

        class OnProbability(ResidualPPO):
            rewards: dict[str, float]

            def outcome(self, episode_id: str, label: float) -> float | None:
                del label
                return self.rewards.get(episode_id)

        config = replace(run.config, exploration=_EXPLORATION)
        self._task, self._folder, self._worker = config.task.env, folder, SimulatorWorker(config)
        self._store = EpisodeStore(folder.episodes)
        self._cache = FrameCache(self._store, folder.cache)
        self._cache.refresh()
        learning = ResidualPPOLearning()
        learning = replace(learning, ppo=replace(learning.ppo, chunk_ticks=config.execution.execute_ticks))
        self._learner = OnProbability(learning, load_model(folder.policy(0))[0], self._cache, seed)
        self._learner.rewards, self._learned = {}, 0
        if (newest := load_newest_checkpoint(folder.checkpoints)) is not None:
            self._learned, state = newest
            self._learner.load_state_dict(state)

    def play(self, number: int, starts: Mapping[str, int]) -> None:
        from vla_rl.training.workers import RolloutJob

        policy, place = self._folder.policy(number - 2), self._folder.episodes
        jobs = [
            RolloutJob(name, place, self._task, (seed,), policy, collects=True)
            for name, seed in starts.items()
            if name not in self._store
        ]
        list(self._worker.run(jobs))

    def learn(self, number: int, rewards: Mapping[str, float]) -> None:
        from vla_rl.training.algorithms import save_learned
        from vla_rl.training.checkpoint import save_checkpoint

        self._learner.rewards.update(rewards)
        if number <= self._learned:
            return
        self._cache.refresh()
        self._learner.begin_round(self._cache, number)
        self._learner.update(0)
        save_learned(self._learner, self._folder.policy(number - 1), number - 1)
        save_checkpoint(self._folder.checkpoints, number, self._learner.state_dict())

    def close(self) -> None:
        self._worker.close()


ADVERSARIES: dict[str, type[Adversary]] = {"fooled": Search, "fooled_ppo": ResidualPPOAdversary}
"""By part of the benchmark."""
