"""Supervised learning of the preset `alone` on two cores, idle and beside a busy process. Threads that spin while they
wait, in float32, against threads that soon sleep, in `precision: auto`.

Each variant is a process of its own, since OpenMP reads how its threads wait once. All train the same network on the
same episodes and take turns in short blocks; of each the best block counts. They and the neighbor share two cores, so
nothing else should run there for the figures of idle cores.

Example: python -m benchmarks neighbor
"""

import argparse
import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple


class Variant(NamedTuple):
    """How the learner computes: its threads, `ActorConfig.precision`, and whether waiting threads spin."""

    threads: int
    precision: str
    spins: bool = False


BEFORE, AFTER = "2 threads that spin, float32", "2 threads that soon sleep, auto"
VARIANTS = {
    BEFORE: Variant(2, "float32", spins=True),
    "1 thread, float32": Variant(1, "float32"),
    "1 thread, auto": Variant(1, "auto"),
    AFTER: Variant(2, "auto"),
}
_END_WITHIN_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="blocks of each variant; the best counts")
    parser.add_argument("--updates", type=int, default=15, help="gradient steps of a block")
    parser.add_argument("--demonstrations", type=int, default=8, help="that are learned from")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure seconds and processor seconds of a gradient step, idle and busy."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    found: dict[str, Any] = {"cores": len(cores), "updates": options.updates}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        _demonstrate(Path(folder), options.demonstrations)
        learners = {
            name: stack.enter_context(_process(_learn, Path(folder), variant, cores))
            for name, variant in VARIANTS.items()
        }
        found["idle"] = _best(learners, options)
        stack.enter_context(_process(_spin, cores[-1]))
        found["busy"] = _best(learners, options)
    for place in ("idle", "busy"):
        before, after = (found[place][name] for name in (BEFORE, AFTER))
        found[f"supervise_ratio_{place}"] = before["s"] / after["s"]
        found[f"supervise_processor_ratio_{place}"] = before["processor_s"] / after["processor_s"]
    return found


def table(result: dict[str, Any]) -> str:
    """Return Markdown: one row per variant."""
    rows = ["| gradient step of 128 samples | idle cores | beside a busy core |", "|---|---|---|"]
    for name in VARIANTS:
        both = (result[place][name] for place in ("idle", "busy"))
        shown = (f"{1e3 * each['s']:.0f} ms, {1e3 * each['processor_s']:.0f} ms of processor time" for each in both)
        rows.append(f"| {name} | {' | '.join(shown)} |")
    note = (
        f"{BEFORE}, over {AFTER}: {result['supervise_ratio_idle']:.2f} on idle cores, "
        f"{result['supervise_ratio_busy']:.2f} beside a busy one. {result['machine']['cpu']}, two cores. "
        f"Command: `{result['command']}`."
    )
    return "\n".join([*rows, "", note])


def _best(learners: dict[str, Connection], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Of each variant the block in which a gradient step took the fewest seconds; they take turns."""
    best: dict[str, dict[str, float]] = {}
    for number in range(options.rounds + 1):  # the first block warms up
        for name, learner in learners.items():
            learner.send(options.updates if number else 2)
            took = learner.recv()
            if number and (name not in best or took["s"] < best[name]["s"]):
                best[name] = took
    return best


@contextmanager
def _process(target: Any, *arguments: Any) -> Iterator[Connection]:
    """A process and the connection to it, once it is ready."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    ours.recv()
    try:
        yield ours
    finally:
        ours.close()  # a learner ends by itself
        process.join(_END_WITHIN_S)
        process.kill()
        process.join()


def _spin(connection: Connection, core: int) -> None:
    os.sched_setaffinity(0, [core])
    connection.send("ready")
    while True:
        pass


def _learn(connection: Connection, folder: Path, variant: Variant, cores: list[int]) -> None:
    """Take as many gradient steps as the connection asks for and send what one of them took."""
    os.sched_setaffinity(0, cores)
    if variant.spins:
        os.environ.pop("GOMP_SPINCOUNT", None)  # before torch loads OpenMP
    import torch

    torch.set_num_threads(variant.threads)
    learner, steps = _learner(folder, variant.precision), itertools.count()
    connection.send("ready")
    with suppress(EOFError):
        while updates := connection.recv():
            started_s, used_s = time.perf_counter(), time.process_time()
            for _ in range(updates):
                learner.update(next(steps))
            took = time.perf_counter() - started_s, time.process_time() - used_s
            connection.send({"s": took[0] / updates, "processor_s": took[1] / updates})


def _config() -> Any:
    from vla_rl.core.config import load_config
    from vla_rl.core.config_files import config_file
    from vla_rl.training.config import RunConfig

    return load_config(RunConfig, config_file("imagined"))


def _demonstrate(folder: Path, demonstrations: int) -> None:
    from vla_rl.data.store import EpisodeStore
    from vla_rl.training.simulator import SimulatorWorker
    from vla_rl.training.workers import RolloutJob

    config, store = _config(), EpisodeStore(folder / "episodes")
    worker = SimulatorWorker(config)
    for seed in range(demonstrations):
        list(worker.run([RolloutJob(f"demo-{seed}", store.path, config.task.env, (seed, seed + 100), policy=None)]))
    worker.close()


def _learner(folder: Path, precision: str) -> Any:
    """The learner of the preset's supervised stage."""
    from vla_rl.acting.task import open_robot, spec_of_robot
    from vla_rl.data.cache import FrameCache
    from vla_rl.data.store import EpisodeStore
    from vla_rl.training.practice import supervised_learner

    config = _config()
    actor = replace(config.supervised.actor, precision=precision)
    config = replace(config, supervised=replace(config.supervised, actor=actor))
    robot = open_robot(config.task)
    spec = spec_of_robot(config.task.env, robot)
    robot.close()
    cache = FrameCache(EpisodeStore(folder / "episodes"), folder / f"cache-{os.getpid()}")
    cache.refresh()
    learner = supervised_learner(config, spec, cache)
    learner.begin_round(cache, 0)
    return learner
