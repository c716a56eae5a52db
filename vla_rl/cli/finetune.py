"""Fine-tune a policy, or make one, from logged episodes alone: outcomes and interventions, no simulator.

Data are episode stores, run folders, LeRobotDatasets v3 and ROS 2 bags, in any mixture; see docs/data.md.
--dry-run takes the data in and prints what each loss would see of it; --resume then trains.

Example: vla-rl finetune --data runs/demo logs/monday.mcap --mapping monday.yaml --out runs/monday
"""

import argparse
import functools
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_rl.algorithms.config import AlgorithmConfig
from vla_rl.cli.practice import config_file
from vla_rl.cli.records import open_records
from vla_rl.core.config import config_to_dict, load_config
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.files import fsync_directory, fsync_file, write_atomic
from vla_rl.core.types import PolicySpec
from vla_rl.data.retention import RetentionConfig
from vla_rl.data.sources import DataMapping
from vla_rl.policies.flow_vla.config import FlowVLAConfig
from vla_rl.training.run_folder import RunFolder

if TYPE_CHECKING:
    from vla_rl.algorithms.base import Algorithm
    from vla_rl.data.cache import FrameCache


@dataclass(frozen=True)
class FinetuneConfig:
    """Everything that decides a run of offline fine-tuning.

    Attributes:
        data: absolute paths of what is learnt from; copied into the run's own store before anything else.
        mapping: how LeRobotDatasets and bags become episodes.
        start: absolute path of the policy to fine-tune, copied into the run; empty: a new policy.
        policy: of a new policy, its architecture.
        discrete_dims: of a new policy, the action dimensions that have two levels (grippers).
        delta_dims: of a new policy, the action dimensions that are steps, of which 0 holds still.
        algorithm: what is done to the policy; a name that `vla_rl.algorithms` knows.
        learning: the options of all algorithms.
        steps: gradient steps.
        checkpoint_every: gradient steps between checkpoints; what a crash costs at most.
        retention: which episodes to hold if there are very many.
        seed: of initial weights and batches.
        torch_threads: threads of the learner.
        device: of the learner, as torch names it. Only on "cpu" does a resumed run equal an uninterrupted one.
    """

    data: tuple[str, ...] = ()
    mapping: DataMapping = field(default_factory=DataMapping)
    start: str = ""
    policy: FlowVLAConfig = field(default_factory=FlowVLAConfig)
    discrete_dims: tuple[int, ...] = ()
    delta_dims: tuple[int, ...] = ()
    algorithm: str = "habc"
    learning: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    steps: int = 1600
    checkpoint_every: int = 400
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    seed: int = 0
    torch_threads: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.checkpoint_every < 1 or self.torch_threads < 1 or self.seed < 0:
            raise ConfigError("steps, checkpoint_every and torch_threads must be at least 1, and seed at least 0")
        if self.learning.next_latent.weight:
            raise ConfigError("learning.next_latent needs the world model of a practice run; set its weight to 0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, nargs="+", metavar="PATH", help="stores, runs, LeRobotDatasets, bags")
    parser.add_argument("--mapping", type=Path, help="YAML with sections lerobot and bag: topics and columns")
    parser.add_argument("--policy", type=Path, metavar="FOLDER", help="the policy to start from (default: a new one)")
    parser.add_argument("--algorithm", help="what is done to the policy (default: habc)")
    parser.add_argument("--config", help="a YAML file, or a name (default: finetune)")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--out", type=Path, help="the run folder to make (default: runs/finetune)")
    parser.add_argument("--resume", type=Path, metavar="RUN_DIR", help="go on with a run; needs nothing else")
    parser.add_argument("--dry-run", action="store_true", help="take the data in, print what each loss sees, and stop")
    parser.add_argument(
        "--lerobot", type=Path, metavar="DIR", help="also export the data with its weights, for lerobot-train"
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="changes to the config")


def run(arguments: argparse.Namespace) -> int:
    folder, config = _open_run(arguments)
    if arguments.dry_run:
        print(_dry_run(folder, config))
        return 0
    _finetune(folder, config)
    if arguments.lerobot:
        print(f"dataset with weights: {_export(folder, config, arguments.lerobot)}")
    print(f"policy: {folder.policy(1)}\nreport: {folder.path / 'report.html'}")
    return 0


def _open_run(arguments: argparse.Namespace) -> tuple[RunFolder, FinetuneConfig]:
    """The run folder that the arguments name, made or found, and its config."""
    if arguments.resume:
        names = ("data", "mapping", "policy", "algorithm", "config", "seed", "out", "overrides")
        given = [name for name in names if getattr(arguments, name) not in (None, [])]
        if given:
            raise UserError(f"--resume goes on with the run's own config; leave {', '.join(given)} out")
        return RunFolder.open(arguments.resume, FinetuneConfig)
    # Changes to the config may stand right behind the paths.
    changes = [str(path) for path in arguments.data or [] if "=" in path.name and not path.exists()]
    paths = [path for path in arguments.data or [] if str(path) not in changes]
    if not paths:
        raise UserError("--data is missing: name the episode stores, runs, LeRobotDatasets or bags to learn from")
    overrides = [f"data={json.dumps([str(path.absolute()) for path in paths])}"]
    if arguments.mapping:
        mapping = config_to_dict(load_config(DataMapping, arguments.mapping))
        overrides.append(f"mapping={json.dumps(mapping)}")
    if arguments.policy:
        overrides.append(f"start={json.dumps(str(_policy_folder(arguments.policy).absolute()))}")
    overrides += [
        f"{name}={value}" for name in ("algorithm", "seed") if (value := getattr(arguments, name)) is not None
    ]
    config = load_config(
        FinetuneConfig, config_file(arguments.config or "finetune"), [*overrides, *changes, *arguments.overrides]
    )
    _check(config)
    return RunFolder.create(arguments.out or Path("runs/finetune"), config), config


def _check(config: FinetuneConfig) -> None:
    """Refuse what would fail only after the data has been read."""
    from vla_rl.algorithms.registry import find_algorithm

    for path in config.data:
        if not Path(path).exists():
            raise UserError(f"there is no {path}; --data names episode stores, runs, LeRobotDatasets or bags")
    algorithm = find_algorithm(config.algorithm)
    if not config.start:
        algorithm.check(config.policy)


def _policy_folder(path: Path) -> Path:
    """A policy's folder. Raises UserError with the newest version for a run folder."""
    if (path / "config.json").is_file():
        return path
    versions = RunFolder(path).policy_versions() if path.is_dir() else []
    hint = f"; did you mean {RunFolder(path).policy(versions[-1])}?" if versions else ""
    raise UserError(f"{path} holds no policy (no config.json){hint}")


def _take_in(folder: RunFolder, config: FinetuneConfig) -> None:
    """Copy the data and the policy to start from into the run, once; what a killed process had copied stays."""
    from vla_rl.data.sources import take_in
    from vla_rl.data.store import EpisodeStore

    done = folder.path / "data.json"
    if done.exists():
        return
    if config.start and not folder.policy_exists(0):
        unfinished = folder.policies / ".unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(config.start, unfinished)
        for file in unfinished.rglob("*"):
            fsync_directory(file) if file.is_dir() else fsync_file(file)
        unfinished.rename(folder.policy(0))
    store = EpisodeStore(folder.episodes)
    taken = {path: len(take_in(Path(path), store, config.mapping)) for path in config.data}
    if not len(store):
        raise UserError(f"there are no episodes in {', '.join(config.data)}")
    write_atomic(done, json.dumps({"episodes_taken": taken}, indent=1).encode())


def _dry_run(folder: RunFolder, config: FinetuneConfig) -> str:
    """What each loss would see, as text."""
    from vla_rl.training.offline import count_segments, format_segments, warn_of_segments

    with folder:
        _take_in(folder, config)
        cache = _open_cache(folder, config)
        learner = make_learner(folder, config, cache)
        learner.begin_round(cache, 1)
    rows = count_segments(cache, learner)
    warnings = [f"warning: {sentence}" for sentence in warn_of_segments(rows, cache, learner)]
    if any(entry.outcome == "unknown" for entry in rows):
        warnings.append(f"label them with: vla-rl label {folder.episodes}")
    after = f"nothing was trained; go on with: vla-rl finetune --resume {folder.path}"
    return "\n".join([format_segments(rows, learner), *warnings, after])


def _finetune(folder: RunFolder, config: FinetuneConfig) -> dict[str, Any]:
    """Carry out a run, or what is left of it, and build its report. Returns the summary."""
    import torch

    from vla_rl.training.offline import OfflineRun

    torch.set_num_threads(config.torch_threads)
    described = {"task": "offline fine-tuning", "algorithm": config.algorithm, "seed": config.seed}
    with open_records(folder, described) as records:
        _take_in(folder, config)
        make = functools.partial(make_learner, folder, config)
        OfflineRun(folder, config.steps, config.checkpoint_every, records, make, config.retention).run()
    return folder.read_summary()


def _export(folder: RunFolder, config: FinetuneConfig, out: Path) -> Path:
    """The run's data as a LeRobotDataset, with the weight that the trained critics give every frame beside it."""
    from vla_rl.data.lerobot_io import export_lerobot
    from vla_rl.policies.lerobot_plugin.weights import save_weights
    from vla_rl.training.checkpoint import load_newest_checkpoint
    from vla_rl.training.offline import frame_weights

    with folder:
        cache = _open_cache(folder, config)
        learner = make_learner(folder, config, cache)
        progress = load_newest_checkpoint(folder.checkpoints)
        if progress is not None:
            learner.load_state_dict(progress[1])
        learner.begin_round(cache, 1)
        export_lerobot(cache.store, out, [episode.episode_id for episode in cache.episodes])
        save_weights(out, frame_weights(cache, learner))
    return out


def _open_cache(folder: RunFolder, config: FinetuneConfig) -> "FrameCache":
    from vla_rl.data.cache import CacheConfig, FrameCache
    from vla_rl.data.store import EpisodeStore

    cache = FrameCache(EpisodeStore(folder.episodes), folder.cache, CacheConfig(config.retention))
    cache.refresh()
    return cache


def make_learner(folder: RunFolder, config: FinetuneConfig, cache: "FrameCache") -> "Algorithm":
    """The configured algorithm on the policy that the run starts from, or on a new one."""
    import torch

    from vla_rl.algorithms.registry import make_algorithm
    from vla_rl.algorithms.round_data import data_statistics
    from vla_rl.algorithms.seeds import derived_seed
    from vla_rl.policies.flow_vla import FlowVLA
    from vla_rl.policies.folders import load_model

    spec = spec_of(cache, config.delta_dims)
    if folder.policy_exists(0):
        model = load_model(folder.policy(0), data_statistics(cache, config.discrete_dims), spec)
        check_fit(model.spec, spec, Path(config.start))
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(config.seed, "policy weights"))
            model = FlowVLA(config.policy, spec, data_statistics(cache, config.discrete_dims))
    return make_algorithm(config.algorithm, config.learning, model.to(config.device), cache, config.seed)


def spec_of(cache: "FrameCache", delta_dims: tuple[int, ...] = ()) -> PolicySpec:
    """The interface of a policy for the episodes in a cache.

    Raises:
        UserError: if the cameras are of different sizes.
    """
    episode = cache.episodes[0]
    sizes = sorted(set(episode.cameras.values()))
    if len(sizes) != 1:
        raise UserError(f"a policy needs cameras of one size, the episodes have {sizes or 'none'}; scale them alike")
    return PolicySpec(
        env_id=" ".join(sorted({entry.env_id for entry in cache.episodes})),
        cameras=tuple(episode.cameras),
        image_size=sizes[0],
        state_dim=cache.state.shape[1],
        action_dim=cache.action.shape[1],
        control_hz=episode.control_hz,
        delta_dims=delta_dims,
    )


def check_fit(policy: PolicySpec, data: PolicySpec, path: Path) -> None:
    """Refuse to train a policy on data of another shape; the name of the environment may differ.

    Raises:
        UserError: with what differs.
    """
    for name in ("cameras", "image_size", "state_dim", "action_dim", "control_hz"):
        ours, theirs = getattr(policy, name), getattr(data, name)
        if name == "cameras":
            ours, theirs = sorted(ours), sorted(theirs)
        if ours != theirs:
            raise UserError(f"the policy {path} has {name}={ours}, the data has {theirs}; map the data, or start anew")
