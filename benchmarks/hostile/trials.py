"""Trials in process: a file of a kind is mutated, its entry function reads the folder, and what happens is judged.

A block of trials runs in a forked child, which has everything imported: a crash of native code is an outcome, not the
end. Memory is the high-water mark of the child, reset before every trial.
"""

import contextlib
import io
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.hostile.kinds import KINDS, Kind
from benchmarks.hostile.mutations import hostile_yaml, mutate
from vla_rl.core.errors import UserError

BLOCK = 250


def run_block(name: str, block: int) -> dict[str, Any]:
    """The trials of one block of a kind.

    Returns:
        ``trials``: mutations that changed a file's meaning; ``without_meaning``: others; ``tracebacks``,
        ``silent_changes``, ``code_executed`` with examples in ``failures``; ``largest_growth_mb`` of a refused file;
        ``by_mutation``.
    """
    with tempfile.TemporaryDirectory(prefix="vla-rl-hostile-") as scratch:
        folder = Path(scratch)
        results = list(_in_children(lambda first: _trials(KINDS[name], folder, block, first)))
    counted = [result for result in results if result["outcome"] != "without meaning"]
    failed = [result for result in counted if result["outcome"] != "refused"]
    mutations = sorted({result["mutation"] for result in counted})
    return {
        "kind": name,
        "trials": len(counted),
        "without_meaning": len(results) - len(counted),
        "tracebacks": sum(result["outcome"] in ("traceback", "crash") for result in failed),
        "silent_changes": sum(result["outcome"] == "silent change" for result in failed),
        "code_executed": sum(result["outcome"] == "code executed" for result in failed),
        "largest_growth_mb": max((result["growth_mb"] for result in counted), default=0.0),
        "by_mutation": {name: sum(result["mutation"] == name for result in counted) for name in mutations},
        "failures": failed[:5],
    }


def _in_children(work: Callable[[int], Iterator[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Run a block in forked children: one that crashes is followed by the next, behind the trial that it died of."""
    first = 0
    while first < BLOCK:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            logging.disable()  # an older checkpoint is taken, and says so
            try:
                with os.fdopen(writing, "w", buffering=1) as stream:
                    for result in work(first):
                        stream.write(json.dumps(result) + "\n")
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as stream:
            for line in stream:
                yield json.loads(line)
                first += 1
        _, status = os.waitpid(child, 0)
        if first < BLOCK:
            if os.WIFEXITED(status):
                raise RuntimeError(f"the trials themselves failed behind trial {first}; see above")
            yield {"mutation": "?", "outcome": "crash", "growth_mb": 0.0, "detail": f"signal {os.WTERMSIG(status)}"}
            first += 1


def _trials(kind: Kind, scratch: Path, block: int, first: int) -> Iterator[dict[str, Any]]:
    import torch

    torch.set_num_threads(1)
    whole, mark = scratch / "whole", scratch / "executed"
    if not whole.exists():
        kind.make(whole)
    expected = kind.read(Path(shutil.copytree(whole, scratch / "first", dirs_exist_ok=True)))
    for number in range(first, BLOCK):
        chance = random.Random(f"{block} {number}")
        copy = Path(shutil.copytree(whole, scratch / "copy"))
        name = spoil(kind, copy, chance, mark)
        outcome, detail, growth_mb = judge(kind, copy, expected)
        if mark.exists():
            outcome = "code executed"
            mark.unlink()
        shutil.rmtree(copy)
        yield {
            "trial": number,
            "mutation": name,
            "outcome": outcome,
            "growth_mb": round(growth_mb, 1),
            "detail": detail,
        }


def spoil(kind: Kind, folder: Path, chance: random.Random, mark: Path) -> str:
    """Mutate one file in a folder; returns how."""
    files = sorted({file for pattern in kind.patterns for file in folder.glob(pattern) if file.is_file()})
    file = chance.choice(files)
    content = file.read_bytes()
    if kind.mutations == ("hostile yaml",):
        name, changed = hostile_yaml(content, chance, mark)
    else:
        others = [other.read_bytes() for other in files if other != file]
        name, changed = mutate(content, others, chance, mark)
        while kind.mutations and name not in kind.mutations:
            name, changed = mutate(content, others, chance, mark)
    file.write_bytes(changed)
    return name


def judge(kind: Kind, folder: Path, expected: str) -> tuple[str, str, float]:
    """Read a folder: the outcome, its detail, and the growth of memory in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory_mb("VmRSS")
    outcome, detail = "without meaning", ""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            if kind.read(folder) != expected:
                outcome = "silent change"
        except UserError as error:
            outcome, detail = "refused", str(error)
            if "\n" in detail:
                outcome = "traceback"
        except Exception:  # a verb would end with an internal error
            outcome, detail = "traceback", traceback.format_exc()[-1500:]
    return outcome, detail[:1500] if outcome != "refused" else "", _memory_mb("VmHWM") - before


def _memory_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"this system does not report {field}")


if __name__ == "__main__":
    print(json.dumps(run_block(sys.argv[1], int(sys.argv[2])), indent=1))
