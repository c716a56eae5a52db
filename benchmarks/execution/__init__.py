"""Execution of action chunks: success against the delay of inference for every strategy, the cost of a tick, jitter,
faults and alignment.

Success is measured on the virtual clock, where a delay is exact and episodes run as fast as the processor allows. The
benchmark trains the policies itself (see `policies`). Finished cells are kept in OUT/execution/ and not measured again.
All of it takes about 2.3 core-hours; --parts chooses.
"""

import argparse
import os
from pathlib import Path
from typing import Any

PARTS = ("grid", "faults", "alignment", "host", "jitter")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from benchmarks.execution import grid

    parser.add_argument("--parts", nargs="+", default=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--strategies", nargs="+", default=list(grid.POLICY_OF), metavar="NAME")
    parser.add_argument("--delays", nargs="+", type=int, default=list(grid.DELAYS), metavar="TICKS")
    parser.add_argument("--other-tasks", nargs="*", default=list(grid.OTHER_TASKS), help="measured at a delay of 4")
    parser.add_argument("--episodes", type=int, default=200, help="per cell; cells of fewer are measured anew")
    parser.add_argument("--trials", type=int, default=10_000, help="of faults")
    parser.add_argument("--ticks", type=int, default=10_000_000, help="of alignment")
    parser.add_argument("--seconds", type=float, default=300.0, help="of jitter, for each of the two")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="policies or cells at a time")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-execution"), help="where policies are kept")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="section.key=value", help="of configs/execution.yaml"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is asked for and missing, and gather all that there is."""
    from benchmarks.cells import Cells
    from benchmarks.execution import grid, host_cost, jitter, trials
    from benchmarks.execution.plots import draw
    from benchmarks.execution.policies import VARIANTS, policy_folder, train_policies
    from benchmarks.execution.summary import summarize
    from vla_rl.core.config import load_config
    from vla_rl.core.config_files import config_file, read_yaml
    from vla_rl.core.errors import UserError, did_you_mean
    from vla_rl.training.config import RunConfig

    for part in options.parts:
        if part not in PARTS:
            raise UserError(f"there is no part {part!r} of this benchmark.{did_you_mean(part, PARTS)}")
    config = load_config(RunConfig, config_file("execution"), options.overrides)
    settings = {"config": read_yaml(config_file("execution")), "changes": options.overrides, "variants": VARIANTS}
    cells = Cells(options.out / "execution", settings)
    runs = options.runs / cells.digest
    wanted = grid.wanted(options.strategies, options.delays, options.other_tasks, config.task.env)
    missing = grid.missing(wanted, cells, options.episodes) if "grid" in options.parts else []
    if missing:
        train_policies({(cell.task, cell.variant) for cell in missing}, runs, options.overrides, options.jobs)
        grid.measure(missing, cells, runs, config.task, options.episodes, options.jobs)
    if "faults" in options.parts:
        trials.measure_faults(cells, options.trials, options.jobs)
    if "alignment" in options.parts:
        trials.measure_alignment(cells, options.ticks, options.jobs)
    # Timings come last and alone: nothing of this benchmark runs beside them.
    if "host" in options.parts:
        host_cost.measure(cells)
        train_policies({(config.task.env, "plain")}, runs, options.overrides, options.jobs)
        host_cost.measure_corrector(cells, policy_folder(runs, config.task.env, "plain"))
    if "jitter" in options.parts:
        jitter.measure(cells, options.seconds)
    result = summarize(cells.read())
    draw(result, options.out)
    return result


def table(result: dict[str, Any]) -> str:
    """Markdown: what must hold, success against the delay, and motion at a delay of 4."""
    from benchmarks.execution.summary import as_markdown

    return as_markdown(result)
