"""Rebuilt inputs of public bug reports, sent through the package's entry points: what is silently wrong, what is
refused without a remedy, what ends in a traceback.

Example: python -m benchmarks data_traps
"""

import argparse
import importlib
import json
import pkgutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.data_traps.traps import TRAPS, meet
from vla_rl.core.progress import track

# Figures of neighboring benchmarks that belong to the same promise, by benchmark.
_BESIDE = {
    "foreign-scenes": ("raycast_egl_disagreement_max",),
    "interruption": ("interrupt_seconds_max", "children_left"),
    "scale-floor": ("input_max", "input_max_before"),
    "neighbor": ("supervise_ratio_busy", "supervise_ratio_idle"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kinds", nargs="*", default=[], metavar="KIND", help="only traps of these kinds")


def load() -> None:
    """Import every module of traps beside this one; importing registers its traps."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Meet all traps and count the verdicts."""
    load()
    chosen = [found for found in TRAPS if not options.kinds or found.kind in options.kinds]
    outcomes = []
    for found in track(chosen, "traps", "trap"):
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(meet(found, Path(folder)))
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    return {
        "inputs": len(outcomes),
        "inputs_by_kind": dict(sorted(Counter(outcome.kind for outcome in outcomes).items())),
        "right": verdicts["right"],
        "refused": verdicts["refused"],
        "silent_wrong": verdicts["silently wrong"],
        "refused_without_remedy": verdicts["refused without remedy"],
        "tracebacks": verdicts["traceback"],
        **_beside(options.out),
        "outcomes": [outcome.to_plain() for outcome in outcomes],
    }


def _beside(results: Path) -> dict[str, Any]:
    """Return the figures of the neighboring benchmarks, as far as they have been measured."""
    figures: dict[str, Any] = {}
    for name, keys in _BESIDE.items():
        file = results / f"{name}.json"
        if file.exists():
            measured = json.loads(file.read_text())
            figures |= {key: measured[key] for key in keys}
    return figures


def table(result: dict[str, Any]) -> str:
    """Return Markdown: one row per figure, then one row per input that was not met."""
    names = ["inputs", "right", "refused", "silent_wrong", "refused_without_remedy", "tracebacks"]
    names += [name for keys in _BESIDE.values() for name in keys if name in result]
    rows = [f"| {name.replace('_', ' ')} | {result[name]:.3g} |" for name in names]
    missed = [
        f"- {outcome['verdict']}: {outcome['input']} -> {outcome['printed']}"
        for outcome in result["outcomes"]
        if outcome["verdict"] not in ("right", "refused")
    ]
    return "\n".join(["| what | measured |", "|---|---|", *rows, *([""] if missed else []), *missed])
