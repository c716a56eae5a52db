"""Real episodes that an evaluation saves if the success of every start is predicted.

The prediction is the value of real outcomes at the first observation, learned from the run's practice episodes. The
bound is the saving of the best prediction per start. Outcomes of one start differ by the policy's own noise. Starts
explain a part r of the variance (the intraclass correlation), which saves at most 1 / (1 - r).
"""

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import outcomes
from benchmarks.cells import Cells
from benchmarks.runs import Cell
from benchmarks.statistics import control_variate
from vla_rl.algorithms.chunk_critic import ChunkCriticLearner
from vla_rl.algorithms.chunk_windows import windows
from vla_rl.algorithms.sampling import fold_of, torch_generator
from vla_rl.critics.outcome import OutcomeValueConfig, fit_outcome_value
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.base import flat_features
from vla_rl.training.config import RunConfig
from vla_rl.training.practice import learner_of_run
from vla_rl.training.simulator import SimulatorWorker
from vla_rl.training.workers import RolloutJob

METHOD = "residual_ppo"
STARTS, EACH = 64, 6
_FIRST_SEED = 555_000_000  # neither practice nor evaluation


def open_cells(out: Path) -> Cells:
    """The seeds that have been measured."""
    return Cells(out / "foretold", {"method": METHOD, "starts": STARTS, "each": EACH})


def measure_seeds(cells: Cells, out: Path, runs: Path, seeds: list[int]) -> None:
    """Measure each seed in its run of the outcomes' grid; what has been measured stays."""
    folder = runs / outcomes.open_cells(out).digest
    for seed in seeds:
        run = folder / Cell(outcomes.TASKS[0], seed, METHOD).name
        cells.once(str(seed), functools.partial(measure, run))


def keys(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What imagination.json gets of the cells: means over policies; nothing of none."""
    policies = [policy for cell in found for policy in cell["policies"]]
    if not policies:
        return {}
    names = {"real_episodes_saved_ratio": "saved", "real_episodes_saved_bound": "bound"}
    means = {key: float(np.mean([policy[name] for policy in policies])) for key, name in names.items()}
    return {**means, "foretold_policies": policies}


def table(result: dict[str, Any]) -> str:
    """Markdown: one sentence."""
    policies = result["foretold_policies"]
    saved, bounds = ([policy[name] for policy in policies] for name in ("saved", "bound"))
    return (
        f"A prediction per start by the value of real outcomes saves {result['real_episodes_saved_ratio']:.2f} times "
        f"the real episodes of an evaluation ({min(saved):.2f} to {max(saved):.2f} over {len(policies)} policies). The "
        f"best prediction per start could save {result['real_episodes_saved_bound']:.2f} times ({min(bounds):.2f} to "
        f"{max(bounds):.2f})."
    )


def measure(run: Path) -> dict[str, Any]:
    """The supervised and the newest policy of a run.

    Args:
        run: its folder.

    Returns:
        ``policies``: of each ``success``, ``saved`` by `control_variate` over its evaluation episodes with the practice
        episodes' starts as further ones, and ``bound``.
    """
    torch.set_num_threads(1)
    folder, config = RunFolder.open(run, RunConfig)
    learner, _, _ = learner_of_run(run, ChunkCriticLearner.name)
    assert isinstance(learner, ChunkCriticLearner)
    versions = folder.policy_versions()
    found = []
    foretell = _Forecast(learner, config.seed)
    evaluated = EpisodeStore(folder.evaluation, create=False)
    for version in (versions[0], versions[-1]):
        names = [name for name in evaluated.ids() if name.startswith(f"v{version:04d}-")]
        outcome = np.array([evaluated.read_header(name).success is True for name in names], dtype=np.float64)
        estimate = control_variate(outcome, foretell.at_starts(evaluated, names), foretell.of_practice())
        bound = 1 / (1 - _explained_by_starts(config, folder.policy(version)))
        found.append(
            {
                "name": f"{run.name} version {version}",
                "success": float(outcome.mean()),
                "saved": estimate.saved,
                "bound": bound,
            }
        )
    return {"policies": found}


class _Forecast:
    """The chance of success at first observations, by the networks that have not seen the episode end."""

    def __init__(self, learner: ChunkCriticLearner, seed: int) -> None:
        self._model, self._learner, self._folds = learner.model, learner, learner.config.critic.members
        cache = learner.data.cache
        frames, label = windows(learner.data, learner.config.critic.chunk_ticks, learner.config.discount)
        rows = learner.every_row()
        self._size = rows.shape[1] - 2 * learner.model.spec.action_dim  # features and tick
        fold = self._fold([cache.episodes[index].episode_id for index in cache.episode_index[frames]])
        torch.manual_seed(seed)
        self._value, _ = fit_outcome_value(
            rows[torch.from_numpy(frames), : self._size],
            torch.from_numpy(label),
            fold,
            self._folds,
            OutcomeValueConfig(),
            torch_generator(seed, "foretold", 0),
        )

    @torch.no_grad()
    def at_starts(self, store: EpisodeStore, names: list[str]) -> NDArray[np.float64]:
        """Of other episodes; each by one of the networks, as those of practice are."""
        episodes = [store.read(name) for name in names]
        images = {
            camera: torch.from_numpy(np.stack([episode.images[camera][0] for episode in episodes]))
            for camera in self._model.spec.cameras
        }
        state = torch.from_numpy(np.stack([episode.state[0] for episode in episodes]))
        features = flat_features(
            *self._model.features(images, state, self._model.tokenize([episode.task for episode in episodes]))
        )
        rows = torch.cat([features, torch.zeros(len(names), 1)], 1)
        return self._chance(rows, names)

    @torch.no_grad()
    def of_practice(self) -> NDArray[np.float64]:
        """Of the policy's own episodes in the store."""
        own = [episode for episode in self._learner.data.cache.episodes if episode.policy_version >= 0]
        rows = self._learner.every_row()[[episode.start for episode in own], : self._size]
        return self._chance(rows, [episode.episode_id for episode in own])

    def _chance(self, rows: torch.Tensor, names: list[str]) -> NDArray[np.float64]:
        return self._value(rows, self._fold(names)).double().numpy()

    def _fold(self, names: list[str]) -> torch.Tensor:
        return torch.tensor([fold_of(name, self._folds) for name in names])


def _explained_by_starts(config: RunConfig, policy: Path) -> float:
    """The intraclass correlation by start, of outcomes that differ in the policy's noise alone."""
    with tempfile.TemporaryDirectory() as folder:
        worker, store = SimulatorWorker(config), EpisodeStore(Path(folder))
        jobs = [
            RolloutJob(
                f"s{start:03d}-{again}",
                store.path,
                config.task.env,
                (_FIRST_SEED + start,),
                policy,
                noise_seed=EACH * start + again,
                pictures=False,
            )
            for start in range(STARTS)
            for again in range(EACH)
        ]
        list(worker.run(jobs))
        worker.close()
        won = np.array([store.read_header(job.episode_id).success is True for job in jobs], dtype=np.float64)
    return intraclass_correlation(won.reshape(STARTS, EACH))


def intraclass_correlation(groups: NDArray[np.float64]) -> float:
    """Return the part of the variance of [G, K] numbers that their groups explain, at least 0. One-way analysis of
    variance (Shrout and Fleiss 1979, ICC(1, 1)).
    """
    within = float(groups.var(1, ddof=1).mean())
    between = max(0.0, float(groups.mean(1).var(ddof=1)) - within / groups.shape[1])
    return between / (between + within) if within else 0.0
