"""How practice scales: collectors that wait for a robot, a cluster without a shared disk whose nodes are killed,
playing while learning. Also the demo against an older commit, and the learner's ratios of the benchmark ``learner``.

Example: python -m benchmarks scale
         python -m benchmarks scale --parts async demo --seeds 0 1 2 3 4
"""

import argparse
import functools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import scale_async, scale_demo
from benchmarks.cells import Cells, origin
from vla_rl.core.types import Episode, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.training.workers import RolloutJob, RolloutPool

COLLECTORS = (1, 2, 4, 8)
MODELED = 1024
_CONTROL_HZ, _STEPS = 50.0, 100
_EPISODES_EACH = 8
_NODES = 2
_OVER_SEEDS = {"async": scale_async, "demo": scale_demo}
PARTS = ("collectors", "nodes", *_OVER_SEEDS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", default=["collectors", "nodes"], choices=PARTS)
    parser.add_argument("--kills", type=int, default=10, help="nodes of the cluster that are killed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="of async and demo")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-scale"), help="where run folders are kept")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is missing of the parts, and gather all cells."""
    cells = Cells(options.out / "scale", {"steps": _STEPS, "episodes": _EPISODES_EACH, "kills": options.kills})
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "collectors": _collectors,
        "nodes": functools.partial(_nodes, options.kills),
    }
    for part in options.parts:
        if part in _OVER_SEEDS:
            for seed in options.seeds:
                cells.once(f"{part}-{seed}", functools.partial(_OVER_SEEDS[part].measure, seed, options.runs))
        else:
            cells.once(part, measures[part])
    found = cells.by_name()
    runs = {part: [cell for name, cell in found.items() if name.startswith(f"{part}-")] for part in _OVER_SEEDS}
    keys: dict[str, float] = {}
    if (learner := options.out / "learner.json").exists():
        found_there = json.loads(learner.read_text())
        keys |= {"learner_ratio": found_there["ratio"], "lerobot_train_ratio": found_there["lerobot_train_ratio"]}
    for part in ("collectors", "nodes"):
        keys |= {name: value for name, value in found.get(part, {}).items() if name != "measured"}
    for part, cells_of_part in runs.items():
        keys |= _OVER_SEEDS[part].keys(cells_of_part)
    return {**keys, "runs": runs, "cells": list(found.values())}


def table(result: dict[str, Any]) -> str:
    """Markdown: a sentence a part."""
    told = []
    if "learner_ratio" in result:
        told.append(
            f"The learner keeps {result['learner_ratio']:.2f} of a bare forward and backward pass, and takes "
            f"{result['lerobot_train_ratio']:.1f} times as many samples a second as lerobot-train."
        )
    if "collectors_1" in result:
        rates = ", ".join(f"{result[f'collectors_{count}']:.2f} with {count}" for count in COLLECTORS)
        told.append(
            f"Episodes a second of collectors that wait for a robot of {_CONTROL_HZ:.0f} Hz ({_STEPS} steps): {rates}. "
            f"By the model that a learner adds one episode after the other, {1e3 * result['service_s']:.0f} ms each "
            f"(measured): {result[f'collectors_{MODELED}_modelled']:.0f} with {MODELED}."
        )
    if "node_kills_survived" in result:
        told.append(
            f"On a Ray cluster whose nodes share no disk with the learner, {result['node_kills_survived']} nodes were "
            f"killed while they played. Every episode came, {'the same' if result['ray_no_shared_disk_ok'] else 'not'} "
            "bit by bit."
        )
    if "async_speedup" in result:
        told.append(
            f"Playing while learning, in rounds a third as long: {result['async_speedup']:.2f} times as fast, "
            f"{result['async_vs_rounds_success_points']:+.1f} points, {result['async_seeds']} seeds."
        )
        told += ["", scale_async.table(result["runs"]["async"]), ""]
    if "demo_wall_ratio" in result:
        told.append(
            f"The demo with a person takes {result['demo_wall_ratio']:.2f} of the time that it took at commit "
            f"{scale_demo.BEFORE}, {result['demo_success_points']:+.1f} points, {result['demo_seeds']} seeds."
        )
        told += ["", scale_demo.table(result["runs"]["demo"]), ""]
    note = f"{result['machine']['cores']} cores. {origin(result['cells'])}"
    return "\n".join([*told, "", f"{note} Command: `{result['command']}`."])


class PacedWorker:
    """Plays episodes of a robot that is not there: a command a tick, and nothing to do in between.

    Args:
        control_hz: ticks a second; 0: it does not wait.
        pids: the process writes its number there for every episode that it begins; None: it does not.
    """

    def __init__(self, control_hz: float, pids: Path | None = None) -> None:
        self._period_s, self._pids = 1 / control_hz if control_hz else 0.0, pids

    def run(self, jobs: Sequence[RolloutJob]) -> Iterator[RolloutJob]:
        for job in jobs:
            if self._pids is not None:
                (self._pids / job.episode_id).write_text(str(os.getpid()))
            next_s = time.perf_counter()
            for _ in range(_STEPS):
                next_s += self._period_s
                time.sleep(max(0.0, next_s - time.perf_counter()))
            EpisodeStore(job.store).add(_episode(job.episode_id, job.seeds[0]))
            yield job

    def close(self) -> None:
        """Nothing is open."""


def _episode(name: str, seed: int) -> Episode:
    """Noise, which no compression makes smaller, of two cameras of 64 pixels."""
    rng = np.random.default_rng(seed)
    images = {camera: rng.integers(0, 256, (_STEPS, 64, 64, 3), np.uint8) for camera in ("front", "top")}
    path = rng.normal(size=(_STEPS, 8)).astype(np.float32)
    source = np.zeros(_STEPS, np.uint8)
    return Episode(name, images, path, path, path, source, "wait", True, True, Origin.SIM, 0, seed, _CONTROL_HZ, "none")


def _jobs(store: Path, count: int) -> list[RolloutJob]:
    return [RolloutJob(f"e{number:04d}", store, "none", (number,), None) for number in range(count)]


def _collectors() -> dict[str, float]:
    found: dict[str, float] = {}
    build = functools.partial(PacedWorker, _CONTROL_HZ)
    with tempfile.TemporaryDirectory() as name:
        for count in COLLECTORS:
            with RolloutPool(build, count) as pool:
                list(pool.run(_jobs(Path(name) / f"start-{count}", count)))  # processes start
                started_s = time.perf_counter()
                list(pool.run(_jobs(Path(name) / str(count), _EPISODES_EACH * count)))
                found[f"collectors_{count}"] = _EPISODES_EACH * count / (time.perf_counter() - started_s)
        store, times_s = EpisodeStore(Path(name) / "learner"), []
        for number in range(30):
            episode = _episode(f"e{number}", number)
            started_s = time.perf_counter()
            store.add(episode)
            times_s.append(time.perf_counter() - started_s)
    service_s = float(np.median(times_s))
    modeled = min(MODELED * found["collectors_1"], 1 / service_s)
    return {**found, "service_s": service_s, f"collectors_{MODELED}_modelled": modeled}


def _nodes(kills: int) -> dict[str, float]:
    """Nodes of a cluster, processes of this machine, are killed one after the other while they play."""
    from ray.cluster_utils import Cluster
    from vla_rl_ray import RayRolloutPool

    with tempfile.TemporaryDirectory() as name:
        pids = Path(name) / "pids"
        pids.mkdir()
        plain, run = Path(name) / "plain", Path(name) / "run"
        with RolloutPool(functools.partial(PacedWorker, 0.0), 0) as pool:
            list(pool.run(_jobs(plain, 4 * kills)))
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        nodes = [cluster.add_node(num_cpus=1) for _ in range(_NODES)]
        survived, done = 0, 0
        try:
            build = functools.partial(PacedWorker, _CONTROL_HZ, pids)
            with RayRolloutPool(build, _NODES, cluster.address) as pool:
                for _ in pool.run(_jobs(run, 4 * kills)):
                    done += 1
                    if survived < kills and done % 3 == 0:
                        cluster.remove_node(nodes.pop(0), allow_graceful=False)
                        nodes.append(cluster.add_node(num_cpus=1))
                        survived += 1
        finally:
            cluster.shutdown()
        ours, theirs = EpisodeStore(run, create=False), EpisodeStore(plain, create=False)
        same = ours.ids() == theirs.ids() and all(
            ours.read_header(key).digest == theirs.read_header(key).digest for key in ours.ids()
        )
    return {"ray_no_shared_disk_ok": float(same), "node_kills_survived": survived if same else 0}
