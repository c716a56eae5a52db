"""The demo over several seeds, with two controls: the same supervised policy, the same number of gradient steps.

``behaviour cloning`` goes on with the same demonstrations; ``filtered`` also practises, alone, and adds its own
successes. Cells are kept in OUT/demo/ and in the run folders: an interrupted benchmark goes on where it was.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vla_rl.cli.benchmarks.runs import evaluations, is_finished, start_verb
from vla_rl.core.files import write_atomic
from vla_rl.report.statistics import wilson_interval

CONTROLS = {
    "behaviour cloning": ["algorithm=sft", "budget.episodes_per_round=0"],
    "filtered": ["algorithm=filtered_bc", "takeover.enabled=false"],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-demo"), help="where the run folders are kept")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is missing and gather all cells."""
    cells = options.out / "demo"
    cells.mkdir(parents=True, exist_ok=True)
    setup_file = cells / "setup.json"
    if not setup_file.exists():
        write_atomic(setup_file, json.dumps({"setup_s": _measure_setup_s()}).encode())
    setup_s = json.loads(setup_file.read_text())["setup_s"]
    missing = [seed for seed in options.seeds if not (cells / f"seed-{seed}.json").exists()]
    # Demos one after the other; the controls of those that are done, one at a time and at low priority, beside them.
    with ThreadPoolExecutor(1) as beside:
        controls = {}
        for seed in missing:
            main = options.runs / f"seed-{seed}"
            if not is_finished(main):
                wall_s = start_verb(["demo", "--seed", str(seed)], main).wait_or_fail()
                with main.with_suffix(".wall_s").open("a") as attempts:  # of a benchmark that was interrupted
                    attempts.write(f"{wall_s:.1f}\n")
            controls[seed] = beside.submit(_run_controls, seed, options.runs)
        for seed in missing:
            controls[seed].result()
            cell = _gather_cell(seed, options.runs, setup_s)
            write_atomic(cells / f"seed-{seed}.json", (json.dumps(cell, indent=1) + "\n").encode())
    runs = [json.loads(file.read_text()) for file in sorted(cells.glob("seed-*.json"))]
    return {"setup_s": setup_s, "runs": runs, "passed": sum(_passes(cell) for cell in runs)}


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per seed."""
    head = [
        "| seed | supervised | after practice | control: same steps, demonstrations only "
        "| control: same steps, own successes added | steps to success, first -> last policy | wall clock |",
        "|---|---|---|---|---|---|---|",
    ]
    machine, episodes = result["machine"], result["runs"][0]["episodes"]
    note = (
        f"Success on {episodes} fixed held-out seeds [95 % Wilson interval]; the wall clock includes "
        f"{result['setup_s']:.0f} s of set-up. {machine['cpu']}, {machine['cores']} cores, no GPU. "
        f"Command: `{result['command']}`."
    )
    return "\n".join([*head, *map(_row, result["runs"]), "", note])


def _row(cell: dict[str, Any]) -> str:
    names = ("sft_success", "final_success", "control_success", "filtered_success")
    first, last, control, filtered = (_percent(cell[name], cell["episodes"]) for name in names)
    lengths, wall = f"{cell['sft_length']:.0f} -> {cell['final_length']:.0f}", f"{cell['wall_s'] / 60:.1f} min"
    return f"| {cell['seed']} | {first} | **{last}** | {control} | {filtered} | {lengths} | {wall} |"


def _percent(success: float, episodes: int) -> str:
    low, high = wilson_interval(round(success * episodes), episodes)
    return f"{success:.0%} [{low * 100:.0f}, {high * 100:.0f}]"


def _passes(cell: dict[str, Any]) -> bool:
    gain = cell["final_success"] - cell["sft_success"]
    return (
        0.25 <= cell["sft_success"] <= 0.60 and cell["final_success"] >= 0.85 and gain >= 0.30 and cell["wall_s"] <= 900
    )


def _measure_setup_s() -> float:
    """Seconds to bring the locked environment to a machine that has none of its packages."""
    uv = shutil.which("uv") or str(Path(".tools/bin/uv").absolute())
    with tempfile.TemporaryDirectory() as empty:
        started_s = time.perf_counter()
        command = [uv, "sync", "--locked", "--no-cache", "--quiet", "--extra", "train"]
        subprocess.run(command, check=True, env={**os.environ, "UV_PROJECT_ENVIRONMENT": f"{empty}/venv"})
        return round(time.perf_counter() - started_s, 1)


def _run_controls(seed: int, runs: Path) -> None:
    """Both controls of a seed, from the supervised policy of its demo."""
    for name, overrides in CONTROLS.items():
        if is_finished(_control_folder(seed, runs, name)):
            continue
        arguments = ["train", "--config", "demo", "--seed", str(seed), "--from", str(runs / f"seed-{seed}")]
        overrides = [*overrides, "budget.evaluate_every_round=false", "workers=1"]
        start_verb([*arguments, *overrides], _control_folder(seed, runs, name), nice=10).wait_or_fail()


def _control_folder(seed: int, runs: Path, name: str) -> Path:
    return runs / f"seed-{seed}-{name.replace(' ', '-')}"


def _gather_cell(seed: int, runs: Path, setup_s: float) -> dict[str, Any]:
    """The figures of a seed from its run folders."""
    main = runs / f"seed-{seed}"
    first, *_, last = evaluations(main)
    final = {name: evaluations(_control_folder(seed, runs, name))[-1] for name in CONTROLS}
    wall_s = sum(map(float, main.with_suffix(".wall_s").read_text().split()))
    return {
        "seed": seed,
        "sft_success": first["successes"] / first["episodes"],
        "final_success": last["successes"] / last["episodes"],
        "control_success": final["behaviour cloning"]["successes"] / final["behaviour cloning"]["episodes"],
        "filtered_success": final["filtered"]["successes"] / final["filtered"]["episodes"],
        "episodes": last["episodes"],
        "sft_length": first["mean_success_length"],
        "final_length": last["mean_success_length"],
        "gradient_steps": last["gradient_steps"],
        "real_episodes": last["real_episodes"],
        "wall_s": round(wall_s + setup_s, 1),
    }
