"""The demo over several seeds, with two controls: the same supervised policy, the same number of gradient steps.

``behavior cloning`` goes on with the same demonstrations; ``filtered`` also practices, alone, and adds its own
successes. Cells are kept in OUT/demo/ and in the run folders: an interrupted benchmark goes on where it was.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.cells import Cells, origin
from benchmarks.runs import claim_run, evaluations, run_verb, start_verb
from vla_rl.core.config_files import config_file, read_yaml
from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic
from vla_rl.data.run_folder import RunFolder
from vla_rl.report.html import build_report
from vla_rl.report.statistics import wilson_interval
from vla_rl.training.beside import NAME as ALONE
from vla_rl.training.beside import own_settings

CONTROLS = {
    "behavior cloning": ["algorithm=sft", "budget.episodes_per_round=0"],
    "filtered": ["algorithm=filtered_bc", "takeover.enabled=false"],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=2, help="controls at a time, one core each")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-demo"), help="where the run folders are kept")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is missing and gather all cells."""
    settings = {"config": read_yaml(config_file("demo")), "controls": CONTROLS, "alone": own_settings("imagined")}
    cells = Cells(options.out / "demo", settings)
    runs = options.runs / cells.digest
    missing = [seed for seed in options.seeds if f"seed-{seed}" not in cells]
    setup_s = _measure_setup_s() if missing else 0.0
    for seed in missing:  # one after the other: their wall clock is a result
        _run_demo(seed, runs)
    with ThreadPoolExecutor(options.jobs) as pool:
        for seed, _ in zip(missing, pool.map(lambda seed: _run_controls(seed, runs), missing), strict=True):
            cells.write(f"seed-{seed}", _gather_cell(seed, runs, setup_s))
    found = cells.read()
    return {"runs": found, "passed": sum(_passes(cell) for cell in found)}


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per seed."""
    head = [
        "| seed | supervised | after practice | one round of practice alone | control: same steps, demonstrations only "
        "| control: same steps, own successes added | steps to success, first -> last policy | wall clock |",
        "|---|---|---|---|---|---|---|---|",
    ]
    machine, cell = result["machine"], result["runs"][0]
    note = (
        f"Success on {cell['episodes']} fixed held-out seeds [95 % Wilson interval]; the wall clock includes "
        f"{cell['setup_s']:.0f} s of set-up. {machine['cores']} cores, no GPU. "
        f"{origin(result['runs'])} Command: `{result['command']}`."
    )
    return "\n".join([*head, *map(_row, result["runs"]), "", note])


def _row(cell: dict[str, Any]) -> str:
    names = ("sft_success", "final_success", "control_success", "filtered_success")
    first, last, control, filtered = (_percent(cell[name], cell["episodes"]) for name in names)
    lengths = " -> ".join(f"{cell[name]:.0f}" if cell[name] else "-" for name in ("sft_length", "final_length"))
    alone = _percent(cell["alone_success"], cell["episodes"]) if "alone_success" in cell else "-"
    wall = f"{cell['wall_s'] / 60:.1f} min"
    return f"| {cell['seed']} | {first} | **{last}** | {alone} | {control} | {filtered} | {lengths} | {wall} |"


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
    uv = shutil.which("uv") or shutil.which("uv", path=".tools/bin")
    if uv is None:
        raise UserError("the set-up is measured with uv, which is not here; `make bench NAME=demo` brings it")
    with tempfile.TemporaryDirectory() as empty:
        started_s = time.perf_counter()
        command = [str(Path(uv).absolute()), "sync", "--locked", "--no-cache", "--quiet", "--extra", "train"]
        subprocess.run(command, check=True, env={**os.environ, "UV_PROJECT_ENVIRONMENT": f"{empty}/venv"})
        return round(time.perf_counter() - started_s, 1)


def _run_demo(seed: int, runs: Path) -> None:
    """The demo in one go: one that was interrupted is begun anew, since its wall clock is a result."""
    main = RunFolder(runs / f"seed-{seed}")
    arguments = ["demo", "--seed", str(seed)]
    if main.is_finished():
        claim_run(arguments, main.path)
        return
    shutil.rmtree(main.path, ignore_errors=True)
    wall_s = start_verb(arguments, main.path).wait_or_fail()
    write_atomic(main.path.with_suffix(".wall_s"), f"{wall_s:.1f}\n".encode())


def _run_controls(seed: int, runs: Path) -> None:
    """Both controls of a seed, from the supervised policy of its demo; they are shown in its report."""
    main = RunFolder(runs / f"seed-{seed}")
    for name, overrides in CONTROLS.items():
        folder = _control_folder(seed, runs, name)
        arguments = ["train", "--config", "demo", "--seed", str(seed), "--from", str(main.path)]
        run_verb([*arguments, *overrides, "budget.evaluate_every_round=false", "workers=1"], folder)
        summary, last = main.read_summary(), evaluations(folder)[-1]
        own = [entry for entry in summary["evaluations"] if entry.get("control") != name]
        main.write_summary({**summary, "evaluations": [*own, {**last, "control": name}]})
    build_report(main.path)


def _control_folder(seed: int, runs: Path, name: str) -> Path:
    return runs / f"seed-{seed}-{name.replace(' ', '-')}"


def _gather_cell(seed: int, runs: Path, setup_s: float) -> dict[str, Any]:
    """The figures of a seed from its run folders."""
    main = runs / f"seed-{seed}"
    first, *_, last = evaluations(main)
    summary = RunFolder(main).read_summary()
    (alone,) = (entry for entry in summary["evaluations"] if entry.get("control") == ALONE)
    final = {name: evaluations(_control_folder(seed, runs, name))[-1] for name in CONTROLS}
    wall_s = float(main.with_suffix(".wall_s").read_text())
    return {
        "seed": seed,
        "sft_success": first["successes"] / first["episodes"],
        "final_success": last["successes"] / last["episodes"],
        "control_success": final["behavior cloning"]["successes"] / final["behavior cloning"]["episodes"],
        "filtered_success": final["filtered"]["successes"] / final["filtered"]["episodes"],
        "alone_success": alone["successes"] / alone["episodes"],
        "alone_real_episodes": alone["real_episodes"],
        "episodes": last["episodes"],
        "sft_length": first["mean_success_length"],
        "final_length": last["mean_success_length"],
        "gradient_steps": last["gradient_steps"],
        "real_episodes": last["real_episodes"],
        "setup_s": setup_s,
        "wall_s": round(wall_s + setup_s, 1),
    }
