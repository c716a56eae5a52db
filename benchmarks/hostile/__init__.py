"""Damaged, hostile and full: mutated files of every kind go through their readers and the command line. Every verb
meets every fault of its surroundings, and training is killed.

Each block is kept in OUT/hostile/ when it is measured; blocks that are there are not measured again.
"""

import argparse
import functools
import importlib
import itertools
from typing import Any

from benchmarks.cells import Cells, origin
from benchmarks.hostile import kills, trials, verbs
from benchmarks.hostile.kinds import KINDS
from vla_rl.cli.main import VERBS

# Blocks of trials of each kind: the readers of other people's formats cost a hundred times more.
BLOCKS = dict.fromkeys(KINDS, 12) | {"lerobot dataset": 1, "config": 2, "bag": 4}
_WARM = (  # what verbs and readers import when they are called
    "onnxruntime",
    "torch._dynamo",
    "zarr.codecs",
    "zarr.storage",
    "deploy_trt.export",
    "deploy_trt.verify",
    "vla_rl.data.lerobot_import",
    "vla_rl_bags",
    "vla_rl.report.html",
    "vla_rl.training.finetune",
    "vla_rl.acting.world_folder",
    "vla_rl.acting.browser",
    "vla_rl.training.practice",
    "vla_rl.acting.record",
    "vla_rl.acting.rollout",
    "vla_rl.training.simulator",
    "vla_rl.training.world_model",
    *(f"vla_rl.cli.{verb}" for verb in VERBS),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=float, default=1.0, help="the nightly size is 1; a part of it, or a multiple")
    parser.add_argument("--kills", type=int, default=1000, help="of training")
    parser.add_argument("--commands", type=int, default=500, help="trials through the command line")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is missing, and gather all that there is."""
    cells = Cells(options.out / "hostile", {"block": trials.BLOCK})
    _warm_up()
    for block in range(round(max(BLOCKS.values()) * options.blocks)):
        for kind, blocks in BLOCKS.items():  # in turns, so that a part of it shows all kinds
            if block < blocks * options.blocks:
                name = f"files-{kind}-{block:03d}".replace(" ", "_")
                cells.once(name, functools.partial(trials.run_block, kind, block))
    for verb, where, fault in verbs.cells():
        name = f"verb-{verb}-{where}-{fault}".replace(" ", "_")
        cells.once(name, functools.partial(verbs.run_cell, verb, where, fault))
    for block in itertools.count():
        if _sum(list(cells.by_name().values()), "kills") >= options.kills:
            break
        cells.once(f"kills-{block:03d}", functools.partial(kills.measure, block, 10))
    for block in range(options.commands // 10):
        cells.once(f"commands-{block:03d}", functools.partial(verbs.run_commands, block, 10))
    return gather(cells)


def _warm_up() -> None:
    """Import in this process, which runs nothing, what every forked child needs."""
    for name in _WARM:
        importlib.import_module(name)


def gather(cells: Cells) -> dict[str, Any]:
    """The figures over all blocks that have been measured."""
    by_name = cells.by_name()
    files = [cell for name, cell in by_name.items() if name.startswith(("files-", "commands-"))]
    killed = [cell for name, cell in by_name.items() if name.startswith("kills-")]
    matrix = [cell for name, cell in by_name.items() if name.startswith("verb-")]
    found = sorted({cell["kind"] for cell in files})
    failed = [cell for cell in matrix if not cell["one_line"]]
    return {
        "trials": _sum(files, "trials"),
        "trials_by_kind": {kind: _sum([c for c in files if c["kind"] == kind], "trials") for kind in found},
        "trials_without_meaning": _sum(files, "without_meaning"),
        "tracebacks": _sum(files, "tracebacks") + _sum(killed, "tracebacks") + len(failed),
        "silent_changes": _sum(files, "silent_changes"),
        "code_executed": _sum(files, "code_executed"),
        "episodes_lost": _sum(killed, "episodes_lost"),
        "kills": _sum(killed, "kills"),
        "killed_runs": _sum(killed, "runs"),
        "runs_with_other_weights": _sum(killed, "other_weights"),
        "largest_growth_mb": max((cell.get("largest_growth_mb", 0.0) for cell in files), default=0.0),
        "verbs_by_faults": {
            verb: {cell["fault"]: bool(cell["one_line"]) for cell in matrix if cell["verb"] == verb}
            for verb in sorted({cell["verb"] for cell in matrix})
        },
        "cells_of_verbs": len(matrix),
        "failures": [failure for cell in files for failure in cell["failures"]][:20] + failed[:20],
        "note": origin(list(by_name.values())),
    }


def _sum(found: list[dict[str, Any]], name: str) -> int:
    return sum(cell.get(name, 0) for cell in found)


def table(result: dict[str, Any]) -> str:
    """Markdown: one row for each figure."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in result["trials_by_kind"].items())
    refused = sum(sum(faults.values()) for faults in result["verbs_by_faults"].values())
    rows = [
        ("mutated files", f"{result['trials']} ({kinds})"),
        ("tracebacks and internal errors", result["tracebacks"]),
        ("silent changes", result["silent_changes"]),
        ("executed code", result["code_executed"]),
        ("largest growth of memory for a refused file", f"{result['largest_growth_mb']:.0f} MB"),
        ("verbs by faults of their surroundings, one line each", f"{refused} of {result['cells_of_verbs']}"),
        (
            "kills of training (SIGKILL, SIGTERM)",
            f"{result['kills']} over {result['killed_runs']} runs; {result['runs_with_other_weights']} of them ended "
            f"in other weights, {result['episodes_lost']} episodes were lost",
        ),
    ]
    shown = "\n".join(f"| {name} | {value} |" for name, value in rows)
    command = f"Command: `{result['command']}`."
    return f"| what | measured |\n|---|---|\n{shown}\n\n{result['note']} {command}"
