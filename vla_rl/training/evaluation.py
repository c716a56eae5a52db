"""Episodes of a policy on the held-out evaluation seeds, named by the key of everything that can change them."""

import functools
import inspect
import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from deploy_trt.runtime.probe import BackendName
from vla_rl.acting.attempt import share_not_finite
from vla_rl.acting.policy_folder import find_policy
from vla_rl.acting.task import env_creator
from vla_rl.core.cache_keys import cache_key, code_digest, package_versions
from vla_rl.core.progress import track
from vla_rl.core.registry import OUR_PACKAGES, find, required_packages
from vla_rl.core.types import PICTURED
from vla_rl.data.episode_header import EpisodeHeader
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.acting import ActingPolicy
from vla_rl.policies.best_of_n import BestOfN
from vla_rl.policies.checkpoint import save_policy
from vla_rl.policies.folders import load_policy
from vla_rl.report.run_files import PARTS
from vla_rl.report.statistics import wilson_interval
from vla_rl.training.config import RunConfig
from vla_rl.training.jobs import held_out_jobs, is_stored
from vla_rl.training.practice import make_pool
from vla_rl.training.simulator import SimulatorWorker
from vla_rl.training.workers import RolloutJob, RolloutPool, Rollouts

logger = logging.getLogger(__name__)
_LIBRARIES = ("torch", "numpy", "mujoco", "gymnasium", "lerobot", "transformers")


def acting_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of a run that decide how its policies act, as ingredients of a key."""
    return {
        "task": config.task,
        "task files": [Path(text) for text in _texts(config.task.kwargs) if text and Path(text).is_file()],
        "execution": config.execution,
        "latency": config.latency,
        "gate": config.gate,
        "takeover": config.takeover,
        "exploration": config.exploration,
        "precision": config.rollout_precision,
    }


def evaluation_key(config: RunConfig, policy: Path) -> str:
    """Return the key of a policy's evaluation episodes: files of the policy, settings, program and libraries.

    Critic, residual and corrector in the policy's folder are a part of it.
    """
    parts = [find("strategies", config.execution.strategy), find("policies", config.policy.kind)]
    parts += [env_creator(env_id) for env_id in config.task.envs]
    suites = {package for name in config.task.envs for package in required_packages("tasks", name)}
    found = (inspect.getmodule(part) for part in parts)
    packages = {module.__name__.partition(".")[0] for module in found if module is not None}
    return cache_key(
        {
            **acting_settings(config),
            "policy": policy,
            "device": config.rollout_device,
            "at once": config.environments_per_worker,
            "code": code_digest(*OUR_PACKAGES, *sorted(packages)),
            "libraries": package_versions(*_LIBRARIES, *sorted(suites)),
        }
    )


def evaluation_jobs(
    config: RunConfig, policy: Path, store: Path, episodes: int, collects: bool = False
) -> list[RolloutJob]:
    """Return the first episodes of the held-out evaluation seeds, each under every one of several tasks.

    Results of several policies and settings may share a store. With ``collects`` the policy acts as in practice, in
    ``config.rollout_precision`` and with exploration.
    """
    prefix = f"{'practice' if collects else 'evaluation'}-{evaluation_key(config, policy)}"
    return held_out_jobs(prefix, config.task.envs, store, policy, episodes, collects)


def with_pictures(jobs: Sequence[RolloutJob], store: EpisodeStore) -> list[RolloutJob]:
    """Return jobs whose episodes have the picture of every step. Episodes never change: one that the store has without
    them is played anew under another id.
    """
    lacking = (job.episode_id in store and not _is_pictured(job.episode_id, store) for job in jobs)
    return [
        replace(job, pictures=True, episode_id=f"{job.episode_id}-pictures" if lacks else job.episode_id)
        for job, lacks in zip(jobs, lacking, strict=True)
    ]


def _is_pictured(episode_id: str, store: EpisodeStore) -> bool:
    if PICTURED not in store.read_header(episode_id).extras:
        return True
    (pictured,) = store.recorded_columns(episode_id, f"extras/{PICTURED}")
    return bool(pictured.all())


def evaluate_parts(run: Path, version: int | None = None) -> dict[str, dict[str, Any]]:
    """Evaluate a practiced policy taken apart: without residual and critic, and with the residual alone.

    The seeds are those of its run's evaluation. The summary keeps both, and the report shows them beside the policy.

    Returns:
        Part, of `vla_rl.report.run_files.PARTS`, -> its entry in the summary. Empty for a policy without critic and
        residual. The policy with a residual and no critic has one part, the plain policy.

    Raises:
        UserError: If there is no such policy, or another process works on the run.
    """
    folder, config = RunFolder.open(run, RunConfig)
    found = find_policy(run, version)
    policy, number = load_policy(found.path), int(found.path.name.rpartition("_")[2])
    selector = policy.selector if isinstance(policy, ActingPolicy) else None
    if not isinstance(policy, ActingPolicy) or selector is None:
        return {}
    parts: dict[str, BestOfN | None] = {PARTS[0]: None}
    if selector.critic is not None and selector.residual is not None:
        single = replace(selector.config, num_samples=1, offset_std=0.0)
        parts[PARTS[1]] = BestOfN(None, single, selector.residual, selector.ticks)
    torch.set_num_threads(1)  # as rollout workers have, should there be none
    entries: dict[str, dict[str, Any]] = {}
    with folder, tempfile.TemporaryDirectory() as scratch, make_pool(config) as pool:
        for index, (name, part) in enumerate(parts.items()):
            path = Path(scratch, str(index))
            save_policy(path, policy.model, part, {"policy_version": number})
            jobs = evaluation_jobs(config, path, folder.evaluation, config.budget.evaluation_episodes)
            every = config.budget.evaluation_pictures == "every"
            headers = run_missing(pool, [replace(job, pictures=every) for job in jobs], name)
            entries[name] = {
                "round": number,
                "label": name,
                "control": name,
                **evaluation_entry(EpisodeStore(folder.evaluation), headers),
            }
        note_evaluations(folder, list(entries.values()))
    return entries


def note_evaluations(folder: RunFolder, entries: Sequence[dict[str, Any]]) -> bool:
    """Put evaluations into a run's summary, in place of those of the same rounds and controls.

    Returns:
        Whether anything changed.
    """
    summary = folder.read_summary()
    known = summary.get("evaluations", [])
    new = [(entry["round"], entry.get("control")) for entry in entries]
    others = [entry for entry in known if (entry["round"], entry.get("control")) not in new]
    summary["evaluations"] = sorted([*others, *entries], key=lambda entry: entry["round"])
    folder.write_summary(summary)
    return bool(summary["evaluations"] != known)


def shares_not_finite(store: EpisodeStore, episodes: Sequence[EpisodeHeader]) -> list[float]:
    """Return the share of the planned actions of each episode that are not finite."""
    columns = ("extras/chunk_id", "extras/gate_reasons")
    return [share_not_finite(*store.recorded_columns(episode.episode_id, *columns)) for episode in episodes]


def evaluation_entry(store: EpisodeStore, episodes: Sequence[EpisodeHeader]) -> dict[str, Any]:
    """Return what a run's summary holds of the outcomes of evaluation episodes."""
    shares = shares_not_finite(store, episodes)
    wrong = [_start(episode) for episode, share in zip(episodes, shares, strict=True) if share]
    if wrong:
        logger.warning("actions that are not finite in %d of %d episodes", len(wrong), len(episodes))
    lengths = [episode.length for episode in episodes if episode.success]
    return {
        "successes": len(lengths),
        "episodes": len(episodes),
        "mean_success_length": sum(lengths) / len(lengths) if lengths else None,
        "outcomes": {_start(episode): episode.success is True for episode in episodes},
        "not_finite": wrong,
    }


def _start(episode: EpisodeHeader) -> str:
    return f"{episode.env_id} {episode.seed}"


def compare_with_torch(
    run: Path, version: int | None, backend: BackendName, episodes: int, deployment: Path
) -> tuple[bool, str]:
    """Compare a deployment with the policy that it was exported from, on held-out seeds.

    Returns:
        Whether the 95 % intervals of success overlap, and both successes in words.
    """
    _, config = RunFolder.open(run, RunConfig)
    policies, outcomes = {"exported": deployment, "in torch": find_policy(run, version).path}, {}
    build = functools.partial(SimulatorWorker, config, backend=backend)
    with tempfile.TemporaryDirectory() as scratch, RolloutPool(build, workers=0) as pool:
        for name, policy in policies.items():
            jobs = evaluation_jobs(config, policy, Path(scratch) / name, episodes)
            outcomes[name] = sum(header.success is True for header in run_missing(pool, jobs, name))
    bounds = [wilson_interval(successes, episodes) for successes in outcomes.values()]
    passed = bounds[0][0] <= bounds[1][1] and bounds[1][0] <= bounds[0][1]
    shown = ", ".join(f"{name} {successes}/{episodes}" for name, successes in outcomes.items())
    return passed, f"{shown} (95 % intervals {'overlap' if passed else 'do not overlap'})"


def run_missing(pool: Rollouts, jobs: Sequence[RolloutJob], label: str = "") -> list[EpisodeHeader]:
    """Run the jobs whose episodes are not in their store yet; return the headers of all, in the order of the jobs."""
    stores = {job.store: EpisodeStore(job.store) for job in jobs}
    missing = [job for job in jobs if not is_stored(job, stores[job.store])]
    for _ in track(pool.run(missing), label, "episode", len(missing)):
        pass
    return [stores[job.store].read_header(job.episode_id) for job in jobs]


def _texts(value: Any) -> Iterator[str]:
    """Every text in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
