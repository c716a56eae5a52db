"""Traps of reuse: results that are counted again although something that decides them has changed."""

import importlib
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.cells import Cells
from benchmarks.data_offline import keep_once
from benchmarks.data_traps.moves import TASK, demonstration, printed_by, run_config, trained_run, untrained_run
from benchmarks.data_traps.traps import expect, trap
from benchmarks.runs import claim_run, run_verb
from vla_rl.acting.world_folder import episodes_of, gather_episodes
from vla_rl.core.cache_keys import cache_key, code_digest
from vla_rl.core.json_files import SEAL, write_sealed
from vla_rl.data.cache import FrameCache
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.training.evaluation import evaluation_key
from vla_rl.training.simulator import SimulatorWorker
from vla_rl.training.workers import RolloutJob

_EVALUATION = "shared evaluation store"
_EPISODES = 6


def _figure(run: RunFolder, store: Path, *options: object) -> str:
    """Evaluate a run's policy into a store; return the line of its success and the one about reuse."""
    return printed_by("eval", run.path, "--episodes", _EPISODES, "--out", store, *options)


def _true_figures(folder: Path, changes: list[str], shared: list[str] | None = None) -> str:
    """Evaluate one policy in two settings, each into a store of its own and then both into one."""
    first = untrained_run(folder / "first", *(shared or []))
    second = untrained_run(folder / "second", *(shared or []), *changes, policy=first.policy(0))
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
    run, store = untrained_run(folder / "run", "task.difficulty=0", "task.kwargs={needed: 12}"), folder / "store"
    easy, hard = _figure(run, store), _figure(run, store, "--difficulty", 0.9)
    expect(_rate(easy) != _rate(hard) and "0 of" in hard, f"--difficulty did not count: {easy} {hard}")
    return f"{printed}; --difficulty {_rate(easy)} and {_rate(hard)}"


@trap(
    _EVALUATION,
    "gate, rollout device, precision, exploration, batch of environments or supervisor changed by an override",
)
def _every_setting(folder: Path) -> str:
    run = untrained_run(folder / "run")
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
    keys = {
        evaluation_key(run_config(*overrides), run.policy(0)) for overrides in [[], *([change] for change in changes)]
    }
    expect(len(keys) == 1 + len(changes), f"{1 + len(changes) - len(keys)} of {len(changes)} settings change no key")
    return f"{len(keys)} keys for {len(keys)} settings"


@trap(_EVALUATION, "a critic or a corrector put beside the policy's weights between two evaluations")
def _files_of_policy(folder: Path) -> str:
    run, store = untrained_run(folder / "run"), folder / "store"
    _figure(run, store)
    for name in ("critic", "corrector"):
        (run.policy(0) / name).mkdir()
        (run.policy(0) / name / "note.txt").write_text(name)
    key = evaluation_key(run_config(), run.policy(0))
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
            module.write_text(
                f"from {TASK.partition(':')[0]} import Moves\n\n\ndef make():\n    return Moves({needed})\n"
            )
            sys.modules.pop(name, None)
            importlib.invalidate_caches()
            code_digest.cache_clear()
            where = folder / str(needed)
            printed.append(_figure(untrained_run(where, f"task.env={name}:make"), folder / "store"))
    finally:
        sys.path.remove(str(folder))
    expect(_rate(printed[0]) != _rate(printed[1]), f"the edit did not count: {printed}")
    return f"before the edit {_rate(printed[0])}, after it {_rate(printed[1])}"


@trap(
    _EVALUATION, "a store that holds episodes of other seeds under the names of an evaluation", remedy="another store"
)
def _other_seeds(folder: Path) -> str:
    run, store = untrained_run(folder / "run"), EpisodeStore(folder / "store")
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
    run = trained_run(folder)
    for made in (run.policies, run.checkpoints):
        shutil.rmtree(made)
    edited = run.config_file.read_text().replace("learning_rate: 0.0005", "learning_rate: 0.05")
    run.config_file.write_text(edited)
    return printed_by("train", "--resume", run.path)


@trap("frame cache after a change", "a label that replaces another of the same size, with the same modification time")
def _relabeled(folder: Path) -> str:
    store = EpisodeStore(folder / "store")
    store.add(demonstration(0))
    store.label("demo-00000", True)
    label = store.edits.file("demo-00000")
    stat, content = label.stat(), json.loads(label.read_text())
    FrameCache(store, folder / "cache").refresh()
    del content[SEAL]
    content["log"][0]["new"]["success"] = None
    write_sealed(label, content)
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
    store.add(demonstration(0))
    other.add(replace(demonstration(1), seed=0, episode_id="demo-00000"))
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
    first, second = (
        untrained_run(folder / "first"),
        untrained_run(folder / "second", "policy.horizon=8", "execution.execute_ticks=4"),
    )
    Cells(folder / "cells", {"episodes": 10}, first.policy(0)).write("speed", {"ms": 1.0})
    kept = Cells(folder / "cells", {"episodes": 10}, second.policy(0)).read()
    return f"the cell of the other policy is shown: {kept}"


@trap("cells and runs of a benchmark", "a finished run of a benchmark, asked for with other options", remedy="move it")
def _other_arguments(folder: Path) -> str:
    arguments = ["train", "--config", "tiny", "--seed", "0"]
    claim_run(arguments, folder / "run")
    run = RunFolder.create(folder / "run", run_config())
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
    source.add(demonstration(0))
    gather_episodes(copies, {"run": source.path}, demonstration(0).env_id)
    source.label("demo-00000", False)
    gather_episodes(copies, {"run": source.path}, demonstration(0).env_id)
    found = copies.read_header("run-demo-00000").success
    expect(found is False, f"the label says failure, and the world model's copy {found}")
    return f"outcome of the copy: {found}"


@trap("world model after a change", "an episode trimmed, then left out after it was copied for a world model")
def _edit_after_copy(folder: Path) -> str:
    source, copies = EpisodeStore(folder / "run"), EpisodeStore(folder / "world")
    source.add(demonstration(0))
    env_id, keys = demonstration(0).env_id, []
    for changes in ({"success": True}, {"trim": (1, 3)}, {"left_out": True}, {"left_out": False}):
        source.edit("demo-00000", **changes)
        gather_episodes(copies, {"run": source.path}, env_id)
        keys.append(cache_key(episodes_of(copies)))
        expect(len(copies) == len(source), f"the run lists {len(source)} episodes, the copy {len(copies)}")
    found = copies.read("run-demo-00000").action_sent
    expect(np.array_equal(found, source.read("demo-00000").action_sent), f"the copy has {len(found)} steps")
    expect(len({*keys[:3]}) == 3, f"the keys of the world model's data are {keys}")
    return f"{len(found)} steps in the copy"


@trap(_EVALUATION, "a policy folder that is overwritten while rollout workers go on")
def _overwritten(folder: Path) -> str:
    run, other = untrained_run(folder / "first"), untrained_run(folder / "second", "policy.expert.heads=1")
    store, worker = EpisodeStore(folder / "store"), SimulatorWorker(run_config())
    try:
        for name in ("before", "after"):
            list(worker.run([RolloutJob(name, store.path, run_config().task.env, (1,), run.policy(0))]))
            shutil.rmtree(run.policy(0))
            shutil.copytree(other.policy(0), run.policy(0))
    finally:
        worker.close()
    before, after = (store.read(name).action_policy[0] for name in ("before", "after"))
    expect(not np.array_equal(before, after), "the policy that was there before went on acting")
    return f"first actions {before.round(2)} and {after.round(2)}"
