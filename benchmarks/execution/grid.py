"""Success, motion and simulated time of every strategy against the delay of inference, on the virtual clock."""

import functools
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cells import Cells
from benchmarks.execution.motion import Motion
from benchmarks.execution.policies import LONGEST_DELAY, policy_folder
from benchmarks.runs import short_name
from robot_io.gate import GateConfig
from vla_rl.acting.policy_folder import load_acting_policy
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.progress import track
from vla_rl.core.protocols import Policy
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import run_episode
from vla_rl.execution.strategies import ExecutionConfig, execution_config
from vla_rl.execution.virtual import LatencyConfig, make_planner
from vla_rl.policies.corrector import FOLDER, ResidualCorrector
from vla_rl.training.config import TaskConfig
from vla_rl.training.plan import evaluation_seed

POLICY_OF = {
    "sync": "plain",
    "naive": "plain",
    "temporal_ensembling": "plain",
    "rtc": "plain",
    "rtc_identity": "plain",
    "training_time_prefix": "prefix",
    "xiaomi": "xiaomi",
    "vlash": "vlash",
    "a2c2": "plain",
}
"""Strategy -> the variant of training that its policy has."""
DELAYS = (0, 1, 2, 4, 6, 8)
OTHER_TASKS = ("vla_rl/LidOnBox-v0", "vla_rl/Handover-v0")
OTHER_DELAY = 4
EXECUTE_TICKS = 6
"""s, but never less than the delay."""


@dataclass(frozen=True)
class Cell:
    """One point: a strategy on a task at a fixed delay, in ticks."""

    task: str
    strategy: str
    delay_ticks: int

    @property
    def name(self) -> str:
        return f"success-{short_name(self.task)}-{self.strategy}-d{self.delay_ticks}"

    @property
    def variant(self) -> str:
        """Of the policy's training."""
        return POLICY_OF[self.strategy]


def wanted(strategies: Sequence[str], delays: Sequence[int], others: Sequence[str], task: str) -> list[Cell]:
    """All cells that are asked for.

    Raises:
        UserError: for a strategy that there is not, or a delay beyond what policies are trained for.
    """
    for name in strategies:
        if name not in POLICY_OF:
            raise UserError(f"there is no strategy {name!r} in this benchmark.{did_you_mean(name, POLICY_OF)}")
    for delay in delays:
        if not 0 <= delay <= LONGEST_DELAY:
            raise UserError(f"a delay of {delay} ticks is not among 0 to {LONGEST_DELAY}")
    cells = [Cell(task, name, delay) for delay in delays for name in strategies]
    return cells + [Cell(other, name, OTHER_DELAY) for other in others for name in strategies]


def missing(cells: Sequence[Cell], store: Cells, episodes: int) -> list[Cell]:
    """The cells that were not measured yet, or on fewer episodes than asked for. The first episodes of a cell are the
    same whatever their number.
    """
    found = store.by_name()
    return [cell for cell in cells if found.get(cell.name, {"episodes": 0})["episodes"] < episodes]


def measure(cells: Sequence[Cell], store: Cells, runs: Path, task: TaskConfig, episodes: int, jobs: int) -> None:
    """Measure cells, several at a time, and keep each once it is done."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = {
            pool.submit(
                measure_cell, cell, policy_folder(runs, cell.task, cell.variant), replace(task, env=cell.task), episodes
            ): cell
            for cell in cells
        }
        for done in track(as_completed(waiting), "success", "cell", len(waiting)):
            store.write(waiting[done].name, done.result())


def measure_cell(cell: Cell, policy: Path, task: TaskConfig, episodes: int) -> dict[str, Any]:
    """Run the episodes of a cell, on the seeds of evaluation."""
    from vla_rl.acting.task import make_gate, open_robot

    robot = open_robot(task)
    gate = make_gate(robot, GateConfig())
    latency = LatencyConfig(typical=cell.delay_ticks)
    planner = make_planner(_policy(policy), robot.clock, robot.control_hz, latency)
    corrector = ResidualCorrector.load(policy / FOLDER) if cell.strategy == "a2c2" else None
    grippers = robot.actions.gripper_dims
    executor = Executor(planner, execution_of(cell, grippers), corrector)
    motion = Motion(grippers, robot.control_hz)
    summaries = []
    for index in range(episodes):
        gate.rearm()
        motion.begin()
        summaries.append(run_episode(robot, executor, gate, seed=evaluation_seed(index), subscribers=[motion]))
    robot.close()
    return {
        "kind": "success",
        "task": cell.task,
        "strategy": cell.strategy,
        "delay_ticks": cell.delay_ticks,
        "variant": cell.variant,
        "episodes": episodes,
        "successes": sum(summary.success is True for summary in summaries),
        "simulated_s": sum(summary.duration_s for summary in summaries),
        "held_ticks": sum(summary.held_ticks for summary in summaries),
        "ticks": sum(summary.ticks for summary in summaries),
        **motion.measures(),
    }


def execution_of(cell: Cell, grippers: tuple[int, ...]) -> ExecutionConfig:
    """How a cell's chunks are executed. ``sync`` stops the simulated world while it infers and is charged the time."""
    longest = cell.delay_ticks if cell.strategy == "xiaomi" else LONGEST_DELAY
    options: dict[str, dict[str, Any]] = {
        "sync": {"sync_pause": "freeze"},
        "training_time_prefix": {"max_prefix_ticks": longest},
        "xiaomi": {"max_prefix_ticks": longest},
    }
    return execution_config(
        cell.strategy,
        execute_ticks=max(EXECUTE_TICKS, cell.delay_ticks),
        expected_delay_ticks=cell.delay_ticks,
        discrete_dims=grippers,
        **options.get(cell.strategy, {}),
    )


@functools.lru_cache(maxsize=1)
def _policy(folder: Path) -> Policy:
    return load_acting_policy(folder)
