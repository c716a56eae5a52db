"""Offline fine-tuning put together: data taken into a run folder, the learner, the export of weights."""

import functools
import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vla_rl.acting.policy_folder import find_policy
from vla_rl.algorithms.base import Algorithm
from vla_rl.algorithms.sampling import derived_seed
from vla_rl.core.cache_keys import cache_key
from vla_rl.core.config import fill_parts, part
from vla_rl.core.dimensions import match_both
from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic
from vla_rl.core.metadata import critic_of, weights_in
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.processes import learner_threads
from vla_rl.core.signals import deferred_signals
from vla_rl.core.validation import check_ranges
from vla_rl.data.cache import FrameCache, RetentionConfig
from vla_rl.data.cache_files import common_layout
from vla_rl.data.episode_header import EpisodeHeader, Survey
from vla_rl.data.health import check_episodes
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.sources import DataMapping, import_source, survey
from vla_rl.data.statistics import data_statistics, spec_of
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.policies.base import PolicyConfig
from vla_rl.policies.folders import load_model, policy_class
from vla_rl.policies.lerobot_adapter import LeRobotModel, LeRobotPolicyConfig, is_lerobots_own
from vla_rl.policies.trainable import TrainablePolicy
from vla_rl.training.algorithms import find_algorithm, make_algorithm, require_of_policy
from vla_rl.training.checkpoint import load_newest_checkpoint
from vla_rl.training.picture_cost import gradient_step_s, large_pictures
from vla_rl.training.ranks import process_group
from vla_rl.training.records import open_records

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinetuneConfig:
    """Everything that decides a run of offline fine-tuning.

    Attributes:
        data: absolute paths of what is learned from; copied into the run's own store before anything else.
        mapping: how LeRobotDatasets and bags become episodes.
        start: absolute path of the policy to fine-tune, copied into the run; empty: a new policy.
        policy: of a new policy, its kind and what that takes.
        discrete_dims: of a new policy, the action dimensions that have two levels (grippers).
        delta_dims: of a new policy, the action dimensions that are steps, of which 0 holds still.
        algorithm: what is done to the policy; a name of the door ``vla_rl.algorithms``.
        learning: the options of that algorithm.
        steps: gradient steps.
        checkpoint_every: gradient steps between checkpoints; what a crash costs at most.
        retention: which episodes to hold if there are very many.
        seed: of initial weights and batches.
        torch_threads: threads of the learner, which soon sleep while they wait for each other; 0: one for each core, up
            to eight.
        device: of the learner, as torch names it. Only on "cpu" does a resumed run equal an uninterrupted one.
    """

    data: tuple[str, ...] = ()
    mapping: DataMapping = field(default_factory=DataMapping)
    start: str = ""
    policy: PolicyConfig = part("policies", inside="kind", default="flow_vla")
    discrete_dims: tuple[int, ...] = ()
    delta_dims: tuple[int, ...] = ()
    algorithm: str = "habc"
    learning: Any = part("algorithms", beside="algorithm")
    steps: int = 1600
    checkpoint_every: int = 400
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    seed: int = 0
    torch_threads: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        fill_parts(self)
        check_ranges(self, "", steps=">= 1", checkpoint_every=">= 1", torch_threads=">= 0", seed=">= 0")
        self.learning.check_steps(self.steps, "steps")


def start_run(path: Path, config: FinetuneConfig) -> RunFolder:
    """Make a run folder and take its data in. A run that is refused leaves nothing behind.

    Raises:
        UserError: if the folder holds a run, or the data do not fit.
    """
    before = {*path.iterdir()} if path.is_dir() else None
    folder = RunFolder.create(path, config)
    try:
        with folder:
            take_in_data(folder, config)
    except UserError:
        for entry in {*path.iterdir()} - (before or set()):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if before is None:
            path.rmdir()
        raise
    return folder


def take_in_data(folder: RunFolder, config: FinetuneConfig) -> None:
    """Copy the data and the policy to start from into the run, once; what a killed process had copied stays.

    Raises:
        UserError: if the data cannot be read, or do not fit each other or the policy. Before anything is copied, if
            that can be known.
    """
    done = folder.path / "data.json"
    if done.exists():
        return
    surveys = check_data(config)
    if config.start and not folder.policy_exists(0):
        folder.keep_policy(0, Path(config.start))
        if critic_of(Path(config.start)) is not None:
            logger.warning("only the policy itself is fine-tuned; what chooses for it or edits it stays behind")
    store = EpisodeStore(folder.episodes)
    taken = {path: len(import_source(Path(path), store, config.mapping)) for path in config.data}
    if not len(store):
        raise UserError(f"there are no episodes in {', '.join(config.data)}")
    if not all(found.headers for found in surveys.values()):  # of a bag
        _check_headers([store.read_header(name) for name in store.ids()], config)
    outcomes = {path: found.outcomes for path, found in surveys.items() if found.outcomes}
    keys = {path: _key_of(found) for path, found in surveys.items()}
    write_atomic(done, json.dumps({"episodes_taken": taken, "outcomes": outcomes, "keys": keys}, indent=1).encode())


def check_origin(folder: RunFolder, config: FinetuneConfig) -> None:
    """Refuse to go on with a run that began with another policy, or other episodes, than its config names now.

    A source that is gone is not missed: the run has its own copies. A bag is not compared.

    Raises:
        UserError: with what differs.
    """
    if folder.policy_exists(0) and weights_in(Path(config.start)) != weights_in(folder.policy(0)):
        raise UserError(
            f"{folder.path} began with another policy than the one given; name another folder (out=), or give that one"
        )
    done = folder.path / "data.json"
    keys = json.loads(done.read_text()).get("keys", {}) if done.exists() else {}  # older runs have none
    for path, key in keys.items():
        if Path(path).exists() and _key_of(survey(Path(path), config.mapping)) != key:
            raise UserError(
                f"{path} holds other episodes or labels than {folder.path} began with; name another folder (out=) to "
                "train on them"
            )


def _key_of(found: Survey) -> str:
    """Return the key of the episodes of a source, with their edits."""
    return cache_key([(each.episode_id, each.digest, each.length, each.task, each.success) for each in found.headers])


def check_data(config: FinetuneConfig) -> dict[str, Survey]:
    """Refuse data that do not fit each other, the algorithm or the policy to start from, before anything is copied.
    Bags become episodes only by being taken in; what does not fit in them is refused then.

    Returns:
        Source -> what is known of it.

    Raises:
        UserError: with what differs.
    """
    for path in config.data:
        if not Path(path).exists():
            raise UserError(f"there is no {path}; --data names episode stores, runs, LeRobotDatasets or bags")
    if not config.start and not config.learning.trains_policy:
        raise UserError(f"{config.algorithm} trains no policy: name one that it starts from (--policy FOLDER)")
    surveys = {path: survey(Path(path), config.mapping) for path in config.data}
    headers = [header for found in surveys.values() for header in found.headers]
    if headers:
        _check_headers(headers, config)
        if not _has_size(config) and (cost := large_pictures(headers)):
            logger.warning("%s", cost)
    return surveys


def _check_headers(headers: Sequence[EpisodeHeader], config: FinetuneConfig) -> None:
    """Refuse episodes that cannot be learned from together, by this algorithm and by the policy to start from."""
    start, algorithm = Path(config.start), find_algorithm(config.algorithm)
    model = load_model(start)[0] if config.start and not is_lerobots_own(start) else None
    layout = common_layout(headers, model.spec if model else None)
    assert layout is not None  # there are episodes
    spec = spec_of([layout.ordered(header) for header in headers], config.delta_dims)
    if model:
        check_fit(model.spec, spec, start)
        require_of_policy(config.algorithm, config.learning, model.capabilities)
        algorithm.check_fit(config.learning, lambda: model)
    else:
        policy = LeRobotPolicyConfig(folder=str(start)) if config.start else config.policy
        kind = policy_class(policy.kind)
        require_of_policy(config.algorithm, config.learning, kind.provides(policy, spec))
        algorithm.check_fit(config.learning, functools.partial(kind.on_meta_device, policy, spec))


def _has_size(config: FinetuneConfig) -> bool:
    return bool(config.mapping.lerobot.image_size or config.mapping.bag.get("image_size"))


def describe_data(folder: RunFolder, config: FinetuneConfig) -> str:
    """What each loss would see, as text."""
    from vla_rl.training.offline import count_segments, format_segments, warn_of_segments

    with folder:
        take_in_data(folder, config)
        cache = _open_cache(folder, config)
        learner = make_learner(folder, config, cache)
        learner.begin_round(cache, 1)
    rows = count_segments(cache, learner)
    outcomes = json.loads((folder.path / "data.json").read_text())["outcomes"]
    notes = [f"outcomes of {path} come from {source}" for path, source in outcomes.items()]
    warnings = warn_of_segments(rows, cache, learner)
    if not _has_size(config) and large_pictures(cache.episodes):
        warnings.append(large_pictures(cache.episodes, config.steps, gradient_step_s(learner)))
    notes += [f"warning: {sentence}" for sentence in warnings]
    if any(entry.outcome == "unknown" for entry in rows):
        notes.append(f"label them with: vla-rl label {folder.episodes}")
    health = check_episodes(cache.store.read(episode.episode_id) for episode in cache.episodes)
    after = f"nothing was trained; go on with: vla-rl finetune --resume {folder.path}"
    return "\n".join([format_segments(rows, learner), *notes, health.table(), after])


def finetune(folder: RunFolder, config: FinetuneConfig) -> dict[str, Any]:
    """Carry out a run, or what is left of it, and build its report. Returns the summary."""
    from vla_rl.training.offline import OfflineRun

    torch.set_num_threads(learner_threads(config.torch_threads))
    described = {"task": "offline fine-tuning", "algorithm": config.algorithm, "seed": config.seed}
    with open_records(folder, described) as records:
        take_in_data(folder, config)
        with process_group():
            OfflineRun(folder, config, records).run()
    return folder.read_summary()


def share_steps(path: Path) -> None:
    """Take part in the gradient steps of rank 0, which alone writes the run folder at ``path``."""
    logging.disable()
    with process_group():
        folder, config = RunFolder.open(path, FinetuneConfig)
        if folder.read_summary().get("gradient_steps", 0) >= config.steps:
            return
        torch.set_num_threads(learner_threads(config.torch_threads))
        cache = _open_cache(folder, config)
        learner, start = make_learner(folder, config, cache), 0
        if (progress := load_newest_checkpoint(folder.checkpoints)) is not None:
            start, state = progress
            learner.load_state_dict(state)
        learner.begin_round(cache, 1)
        with deferred_signals() as asked_to_stop:
            for step in range(start, config.steps):
                learner.update(step)
                if stop := asked_to_stop():
                    raise stop


def _open_cache(folder: RunFolder, config: FinetuneConfig) -> FrameCache:
    start = folder.policy(0)  # one of lerobot's own does not declare its interface
    expected = find_policy(start).spec if folder.policy_exists(0) and not is_lerobots_own(start) else None
    cache = FrameCache(EpisodeStore(folder.episodes), folder.cache, config.retention, expected)
    cache.refresh()
    return cache


def make_learner(folder: RunFolder, config: FinetuneConfig, cache: FrameCache) -> Algorithm:
    """Return the configured algorithm on the policy that the run starts from, or on a new one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(config.seed, "policy weights"))
        model = _make_model(folder, config, cache)
    return make_algorithm(config.algorithm, config.learning, model.to(config.device), cache, config.seed)


def _make_model(folder: RunFolder, config: FinetuneConfig, cache: FrameCache) -> TrainablePolicy:
    spec, start = spec_of(cache.episodes, config.delta_dims), folder.policy(0)
    if folder.policy_exists(0) and not is_lerobots_own(start):
        model, _ = load_model(start)
        check_fit(model.spec, spec, Path(config.start))
        return model
    ticks = config.learning.chunk_ticks or ExecutionConfig.execute_ticks
    statistics = data_statistics(cache, config.discrete_dims, ticks)
    if folder.policy_exists(0):  # it does not say in our terms what it is connected to: to the robot of the data
        return LeRobotModel.build(LeRobotPolicyConfig(folder=str(start)), spec, statistics)
    return policy_class(config.policy.kind).build(config.policy, spec, statistics)


def check_fit(policy: PolicySpec, data: PolicySpec, path: Path) -> None:
    """Refuse to train a policy on data of another shape, by a UserError; the environment's name may differ."""
    for name in ("cameras", "image_size", "control_hz"):
        ours, theirs = getattr(policy, name), getattr(data, name)
        if name == "cameras":
            ours, theirs = sorted(ours), sorted(theirs)
        if ours != theirs:
            raise UserError(f"the policy {path} has {name}={ours}, the data has {theirs}; map the data, or start anew")
    ours, theirs = policy.action_sizes, data.action_sizes
    if not theirs.items() <= ours.items():
        raise UserError(
            f"the policy {path} is for robots of (state, action) sizes {sorted(ours.items())}; the data is of "
            f"{sorted(theirs.items())}. Map the data, or start anew"
        )
    for size, actions in theirs.items():
        match_both(
            policy.dimensions_of(size), data.dimensions_of(size), (size, actions), f"the policy {path}", "the data"
        )
