"""Puts a practice run together from its config and carries it out: used by ``demo`` and ``train``."""

import argparse
import functools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_rl.cli.run_config import CONFIGS, RunConfig
from vla_rl.core.config import load_config
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.training.run_folder import RunFolder

if TYPE_CHECKING:
    from vla_rl.algorithms.base import Algorithm
    from vla_rl.data.cache import FrameCache


def add_run_arguments(parser: argparse.ArgumentParser, config: str, out: str) -> None:
    """The arguments of every verb that makes a run folder."""
    names = ", ".join(sorted(file.stem for file in CONFIGS.glob("*.yaml")))
    parser.add_argument("--config", default=config, help=f"a YAML file, or one of {names} (default: {config})")
    parser.add_argument("--seed", type=int, help="seed of the run (default: the config's)")
    parser.add_argument("--out", type=Path, default=Path(out), help=f"the run folder to make (default: {out})")
    parser.add_argument("--resume", type=Path, metavar="RUN_DIR", help="go on with a run; needs nothing else")
    parser.add_argument(
        "--from", dest="start", type=Path, metavar="RUN_DIR", help="share demonstrations and supervised policy of a run"
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="changes to the config")


def open_run(arguments: argparse.Namespace) -> tuple[RunFolder, RunConfig]:
    """The run folder that the arguments name, made or found, and its config.

    Raises:
        UserError: for arguments that contradict each other, or a bad config.
    """
    if arguments.resume:
        if arguments.overrides or arguments.seed is not None or arguments.start:
            raise UserError("--resume goes on with the run's own config; leave --seed, --from and overrides out")
        return RunFolder.open(arguments.resume, RunConfig)
    overrides = list(arguments.overrides)
    if arguments.seed is not None:
        overrides.append(f"seed={arguments.seed}")
    config = load_config(RunConfig, config_file(arguments.config), overrides)
    start = _check_start(arguments.start, config) if arguments.start else None
    folder = RunFolder.create(arguments.out, config)
    if start:
        _share_start(start, folder)
    return folder, config


def config_file(name: str) -> Path:
    """A config by path, or by name from the ones that come with the package.

    Raises:
        UserError: if there is neither.
    """
    if Path(name).suffix in (".yaml", ".yml"):
        return Path(name)
    file = CONFIGS / f"{name}.yaml"
    if not file.exists():
        raise UserError(
            f"there is no config {name!r}.{did_you_mean(name, [path.stem for path in CONFIGS.glob('*.yaml')])}"
        )
    return file


def practise(folder: RunFolder, config: RunConfig) -> dict[str, Any]:
    """Carry out a run, or what is left of it, and build its report. Returns the summary."""
    import torch

    from vla_rl.cli.benchmarks.machine import describe_machine
    from vla_rl.cli.rollouts import SimulatorWorker, make_env
    from vla_rl.report.html import build_report
    from vla_rl.report.sinks import JsonlSink, TensorBoardSink, read_records
    from vla_rl.training.checkpoint import newest_step
    from vla_rl.training.rounds import PracticeRun
    from vla_rl.training.workers import RolloutPool

    torch.set_num_threads(config.torch_threads)
    make_env(config.task).close()  # a wrong task is found here, before any worker starts
    with (
        folder,
        RolloutPool(functools.partial(SimulatorWorker, config), config.workers) as pool,
        JsonlSink(folder.metrics_file) as metrics,
        TensorBoardSink(folder.path / "tensorboard") as board,
    ):
        for sink in (metrics, board):
            sink.truncate_after(newest_step(folder.checkpoints))
        published = {(record["kind"], record["round"]) for record in read_records(folder.metrics_file)}
        described = {"task": config.task.env, "algorithm": config.algorithm, "seed": config.seed}
        folder.write_summary({**folder.read_summary(), **described, "machine": describe_machine()})
        run = PracticeRun(
            folder,
            config.budget,
            config.seed,
            pool,
            supervised=functools.partial(supervised_learner, config),
            practised=functools.partial(practised_learner, config),
            subscribers=[metrics, board],
            published=published,
            takeover=config.takeover.enabled,
        )
        summary = run.run()
    build_report(folder.path)
    return summary


def supervised_learner(config: RunConfig, cache: "FrameCache") -> "Algorithm":
    """Behaviour cloning of a fresh policy on the demonstrations in the cache; its statistics are theirs."""
    import torch

    from vla_rl.algorithms.registry import make_algorithm
    from vla_rl.algorithms.seeds import derived_seed
    from vla_rl.policies.flow_vla import FlowVLA, PolicySpec
    from vla_rl.policies.normalization import Statistics

    episode = cache.episodes[0]
    spec = PolicySpec(
        env_id=config.task.env,
        cameras=tuple(episode.cameras),
        image_size=next(iter(episode.cameras.values())),
        state_dim=episode.state_dim,
        action_dim=episode.action_dim,
        control_hz=episode.control_hz,
    )
    statistics = Statistics.from_arrays(cache.state, cache.action, config.execution.discrete_dims)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(config.seed, "policy weights"))
        model = FlowVLA(config.policy, spec, statistics)
    return make_algorithm("sft", config.supervised, model, cache, config.seed)


def practised_learner(config: RunConfig, cache: "FrameCache", supervised: Path) -> "Algorithm":
    """The configured algorithm, starting from the supervised policy."""
    from vla_rl.algorithms.registry import make_algorithm
    from vla_rl.policies.flow_vla import load_policy

    model, _ = load_policy(supervised)
    return make_algorithm(config.algorithm, config.learning, model, cache, config.seed)


def _check_start(path: Path, config: RunConfig) -> RunFolder:
    """The run that another one is to start from.

    Raises:
        UserError: if its demonstrations or its supervised policy do not fit the config.
    """
    source, found = RunFolder.open(path, RunConfig)
    if not source.policy_exists(0):
        raise UserError(f"{path} has no supervised policy yet; let it finish its first stages")
    for name in ("task", "policy", "supervised"):
        if getattr(found, name) != getattr(config, name):
            raise UserError(f"{path} was made with {getattr(found, name)}, asked for is {getattr(config, name)}")
    for name in ("demonstrations", "supervised_steps"):
        theirs, ours = getattr(found.budget, name), getattr(config.budget, name)
        if theirs != ours:
            raise UserError(f"{path} was made with budget.{name}={theirs}, asked for is {ours}; they must be equal")
    return source


def _share_start(source: RunFolder, target: RunFolder) -> None:
    """Copy what a run had before its first round: demonstrations, supervised policy and its evaluation."""
    for store in ("episodes", "evaluation"):
        (target.path / store / "episodes").mkdir(parents=True)
        shutil.copy(source.path / store / "store.json", target.path / store)
        for pattern in ("demo-*", "v0000-*"):
            for file in (source.path / store / "episodes").glob(pattern):
                shutil.copy(file, target.path / store / "episodes")
    shutil.copytree(source.policy(0), target.policy(0))
