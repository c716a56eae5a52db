"""Processor time of commands that a person waits for.

What reads a LeRobotDataset is compared with a program that reads the same episodes through lerobot: opened, and every
frame read once. All commands run in turn, so that a busy machine slows all of them.

Example: python -m benchmarks speed
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.data_traps.lerobot_files import FRONT, arm, write
from vla_rl.data.lerobot_import import import_lerobot
from vla_rl.data.store import EpisodeStore

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


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run every command that often, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(Path(folder), options.repeats)
    typical = {name: median(found) for name, found in seconds.items()}
    readers_s = sum(typical[name] for name in _READERS) / len(_READERS)
    return {
        "commands": seconds,
        "cli_help_ms": 1e3 * typical["cli_help"],
        "lerobot_command_cpu_s": readers_s,
        "lerobot_command_cpu_s_ratio": readers_s / typical["read_through_lerobot"],
    }


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
    return "\n".join([*head, *rows, "", f"Command: `{result['command']}`."])
