"""Episodes: windows a second against LeRobotDataset and a bare memory map, recordings that are killed, and what
offline fine-tuning gains over behavior cloning.

Each part is kept in OUT/data/ when it is measured; parts and cells that are there are not measured again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import data_kills, data_offline, data_windows
from benchmarks.data_offline import keep_once
from vla_rl.core.errors import UserError, did_you_mean

PARTS = ("windows", "kills", "offline")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--trials", type=int, default=1000, help="recordings that are killed")
    parser.add_argument("--episodes", type=int, default=50, help="episodes of the window benchmark")
    parser.add_argument("--samples", type=int, default=100_000, help="samples over which memory must stay flat")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of offline fine-tuning")
    parser.add_argument("--algorithms", nargs="+", default=list(data_offline.ALGORITHMS))
    parser.add_argument("--steps", type=int, default=1600, help="gradient steps of offline fine-tuning")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-data"), help="where the run folders are kept")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is asked for and missing, and gather all that there is."""
    folder = options.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for part in options.parts:
        if part not in PARTS:
            raise UserError(f"there is no part {part!r} in this benchmark.{did_you_mean(part, PARTS)}")
    if "windows" in options.parts:
        sizes = [options.episodes, options.samples]
        keep_once(folder / "windows.json", sizes, lambda: data_windows.measure(*sizes))
    if "kills" in options.parts:
        keep_once(folder / "kills.json", [options.trials], lambda: data_kills.measure(options.trials))
    if "offline" in options.parts:
        data_offline.measure(folder, options.runs, options.seeds, options.algorithms, options.steps)
    result: dict[str, Any] = {}
    for name in ("windows", "kills"):
        if (folder / f"{name}.json").exists():
            result |= json.loads((folder / f"{name}.json").read_text())
    result.pop("settings", None)
    return result | data_offline.gather(folder)


def table(result: dict[str, Any]) -> str:
    """Markdown: one row for each figure that has been measured."""
    rows = ["| what | measured |", "|---|---|"]
    if "windows_vs_lerobot" in result:
        speeds = result["windows_per_s"]
        rows += [
            f"| windows/s from the frame cache | {speeds['cache']:.0f} |",
            f"| of LeRobotDataset (PNG images / video), same windows | {result['windows_vs_lerobot_images']:.0f} x / "
            f"{result['windows_vs_lerobot_video']:.0f} x |",
            f"| of a bare memory map | {result['windows_vs_memmap']:.2f} |",
            f"| growth of memory over {result['memory_samples']} samples | {result['memory_growth_mb']:.1f} MB |",
        ]
    if "kill_trials" in result:
        rows.append(
            f"| episodes lost in {result['kill_trials']} kill -9 while recording | {result['episodes_lost']} of "
            f"{result['episodes_saved']} saved |"
        )
    for name, entry in result.get("offline", {}).items():
        low, high = entry["interval"]
        rows.append(
            f"| offline, {name} ({len(entry['seeds'])} seeds) | {entry['success']:.1%} [{low * 100:.0f}, "
            f"{high * 100:.0f}] |"
        )
    if "offline_gain_points" in result:
        low, high = result["offline_gain_interval"]
        rows.append(
            f"| gain of habc over behavior cloning, points | {result['offline_gain_points']:.0f} "
            f"[{low:.0f}, {high:.0f}] |"
        )
    machine = result["machine"]
    return "\n".join([*rows, "", f"{machine['cpu']}, one process. Command: `{result['command']}`."])
