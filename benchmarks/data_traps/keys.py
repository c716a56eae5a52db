"""Traps of reuse: results that are counted again although something that decides them has changed."""

import contextlib
import importlib
import io
import json
import os
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.cells import Cells
from benchmarks.data_offline import keep_once
from benchmarks.data_traps.traps import expect, trap
from benchmarks.runs import claim_run, run_verb
from vla_rl.cli.main import make_parser
from vla_rl.core.config import load_config, save_config
from vla_rl.core.described import write_description
from vla_rl.core.keys import code_of, key_of
from vla_rl.core.outside import SEAL
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.cache import FrameCache
from vla_rl.data.store import EpisodeStore
from vla_rl.runs.config import RunConfig
from vla_rl.runs.config_files import config_file
from vla_rl.runs.evaluation import evaluation_key
from vla_rl.runs.imagination.world_data import episodes_of, gather_episodes
from vla_rl.runs.policy_folder import find_policy
from vla_rl.runs.rollout import resolve_config
from vla_rl.runs.simulator import SimulatorWorker
from vla_rl.training.run_folder import RunFolder
from vla_rl.training.workers import RolloutJob

_EVALUATION = "shared evaluation store"
_EPISODES = 6
_STEPS = 12


class Moves(gymnasium.Env[Any, Any]):
    """Succeeds when enough commands in an episode differ from the one before; every third start needs none.

    Args:
        needed: commands that have to differ.
        difficulty: from .5 on, one command more is needed.
    """

    metadata = {"render_fps": 10}  # noqa: RUF012 - as Gymnasium declares it
    task_description = "move"

    def __init__(self, needed: int = 9, difficulty: float = 0.0, image_size: int = 32) -> None:
        self._needed = needed + (difficulty >= 0.5)
        self._picture = np.zeros((image_size, image_size, 3), np.uint8)
        pixels = gymnasium.spaces.Dict({"top": gymnasium.spaces.Box(0, 255, self._picture.shape, np.uint8)})
        self.observation_space = gymnasium.spaces.Dict(
            {"pixels": pixels, "agent_pos": gymnasium.spaces.Box(-1, 1, (2,), np.float32)}
        )
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._left = 0 if (seed or 0) % 3 == 0 else self._needed
        self._steps = 0
        self._before: Any = None
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count a command that differs."""
        self._left -= not np.array_equal(action, self._before)
        self._steps, self._before = self._steps + 1, action
        success = self._left <= 0
        return self._observation(), float(success), success, self._steps >= _STEPS, {"is_success": success}

    def _observation(self) -> dict[str, Any]:
        return {"pixels": {"top": self._picture}, "agent_pos": np.zeros(2, np.float32)}


def _config(*overrides: str) -> RunConfig:
    changes = [f"task.env={__name__}:Moves", "execution.strategy=sync", "execution.execute_ticks=4", *overrides]
    return load_config(RunConfig, config_file("tiny"), changes)


def _run(folder: Path, *overrides: str, policy: Path | None = None) -> RunFolder:
    """Make a run of `Moves` with an untrained policy, or a copy of another's."""
    import torch

    from vla_rl.core.scaling import Statistics
    from vla_rl.policies.folders import policy_class
    from vla_rl.runs.task import open_robot, spec_of_robot

    config = _config(*overrides)
    run = RunFolder.create(folder, config)
    if policy is not None:
        shutil.copytree(policy, run.policy(0))
        return run
    robot = open_robot(config.task)
    spec = spec_of_robot(config.task.env, robot)
    robot.close()
    spread = np.random.default_rng(0).uniform(-1, 1, (20, 2)).astype(np.float32)
    torch.manual_seed(0)
    model = policy_class(config.policy.kind).build(config.policy, spec, Statistics.from_arrays(spread, spread))
    with torch.no_grad():
        for parameter in model.parameters():  # a new policy plans its noise alone
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save(run.policy(0), {"policy_version": 0})
    return run


def _trained(folder: Path, *overrides: str) -> RunFolder:
    """Train a run of `Moves` from demonstrations."""
    store = EpisodeStore(folder / "demonstrations")
    for number in range(2):
        store.add(_demonstration(number))
    config = folder / "config.yaml"
    brought = ["budget.rounds=0", "takeover.enabled=false", f"task.demonstrations={store.path}", *overrides]
    save_config(_config(*brought), config)
    _verb("train", "--config", config, "--out", folder / "run")
    return RunFolder(folder / "run")


def _demonstration(number: int) -> Episode:
    random = np.random.default_rng(number)
    images = {"top": np.zeros((_STEPS, 32, 32, 3), np.uint8)}
    action = random.uniform(-1, 1, (_STEPS, 2)).astype(np.float32)
    return Episode(
        episode_id=f"demo-{number:05d}",
        images=images,
        state=np.zeros((_STEPS, 2), np.float32),
        action_policy=action,
        action_sent=action,
        source=np.full(_STEPS, Source.DEMO, np.uint8),
        seed=number,
        control_hz=10,
        env_id=f"{__name__}:Moves",
        task=Moves.task_description,
        success=True,
        terminated=True,
        origin=Origin.DEMO,
        policy_version=-1,
    )


def _verb(name: str, *arguments: object) -> str:
    """Run a verb in this process and return what it prints."""
    verb, parser = importlib.import_module(f"vla_rl.cli.{name}"), make_parser(name)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        verb.run(parser.parse_intermixed_args([str(argument) for argument in arguments]))
    return printed.getvalue()


def _figure(run: RunFolder, store: Path, *options: object) -> str:
    """Evaluate a run's policy into a store; return the line of its success and the one about reuse."""
    return _verb("eval", run.path, "--episodes", _EPISODES, "--out", store, *options)


def _true_figures(folder: Path, changes: list[str], shared: list[str] | None = None) -> str:
    """Evaluate one policy in two settings, each into a store of its own and then both into one."""
    first = _run(folder / "first", *(shared or []))
    second = _run(folder / "second", *(shared or []), *changes, policy=first.policy(0))
    alone = [_figure(run, folder / f"alone-{run.path.name}").splitlines()[0] for run in (first, second)]
    expect(alone[0] != alone[1], f"the settings make no difference: {alone}")
    beside = [_figure(run, folder / "shared") for run in (first, second)]
    for own, found in zip(alone, beside, strict=True):
        expect(found.splitlines()[0] == own, f"alone {own}; in a shared store {found.splitlines()[0]}")
        expect(f"0 of {_EPISODES} episodes reused" in found, f"episodes of other settings were counted: {found}")
    again = _figure(second, folder / "shared")
    expect(f"{_EPISODES} of {_EPISODES} episodes reused" in again, f"nothing was reused: {again}")
    return f"alone {' and '.join(map(_rate, alone))}; in one store {' and '.join(map(_rate, beside))}"


def _rate(printed: str) -> str:
    return printed.partition(": ")[2].partition(" [")[0]


@trap(_EVALUATION, "one policy with two execution strategies, evaluated into one store")
def _strategy(folder: Path) -> str:
    return _true_figures(folder, ["execution.strategy=naive"], ["latency.typical=2"])


@trap(_EVALUATION, "one policy with execute_ticks of 4 and of 2, evaluated into one store")
def _execute_ticks(folder: Path) -> str:
    return _true_figures(folder, ["execution.execute_ticks=2"], ["latency.typical=1"])


@trap(_EVALUATION, "one policy with and without latency of inference, evaluated into one store")
def _latency(folder: Path) -> str:
    return _true_figures(folder, ["latency.typical=4"])


@trap(_EVALUATION, "one policy at two difficulties, and with two arguments of the task, evaluated into one store")
def _task(folder: Path) -> str:
    printed = _true_figures(folder / "kwargs", ["task.kwargs={needed: 13}"], ["task.difficulty=0"])
    run, store = _run(folder / "run", "task.difficulty=0", "task.kwargs={needed: 12}"), folder / "store"
    easy, hard = _figure(run, store), _figure(run, store, "--difficulty", 0.9)
    expect(_rate(easy) != _rate(hard) and "0 of" in hard, f"--difficulty did not count: {easy} {hard}")
    return f"{printed}; --difficulty {_rate(easy)} and {_rate(hard)}"


@trap(
    _EVALUATION,
    "gate, rollout device, precision, exploration, batch of environments or supervisor changed by an override",
)
def _every_setting(folder: Path) -> str:
    run = _run(folder / "run")
    changes = [
        "gate.max_velocity=[1,1]",
        "rollout_device=cuda",
        "rollout_precision=fp32",
        "exploration=0.1",
        "environments_per_worker=2",
        "execution.discrete_dims=[1]",
        "takeover.enabled=false",
        "task.renderer=egl",
        "task.image_size=48",
        "task.declare.max_episode_steps=6",
    ]
    keys = {evaluation_key(_config(*overrides), run.policy(0)) for overrides in [[], *([change] for change in changes)]}
    expect(len(keys) == 1 + len(changes), f"{1 + len(changes) - len(keys)} of {len(changes)} settings change no key")
    return f"{len(keys)} keys for {len(keys)} settings"


@trap(_EVALUATION, "a critic or a corrector put beside the policy's weights between two evaluations")
def _files_of_policy(folder: Path) -> str:
    run, store = _run(folder / "run"), folder / "store"
    _figure(run, store)
    for name in ("critic", "corrector"):
        (run.policy(0) / name).mkdir()
        (run.policy(0) / name / "note.txt").write_text(name)
    key = evaluation_key(_config(), run.policy(0))
    counted = sum(key in name for name in EpisodeStore(store).ids())
    expect(counted == 0, f"{counted} episodes without critic and corrector count as episodes with them")
    return "0 episodes of the policy without them are counted"


@trap(_EVALUATION, "a task of one's own whose source is edited between two evaluations")
def _edited_task(folder: Path) -> str:
    name = f"edited_task_{folder.name.replace('-', '_')}"
    module, printed = folder / f"{name}.py", []
    sys.path.insert(0, str(folder))
    try:
        for needed in (1, 13):
            module.write_text(f"from {__name__} import Moves\n\n\ndef make():\n    return Moves({needed})\n")
            sys.modules.pop(name, None)
            importlib.invalidate_caches()
            code_of.cache_clear()
            where = folder / str(needed)
            printed.append(_figure(_run(where, f"task.env={name}:make"), folder / "store"))
    finally:
        sys.path.remove(str(folder))
    expect(_rate(printed[0]) != _rate(printed[1]), f"the edit did not count: {printed}")
    return f"before the edit {_rate(printed[0])}, after it {_rate(printed[1])}"


@trap(
    _EVALUATION, "a store that holds episodes of other seeds under the names of an evaluation", remedy="another store"
)
def _other_seeds(folder: Path) -> str:
    run, store = _run(folder / "run"), EpisodeStore(folder / "store")
    _figure(run, store.path)
    moved = EpisodeStore(folder / "moved")
    for name in store.ids():
        episode = store.read(name)
        moved.add(replace(episode, seed=int(episode.seed or 0) + 1))
    return _figure(run, moved.path)


@trap(
    _EVALUATION,
    "a version learned anew, with another learning rate, while the run's evaluation of the old one is still there",
    remedy="move them away",
)
def _learned_anew(folder: Path) -> str:
    run = _trained(folder)
    for made in (run.policies, run.checkpoints):
        shutil.rmtree(made)
    edited = run.config_file.read_text().replace("learning_rate: 0.0005", "learning_rate: 0.05")
    run.config_file.write_text(edited)
    return _verb("train", "--resume", run.path)


@trap("frame cache after a change", "a label that replaces another of the same size, with the same modification time")
def _relabeled(folder: Path) -> str:
    store = EpisodeStore(folder / "store")
    store.add(_demonstration(0))
    store.label("demo-00000", True)
    label = store.edits.file("demo-00000")
    stat, content = label.stat(), json.loads(label.read_text())
    FrameCache(store, folder / "cache").refresh()
    del content[SEAL]
    content["log"][0]["new"]["success"] = None
    write_description(label, content)
    os.utime(label, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    expect(label.stat().st_size == stat.st_size, "the labels differ in size")
    cache = FrameCache(store, folder / "cache")
    cache.refresh()
    found = cache.episodes[0].success
    expect(found is None, f"the outcome is unknown now, and the cache says {found}")
    return f"outcome in the cache: {found}"


@trap("frame cache after a change", "an episode file restored from a backup of the same size and modification time")
def _restored(folder: Path) -> str:
    store, other = EpisodeStore(folder / "store"), EpisodeStore(folder / "other")
    store.add(_demonstration(0))
    other.add(replace(_demonstration(1), seed=0, episode_id="demo-00000"))
    FrameCache(store, folder / "cache").refresh()
    file, backup = (each.episodes_dir / "demo-00000.zarr.zip" for each in (store, other))
    stat = file.stat()
    expect(backup.stat().st_size == stat.st_size, "the files differ in size")
    shutil.copy(backup, file)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    cache = FrameCache(store, folder / "cache")
    cache.refresh()
    wanted = other.read("demo-00000").action_sent
    expect(np.array_equal(cache.action_sent, wanted), "the cache holds the rows of the file before")
    return "the cache holds the rows of the restored file"


@trap("cells and runs of a benchmark", "cells of one run's policy, measured again with another policy", remedy="--out")
def _other_policy(folder: Path) -> str:
    first, second = _run(folder / "first"), _run(folder / "second", "policy.horizon=8", "execution.execute_ticks=4")
    Cells(folder / "cells", {"episodes": 10}, first.policy(0)).write("speed", {"ms": 1.0})
    kept = Cells(folder / "cells", {"episodes": 10}, second.policy(0)).read()
    return f"the cell of the other policy is shown: {kept}"


@trap("cells and runs of a benchmark", "a finished run of a benchmark, asked for with other options", remedy="move it")
def _other_arguments(folder: Path) -> str:
    arguments = ["train", "--config", "tiny", "--seed", "0"]
    claim_run(arguments, folder / "run")
    run = RunFolder.create(folder / "run", _config())
    run.write_summary({"finished": True})
    expect(run_verb(arguments, run.path) == 0.0, "a finished run was begun again")
    return f"took {run_verb([*arguments, 'budget.rounds=9'], run.path)} s"


@trap("cells and runs of a benchmark", "parts of `benchmarks data`, asked for at another size", remedy="--out")
def _other_size(folder: Path) -> str:
    keep_once(folder / "kills.json", [1000], lambda: {"kill_trials": 1000})
    keep_once(folder / "kills.json", [50], lambda: {"kill_trials": 50})
    return (folder / "kills.json").read_text()


@trap("world model after a change", "a label given to an episode after it was copied for a world model")
def _label_after_copy(folder: Path) -> str:
    source, copies = EpisodeStore(folder / "run"), EpisodeStore(folder / "world")
    source.add(_demonstration(0))
    gather_episodes(copies, {"run": source.path}, _demonstration(0).env_id)
    source.label("demo-00000", False)
    gather_episodes(copies, {"run": source.path}, _demonstration(0).env_id)
    found = copies.read_header("run-demo-00000").success
    expect(found is False, f"the label says failure, and the world model's copy {found}")
    return f"outcome of the copy: {found}"


@trap("world model after a change", "an episode trimmed, then left out after it was copied for a world model")
def _edit_after_copy(folder: Path) -> str:
    source, copies = EpisodeStore(folder / "run"), EpisodeStore(folder / "world")
    source.add(_demonstration(0))
    env_id, keys = _demonstration(0).env_id, []
    for changes in ({"success": True}, {"trim": (1, 3)}, {"left_out": True}, {"left_out": False}):
        source.edit("demo-00000", **changes)
        gather_episodes(copies, {"run": source.path}, env_id)
        keys.append(key_of(episodes_of(copies)))
        expect(len(copies) == len(source), f"the run lists {len(source)} episodes, the copy {len(copies)}")
    found = copies.read("run-demo-00000").action_sent
    expect(np.array_equal(found, source.read("demo-00000").action_sent), f"the copy has {len(found)} steps")
    expect(len({*keys[:3]}) == 3, f"the keys of the world model's data are {keys}")
    return f"{len(found)} steps in the copy"


@trap(_EVALUATION, "a policy folder that is overwritten while rollout workers go on")
def _overwritten(folder: Path) -> str:
    run, other = _run(folder / "first"), _run(folder / "second", "policy.expert.heads=1")
    store, worker = EpisodeStore(folder / "store"), SimulatorWorker(_config())
    try:
        for name in ("before", "after"):
            list(worker.run([RolloutJob(name, store.path, _config().task.env, (1,), run.policy(0))]))
            shutil.rmtree(run.policy(0))
            shutil.copytree(other.policy(0), run.policy(0))
    finally:
        worker.close()
    before, after = (store.read(name).action_policy[0] for name in ("before", "after"))
    expect(not np.array_equal(before, after), "the policy that was there before went on acting")
    return f"first actions {before.round(2)} and {after.round(2)}"


_HORIZON = "settings beyond the policy's horizon"
_TOO_LONG = {
    "execution.execute_ticks=100": "execution.execute_ticks to 16",
    "execution.strategy=naive execution.expected_delay_ticks=16": "set less",
    "execution.strategy=naive latency.typical=16": "set less",
    "execution.strategy=naive latency.unit=ms latency.typical=1600": "set less",
    "latency.typical=20": "execution.hold_ticks",
    "execution.strategy=training_time_prefix": "policy.prefix_max=6",
    "execution.strategy=xiaomi policy.prefix_max=4": "policy.prefix_max=6",
    "algorithm=chunk_critic learning.critic.chunk_ticks=17": "learning.critic.chunk_ticks to 16",
    "algorithm=residual_ppo learning.ppo.chunk_ticks=17 exploration=0.1": "learning.ppo.chunk_ticks to 16",
}


def _refused_by_train(settings: str, folder: Path) -> str:
    run = _trained(folder, *settings.split())
    return f"{run.path} was trained"


for _settings, _remedy in _TOO_LONG.items():
    trap(_HORIZON, f"train with {_settings} and chunks of 16 actions", _remedy)(partial(_refused_by_train, _settings))


@trap(_HORIZON, "eval of a run that was made with execution.execute_ticks=100", remedy="execution.execute_ticks to 16")
def _refused_by_eval(folder: Path) -> str:
    return _figure(_run(folder / "run", "execution.execute_ticks=100"), folder / "store")


@trap(_HORIZON, "rollout of a policy with execution.execute_ticks=100", remedy="execution.execute_ticks to 16")
def _refused_by_rollout(folder: Path) -> str:
    run = _run(folder / "run")
    return _verb("rollout", run.path, "--robot", "sim", "execution.execute_ticks=100")


@trap(_HORIZON, "rollout of a policy on its own whose chunks are shorter than the default of execute_ticks")
def _short_chunks(folder: Path) -> str:
    run = _run(folder / "run", "policy.horizon=4")
    config = resolve_config(find_policy(run.policy(0)))
    expect(config.execution.execute_ticks == 4, f"execute_ticks is {config.execution.execute_ticks}")
    return f"execute_ticks is {config.execution.execute_ticks}"
