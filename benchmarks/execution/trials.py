"""Alignment of actions with their ticks, and stops after faults: many random attempts without any hardware.

The tests run the same attempts in smaller numbers.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from benchmarks.cells import Cells
from tests.fakes.faulty_attempts import CHAOS, HASTY, STOPS_WITHIN_S, drive, misaligned, run_trial
from vla_rl.core.progress import track

_TICKS_PER_CELL, _TRIALS_PER_CELL = 1_000_000, 1_000


def measure_faults(cells: Cells, trials: int, jobs: int) -> None:
    """Run fault trials, a thousand to a cell."""
    _measure(cells, "faults", _fault_cell, trials, _TRIALS_PER_CELL, jobs)


def measure_alignment(cells: Cells, ticks: int, jobs: int) -> None:
    """Run ticks of chaos, a million to a cell."""
    _measure(cells, "alignment", _alignment_cell, ticks, _TICKS_PER_CELL, jobs)


def _measure(cells: Cells, kind: str, cell: Any, total: int, per_cell: int, jobs: int) -> None:
    starts = [start for start in range(0, total, per_cell) if f"{kind}-{start:08d}" not in cells]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(cell, start, min(per_cell, total - start)): start for start in starts}
        for done in track(as_completed(waiting), kind, "cell", len(waiting)):
            cells.write(f"{kind}-{waiting[done]:08d}", {"kind": kind, **done.result()})


def _fault_cell(first: int, trials: int) -> dict[str, Any]:
    failures = []
    for trial in range(first, first + trials):
        kind, stop_s, wrong = run_trial(trial)
        if wrong or stop_s > STOPS_WITHIN_S[kind]:
            failures.append({"trial": trial, "fault": kind, "stop_s": stop_s, "wrong": wrong})
    return {"trials": trials, "failed": len(failures), "failures": failures}


def _alignment_cell(first: int, ticks: int) -> dict[str, Any]:
    columns = drive(HASTY, CHAOS, ticks, seed=first)
    wrong = misaligned(columns)
    planned = float(columns["planned"].mean())
    return {"ticks": ticks, "misaligned": int(wrong.sum()), "planned_share": planned}
