"""Processor time of a round of practice against an earlier checkout, and of commands that a person waits for.

Both checkouts practice for one round in turn, pair by pair, so that a busy machine slows both. Pairs are kept in
OUT/speed/. What reads a LeRobotDataset is compared with a program that reads the same episodes through lerobot: opened,
and every frame read once.

Example: python -m benchmarks speed
         git worktree add ../before COMMIT && python -m benchmarks speed --before ../before --pairs 5
         python -m benchmarks speed --device cuda
         python -m benchmarks speed --cores
"""

import argparse
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cells import Cells
from benchmarks.data_traps.lerobot_files import FRONT, arm, write
from benchmarks.outcomes import open_cells
from vla_rl.core.config_files import config_file, read_yaml
from vla_rl.data.lerobot_import import import_lerobot
from vla_rl.data.store import EpisodeStore

_HERE = Path(__file__).resolve().parents[1]
# A key of the result: the figure of a round whose ratio it is, now over before.
_RATIOS = {
    "practice_round_cpu_ratio": "practice_round_cpu_s",
    "supervise_cpu_ratio": "supervise_cpu_s",
    "collect_episodes_per_s_ratio": "collect_episodes_per_s",
    "evaluate_episodes_per_s_ratio": "evaluate_episodes_per_s",
    "model_rollout_chunks_per_s_core_ratio": "model_rollout_chunks_per_s_core",
    "peak_memory_ratio": "peak_mb",
}
_VERB = ("-m", "vla_rl.cli.main")
_THROUGH_LEROBOT = """
from lerobot.datasets.lerobot_dataset import LeRobotDataset
data = LeRobotDataset("local/data", root="data")
assert [data[index] for index in range(len(data))]
"""
# Arguments of Python, in a folder with an episode store and the same episodes as a LeRobotDataset.
COMMANDS = {
    "cli_help": (*_VERB, "--help"),
    "finetune_help": (*_VERB, "finetune", "--help"),
    "doctor": (*_VERB, "doctor", "data", "--data"),
    "hub_pull": (*_VERB, "hub", "pull", "./data", "./pulled{run}", "--episodes"),
    "finetune_dry_run": (*_VERB, "finetune", "--data", "data", "--out", "run{run}", "--dry-run", "--algorithm", "sft"),
    "hub_push": (*_VERB, "hub", "push", "store", "./pushed{run}"),
    "read_through_lerobot": ("-c", _THROUGH_LEROBOT),
}
_READERS = ("doctor", "hub_pull")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=5, help="runs of each command (default: 5)")
    parser.add_argument("--before", type=Path, help="an earlier checkout to compare rounds with")
    parser.add_argument("--pairs", type=int, default=5, help="rounds of each checkout (default: 5)")
    parser.add_argument("--cores", action="store_true", help="also time a round on one core and on all, both idle")
    parser.add_argument("--device", help="also time a round whose learner is on this device, such as cuda")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the missing pairs of rounds, then every command that often, in turn."""
    cells = Cells(options.out / "speed", {"config": read_yaml(config_file("imagined"))})
    for seed in range(options.pairs if options.before else 0):
        cells.once(f"pair-{seed}", functools.partial(pair, options.before.resolve(), seed))
    if options.cores:
        cells.once("cores", on_all_cores)
    if options.device:
        cells.once(f"round-{options.device}", functools.partial(round_on, options.device))
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(Path(folder), options.repeats)
    typical = {name: median(found) for name, found in seconds.items()}
    readers_s = sum(typical[name] for name in _READERS) / len(_READERS)
    return {
        **ratios([cell for cell in cells.read() if "before" in cell]),
        **{key: value for key, value in cells.by_name().get("cores", {}).items() if key != "measured"},
        "rounds_on": [cell for cell in cells.read() if "device" in cell],
        **success([cell for cell in open_cells(options.out).read() if "method" in cell]),
        "commands": seconds,
        "cli_help_ms": 1e3 * typical["cli_help"],
        "lerobot_command_cpu_s": readers_s,
        "lerobot_command_cpu_s_ratio": readers_s / typical["read_through_lerobot"],
    }


def pair(before: Path, seed: int) -> dict[str, Any]:
    """Practice for one round with each of two checkouts."""
    return {"seed": seed, "before": _round(before, f"seed={seed}"), "now": _round(_HERE, f"seed={seed}")}


def on_all_cores() -> dict[str, Any]:
    """Time the first round of the preset `alone`, its demonstrations and evaluations, on one core and on all.

    Returns:
        Wall-clock seconds, and ``learner_ratio``: the share of all cores' time that one core would have needed.
    """
    cores = sorted(os.sched_getaffinity(0))
    order = (*_VERB, "train", "--config", "alone", "budget.rounds=1", "--out", "run")
    one_core_s, all_cores_s = wall_s(cores[:1], *order, "torch_threads=1"), wall_s(cores, *order)
    ratio = one_core_s / all_cores_s / len(cores)
    return {
        "one_core_s": one_core_s,
        "all_cores_s": all_cores_s,
        "round_cores": len(cores),
        "learner_ratio": ratio,
    }


def wall_s(cores: Sequence[int], *arguments: str) -> float:
    """Wall-clock seconds of Python with these arguments, in an empty folder and on some cores.

    Raises:
        RuntimeError: If it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        bind = functools.partial(os.sched_setaffinity, 0, cores)
        began_s = time.perf_counter()
        done = subprocess.run([sys.executable, *arguments], cwd=folder, preexec_fn=bind, capture_output=True, text=True)
        took_s = time.perf_counter() - began_s
    if done.returncode:
        raise RuntimeError(done.stderr)
    return took_s


def round_on(device: str) -> dict[str, Any]:
    """Practice for one round with the learner on a device; in wall-clock seconds.

    Raises:
        RuntimeError: If torch finds no such device.
    """
    found = _round(_HERE, f"device={device}")
    return {"device": device, "stages_s": found["cpu_s"], "chunks_per_s": found["model_rollout_chunks_per_s_core"]}


def _round(checkout: Path, *changes: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        # An earlier commit has it under its former name.
        configs = [checkout / "configs" / name for name in ("imagined.yaml", "alone.yaml")]
        config = str(next(path for path in configs if path.exists()))
        arguments = [str(_HERE / "benchmarks" / "speed_round.py"), f"{folder}/run", config, *changes]
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-P", *arguments], env=environment, cwd=folder, capture_output=True, text=True
        )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def ratios(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median over pairs of each figure now over before, its range, and the pairs."""
    if not pairs:
        return {}
    result: dict[str, Any] = {"pairs": list(pairs)}
    for key, name in _RATIOS.items():
        each = [pair["now"][name] / pair["before"][name] for pair in pairs]
        result |= {key: median(each), f"{key}_range": [min(each), max(each)]}
    return result


def success(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Compare what 450 episodes make of a policy with the published runs of the same tasks and seeds.

    Args:
        cells: Of the benchmark `outcomes`. Its row `half_draws` is of today's program, `imagined_edit` as published.
    """
    curves = {
        (cell["task"], cell["seed"], cell["method"]): [cell["supervised"]["success"], *cell["curve"]] for cell in cells
    }
    runs = [key[:2] for key in curves if key[2] == "half_draws" and (*key[:2], "imagined_edit") in curves]
    if not runs:
        return {}
    now, before = (np.array([curves[*run, name] for run in runs]) for name in ("half_draws", "imagined_edit"))
    found: dict[str, Any] = {"success_runs": [*map(list, runs)], "success_before": before[:, -1].tolist()}
    found |= {"success_now": now[:, -1].tolist()}
    found |= {"rounds_made_worse": _falls(now), "rounds_made_worse_before": _falls(before)}
    points = 100 * (now - before)[:, -1]
    found["success_difference_points"] = float(points.mean())
    if len(runs) > 1:
        from scipy import stats

        interval = stats.ttest_1samp(points, 0.0).confidence_interval()
        found["success_difference_interval"] = [float(interval.low), float(interval.high)]
    return found


def _falls(curves: NDArray[np.float64]) -> int:
    """Count rounds after which fewer of the same episodes succeed than before, of curves [runs, 1 + rounds]."""
    return int((np.diff(curves, axis=1) < 0).sum())


def measure(folder: Path, repeats: int) -> dict[str, list[float]]:
    """Return the processor seconds of each run of every command."""
    import_lerobot(write(folder / "recorded", arm(cameras={FRONT: (32, 32)})), EpisodeStore(folder / "store"))
    cpu_s(folder, *_VERB, "hub", "push", "store", "./data")
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(repeats):
        for name, arguments in COMMANDS.items():
            seconds[name].append(cpu_s(folder, *(argument.format(run=number) for argument in arguments)))
    return seconds


def cpu_s(folder: Path, *arguments: str) -> float:
    """Processor seconds of Python with these arguments, of its threads and children too.

    Raises:
        RuntimeError: If it fails. The doctor may find something wrong.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode > ("doctor" in arguments):
        raise RuntimeError(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def table(result: dict[str, Any]) -> str:
    """Return Markdown: one row per command."""
    rows = [
        f"| `{name}` | {median(found):.2f} | {min(found):.2f} to {max(found):.2f} |"
        for name, found in result["commands"].items()
    ]
    head = ["| command | processor seconds, median | range |", "|---|---|---|"]
    cores = []
    if "learner_ratio" in result:
        one, every, count = (result[key] for key in ("one_core_s", "all_cores_s", "round_cores"))
        cores = [f"A round of `alone` takes {one:.0f} s on one core and {every:.0f} s on {count}.", ""]
    return "\n".join([*_round_rows(result), *head, *rows, "", *cores, f"Command: `{result['command']}`."])


def _round_rows(result: dict[str, Any]) -> list[str]:
    """Return one row per figure of a round, and none where no pair was measured."""
    if "pairs" not in result:
        return []
    rows = []
    for key, name in _RATIOS.items():
        was, is_now = (median(pair[when][name] for pair in result["pairs"]) for when in ("before", "now"))
        low, high = result[f"{key}_range"]
        rows.append(f"| `{name}` | {was:.4g} | {is_now:.4g} | {result[key]:.2f} | {low:.2f} to {high:.2f} |")
    return ["| one round | before | now | ratio | range |", "|---|---|---|---|---|", *rows, ""]
