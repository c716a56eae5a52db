"""The demo's practice at an older commit, against now. Both have the same seeds, gradient samples and episodes, one run
after the other on one machine, in alternating order.

The older commit's sources run in this environment. Practice alone, which it did not have, is left out.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import alternating
from benchmarks.runs import evaluations

BEFORE = "198e470"
"""The last commit whose workers play one episode at a time and whose learner knows float32 alone."""
_REPOSITORY = Path(__file__).parents[1]


def measure(seed: int, runs: Path) -> dict[str, Any]:
    """One seed, with both programs; what was interrupted begins anew, since its wall clock is the result.

    Args:
        seed: of the demo.
        runs: where the run folders are kept.
    """
    found: dict[str, Any] = {"seed": seed, "before": BEFORE}
    with _sources(BEFORE) as before:
        turns = [("before", before, []), ("now", _REPOSITORY, ["--alone", ""])]
        for name, sources, words in turns if seed % 2 == 0 else turns[::-1]:
            folder = runs.absolute() / f"demo-{seed}-{name}"
            shutil.rmtree(folder, ignore_errors=True)
            started_s = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "vla_rl.cli.main", "demo", "--seed", str(seed), "--out", str(folder), *words],
                cwd=sources,
                env={**os.environ, "PYTHONPATH": str(sources)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
            found[f"{name}_s"] = round(time.perf_counter() - started_s, 1)
            last = evaluations(folder)[-1]
            found[f"{name}_success"] = last["successes"] / last["episodes"]
    return found


def keys(found: list[dict[str, Any]]) -> dict[str, float]:
    """What scale.json gets of these cells; nothing of none."""
    if not found:
        return {}
    return {
        "demo_wall_ratio": alternating.seconds_ratio(found, "now", "before"),
        "demo_success_points": alternating.success_points(found, "now", "before"),
        "demo_seeds": len(found),
    }


def table(found: list[dict[str, Any]]) -> str:
    """Markdown: one row per seed."""
    return alternating.table(found, "before", "now", ("before", "now"))


@contextmanager
def _sources(commit: str) -> Iterator[Path]:
    """The files of a commit, in a folder that goes away."""
    with tempfile.TemporaryDirectory() as name:
        packed = subprocess.run(["git", "archive", commit], cwd=_REPOSITORY, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "--extract", f"--directory={name}"], input=packed, check=True)
        yield Path(name)
