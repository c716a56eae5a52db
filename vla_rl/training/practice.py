"""Puts a practice run together from its config and carries it out: used by ``demo`` and ``train``."""

import functools
import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vla_rl.acting.demonstrations import bring_demonstrations, check_demonstrations
from vla_rl.acting.task import open_robot, spec_of_robot, warn_of_assumptions
from vla_rl.algorithms.base import Algorithm
from vla_rl.algorithms.sampling import derived_seed
from vla_rl.core.capabilities import alternatives, of_interface, require
from vla_rl.core.config import config_to_dict, flatten
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.processes import learner_threads
from vla_rl.core.protocols import Subscriber
from vla_rl.core.registry import find
from vla_rl.data.cache import FrameCache
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.statistics import data_statistics, scale_notes
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.strategies import find_strategy
from vla_rl.policies.folders import load_model, policy_class
from vla_rl.policies.proxy import ProxyConfig
from vla_rl.policies.proxy.base import open_base
from vla_rl.training.algorithms import check_base, find_algorithm, make_algorithm
from vla_rl.training.config import FULL_PRECISION, RunConfig
from vla_rl.training.ranks import rank_and_count
from vla_rl.training.records import open_records
from vla_rl.training.simulator import SimulatorWorker
from vla_rl.training.workers import RolloutPool, Rollouts

logger = logging.getLogger(__name__)


def create_run(path: Path, config: RunConfig, start: Path | None = None) -> tuple[RunFolder, RunConfig, PolicySpec]:
    """Make a run folder around a config. It shares demonstrations and supervised policy of the run ``start``.

    Returns:
        The folder, the config with absolute paths, and the policy's interface.

    Raises:
        UserError: For a bad config, a folder that holds a run, or a start that differs. Nothing is written.
    """
    if config.task.demonstrations is not None:  # a resumed run may be started from another folder
        absolute = str(Path(config.task.demonstrations).expanduser().absolute())
        config = replace(config, task=replace(config.task, demonstrations=absolute))
    source = _check_start(start, config) if start else None
    spec = check_config(config, has_demonstrations=source is not None, asks_base=True)
    judged, executed = config.learning.chunk_ticks, config.execution.execute_ticks
    if judged not in (0, executed):  # strategies that plan more often work with it
        logger.warning(
            "algorithm=%s judges %d actions of a chunk as one (learning.*.chunk_ticks), and execution.execute_ticks is "
            "%d. Set both alike, or it does not judge what is executed",
            *(config.algorithm, judged, executed),
        )
    for env_id in config.task.envs:
        with closing(open_robot(config.task, env_id)) as robot:
            warn_of_assumptions(robot, env_id)
    return RunFolder.create(path, config, source), config, spec


def check_config(config: RunConfig, has_demonstrations: bool = False, asks_base: bool = False) -> PolicySpec:
    """Build once whatever shows only then that a config is wrong: task, expert, supervisor, gate, strategy, policy.

    Returns the policy's interface. Without an expert, the run must have its demonstrations already. With ``asks_base``,
    a base policy plans a chunk, see `vla_rl.policies.proxy.base.FrozenBase.check`.

    Raises:
        UserError: for what cannot be built.
    """
    if (count := rank_and_count()[1]) > 1:
        raise UserError(
            f"torchrun started {count} processes. Only finetune shares its batches. Practice in one process"
        )
    brought, budget = config.task.demonstrations, config.budget
    if not (has_demonstrations or brought or budget.demonstrations):
        raise ConfigError(
            "there is nothing to start from: ask the task's expert (budget.demonstrations=40) or bring demonstrations "
            "(task.demonstrations=PATH). Or start from a run that has a policy (--from RUN_DIR)"
        )
    for name in (config.device, config.rollout_device):
        check_device(name)
    worker = SimulatorWorker(config)
    try:
        worker.check(
            demonstrates=not (has_demonstrations or brought),
            supervises=config.takeover.enabled and budget.rounds * budget.episodes_per_round > 0,
        )
        if brought and not has_demonstrations:
            check_demonstrations(Path(brought), worker.specs)
        policy = policy_class(config.policy.kind)
        policy.check(config.policy, worker.spec)
        _require_parts(config, policy.provides(config.policy, worker.spec) | of_interface(worker.spec))
        delay_ticks = config.latency.usual_ticks(worker.spec.control_hz)
        prefix_max = int(getattr(config.policy, "prefix_max", 0))
        config.execution.check_fit(policy.planned(config.policy, worker.spec), prefix_max, delay_ticks)
        on_meta_device = functools.partial(policy.on_meta_device, config.policy, worker.spec)
        find_algorithm(config.algorithm).check_fit(config.learning, on_meta_device)
        if asks_base and isinstance(config.policy, ProxyConfig):
            open_base(config.policy.base).check(worker.observe())
    finally:
        worker.close()
    return worker.spec


def can_compare(algorithm: str) -> bool:
    """Return whether an algorithm makes a critic or a residual, with and without which a policy can act."""
    return find_algorithm(algorithm).selector is not Algorithm.selector


def _require_parts(config: RunConfig, policy: frozenset[str]) -> None:
    """Refuse a strategy, exploration or an algorithm whose requirements policy and run do not meet."""
    check_base(config.algorithm, policy)
    if config.budget.compare_episodes and not can_compare(config.algorithm):
        raise ConfigError(
            f"budget.compare_episodes compares a policy with and without its critic and residual, and "
            f"algorithm={config.algorithm} makes neither. Set budget.compare_episodes=0"
        )
    name, budget, strategy = config.algorithm, config.budget, find_strategy(config.execution.strategy)
    others = alternatives("strategies", "execution.strategy")
    require(f"execution.strategy={config.execution.strategy}", strategy.requires, policy, others)
    in_torch = config.rollout_precision == FULL_PRECISION
    if config.exploration:
        moved = policy if in_torch else policy - {"offsets"}
        require(f"exploration={config.exploration:g}", frozenset({"offsets"}), moved)
    explores = config.exploration and not 0 < budget.episodes_per_round <= budget.check_episodes
    of_run = {"exploration": explores, "newest_policy": not budget.staleness, "torch_draws": in_torch}
    provides = policy | strategy.provides | {word for word, is_met in of_run.items() if is_met}
    require(
        f"algorithm={name}",
        find_algorithm(name).required(config.learning),
        provides,
        alternatives("algorithms", "algorithm"),
    )


def check_device(name: str) -> None:
    """Raises ConfigError for a device that torch cannot use."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"the device {name!r} cannot be used: {str(error).splitlines()[0]}") from error


def run_practice(
    folder: RunFolder, config: RunConfig, spec: PolicySpec, watching: Sequence[Subscriber] = ()
) -> dict[str, Any]:
    """Carry out a run, or what is left of it, and build its report. Returns the summary.

    ``watching`` get every metric, beside the sinks of the run folder.
    """
    from vla_rl.training.rounds import PracticeRun

    playing = config.workers if config.budget.staleness else 0
    torch.set_num_threads(learner_threads(config.torch_threads, playing))
    described = {"task": ", ".join(config.task.envs), "algorithm": config.algorithm, "seed": config.seed}
    with (
        open_records(folder, described, config.task, config.sinks, watching) as records,
        make_pool(config, folder.path) as pool,
    ):
        PracticeRun(folder, config, spec, pool, records).run()
    return folder.read_summary()


def import_demonstrations(config: RunConfig, folder: RunFolder, store: EpisodeStore) -> bool:
    """Copy the demonstrations that a config names into its store, once; returns whether any were missing.

    Raises:
        UserError: If there are none, or they do not fit a task.
    """
    if folder.policy_exists(0):  # the demonstrations came with it
        return False
    specs, grippers, bounds = {}, {}, {}
    for env_id in config.task.envs:
        robot = open_robot(config.task, env_id)
        specs[env_id] = spec_of_robot(env_id, robot)
        grippers[env_id] = robot.actions.gripper_dims
        bounds[env_id] = robot.actions.low, robot.actions.high
        robot.close()
    source = Path(config.task.demonstrations or "")
    most, speed = config.budget.demonstrations, config.task.demonstration_speed
    return bring_demonstrations(source, folder.path, store, specs, most, speed, grippers, bounds)


def make_pool(config: RunConfig, run: Path | None = None) -> Rollouts:
    """Return the rollout workers of a run, where its config wants them. Those of its practice know its folder."""
    build = functools.partial(SimulatorWorker, config, run=run)
    if config.ray is not None:
        cluster: Rollouts = find("rollouts", "ray")(build, config.workers, config.ray)
        return cluster
    return RolloutPool(build, config.workers)


def supervised_learner(config: RunConfig, spec: PolicySpec, cache: FrameCache) -> Algorithm:
    """Behavior cloning of a fresh policy on the demonstrations in the cache; its statistics are theirs."""
    statistics = data_statistics(cache, config.execution.discrete_dims, config.execution.execute_ticks)
    for sentence in scale_notes(cache, statistics):
        logger.info("%s", sentence)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(config.seed, "policy weights"))
        model = policy_class(config.policy.kind).build(config.policy, spec, statistics)
    actor, budget = config.supervised.actor, config.budget
    stretched = replace(actor, decay_steps=actor.decay_steps * budget.first_steps // budget.supervised_steps)
    learning = replace(config.supervised, actor=stretched)
    return make_algorithm("sft", learning, model.to(config.device), cache, config.seed)


def practice_learner(config: RunConfig, spec: PolicySpec, cache: FrameCache, supervised: Path) -> Algorithm:
    """Return the configured algorithm, starting from the supervised policy."""
    model, _ = load_model(supervised, expected=spec)
    return make_algorithm(config.algorithm, config.learning, model.to(config.device), cache, config.seed)


def learner_of_run(
    run: Path,
    algorithm: str | None = None,
    learning: dict[str, Any] | None = None,
    policy: Path | None = None,
) -> tuple[Algorithm, RunConfig, PolicySpec]:
    """Build the algorithm of a run on all of its episodes, as in its first round, to look into it.

    The run itself stays unchanged.

    Args:
        run: Its folder.
        algorithm, learning: Another algorithm than the run's, and options of it beside its defaults.
        policy: The folder of another policy to begin with than the run's supervised one.

    Raises:
        UserError: If there is no such run, or it has no supervised policy yet.
    """
    folder, config = RunFolder.open(run, RunConfig)
    if not folder.policy_exists(0):
        raise UserError(f"{run} has no supervised policy yet; let it finish its first stages")
    if algorithm is not None:
        config = replace(
            config, algorithm=algorithm, learning=find_algorithm(algorithm).config_class(**(learning or {}))
        )
    cache = FrameCache(EpisodeStore(folder.episodes, create=False), folder.cache)
    cache.refresh()
    spec = check_config(config, has_demonstrations=True)
    learner = practice_learner(config, spec, cache, policy or folder.policy(0))
    learner.begin_round(cache, 1)
    return learner, config, spec


def _check_start(path: Path, config: RunConfig) -> RunFolder:
    """Return the run that another one is to start from.

    Raises:
        UserError: if its demonstrations or its supervised policy do not fit the config.
    """
    source, found = RunFolder.open(path, RunConfig)
    if not source.policy_exists(0):
        raise UserError(f"{path} has no supervised policy yet; let it finish its first stages")
    steps = "gradient steps of supervision"
    ours, theirs = ({**flatten(config_to_dict(each)), steps: each.budget.first_steps} for each in (config, found))
    sections = ("task", "policy", "supervised", "execution", "latency", "gate")
    shared = [name for name in ours.keys() | theirs.keys() if name.partition(".")[0] in sections]
    shared += ["budget.demonstrations", "budget.supervised_steps", steps]
    of_demonstrations = {"budget.demonstrations", "task.demonstrations", steps}
    if not (config.budget.demonstrations or config.task.demonstrations):  # asked is for those of the other run
        shared = [name for name in shared if name not in of_demonstrations]
    for name in sorted(shared):
        if ours.get(name) != theirs.get(name):
            raise UserError(
                f"{path} was made with {name}={theirs.get(name)}, asked for is {ours.get(name)}; they must be equal"
            )
    return source
