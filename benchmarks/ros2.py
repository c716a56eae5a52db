"""A policy over ROS 2 topics against the same policy in process, the timing of the node, and its reactions to faults.

Cells in the folder --work resume: a finished one is not run again. ``--soak-minutes 480`` is the 8-hour soak. Needs a
sourced ROS 2, or the group ros-test. Without --run the scripted expert acts, in a twin of the world.
"""

import argparse
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fakes.ros2_rig import RMWS, ros_environment, run_with_ros
from vla_rl.core.files import write_atomic

_MODULE = "benchmarks.ros2_trials"
_FAULTS = ("camera_silent", "joints_silent", "joints_frozen", "clock_jump", "policy_killed")
_EXPERT = "expert:sim:vla_rl/PegInsert-v0?difficulty={difficulty}"

Cell = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=Path, help="a run of the default task, whose newest policy acts")
    parser.add_argument("--episodes", type=int, default=100, help="over topics, and as many in process")
    parser.add_argument("--fault-trials", type=int, default=10, help="of each fault")
    parser.add_argument("--takeovers", type=int, default=10)
    parser.add_argument("--soak-minutes", type=float, default=10.0, help="of the loop at 50 Hz; 480 for 8 hours")
    parser.add_argument("--rmw", nargs="+", default=list(RMWS), help="middlewares")
    parser.add_argument("--difficulty", type=float, default=0.3)
    parser.add_argument("--work", type=Path, default=Path("runs/bench/ros2"), help="folder of the cells")


def run(options: argparse.Namespace) -> dict[str, Any]:
    env = {"difficulty": options.difficulty}
    policy = str(options.run.resolve()) if options.run else _EXPERT.format(difficulty=options.difficulty)
    task = {"policy": policy, "env_options": env}
    cells: dict[str, dict[str, Cell]] = {}
    for rmw in options.rmw:
        trial = functools.partial(_trial, options.work / rmw, rmw)
        faults = [fault for fault in (*_FAULTS, "nan_action") for _ in range(options.fault_trials)]
        soak_s = options.soak_minutes * 60.0
        # Faults and the soak are the node's affair, not the policy's: the expert acts, which needs no training.
        expert = {"policy": _EXPERT.format(difficulty=options.difficulty), "env_options": env}
        cells[rmw] = {
            "episodes": trial("episodes", {**task, "episodes": options.episodes}),
            "takeovers": trial("takeovers", {**expert, "takeovers": options.takeovers}),
            "faults": trial("faults", {**expert, "faults": faults}),
            "peer": trial("peer", {**expert, "lockstep": False, "faults": ["peer_gone"] * options.fault_trials}),
            "soak": trial(f"soak-{options.soak_minutes:g}", {**expert, "lockstep": False, "soak_s": soak_s}),
        }
    inside = _cell(options.work / "in-process.json", lambda: _in_process(options, policy))
    rows = [_row(rmw, cells[rmw], inside) for rmw in cells]
    return {"policy": "trained" if options.run else "expert", **_worst(rows), "rows": rows}


def table(result: dict[str, Any]) -> str:
    """Markdown: one column per middleware."""
    rows = result["rows"]
    lines = [
        ("success over topics", lambda row: _share(row["over_topics"])),
        ("success in process, same seeds", lambda row: _share(row["in_process"])),
        ("within the 95 % intervals of each other", lambda row: "yes" if row["success_within_interval"] else "no"),
        (
            "added latency, reading to command, p50 / p99",
            lambda row: _latency(row["latency_ms"]),
        ),
        ("period p99 at 50 Hz (20 ms)", lambda row: f"{row['period_p99_ms']:.2f} ms"),
        ("soak", lambda row: f"{row['soak_ticks']} ticks, {row['missed_commands']} missed"),
        ("takeovers exact to the tick, without a jump", lambda row: f"{row['takeovers_exact']}/{row['takeovers']}"),
        ("faults that were not met in time", lambda row: f"{row['fault_trials_failed']}/{row['fault_trials']}"),
        ("longest reaction to a fault / declared", lambda row: f"{row['worst_reaction']:.2f}"),
    ]
    head = [f"| | {' | '.join(row['rmw'] for row in rows)} |", "|---|" + "---|" * len(rows)]
    body = [f"| {name} | {' | '.join(show(row) for row in rows)} |" for name, show in lines]
    acting = "A trained policy acts" if result["policy"] == "trained" else "The scripted expert acts"
    return "\n".join([*head, *body, "", f"{acting}. {result['machine']['cpu']}. Command: `{result['command']}`."])


def _trial(folder: Path, rmw: str, name: str, config: dict[str, Any]) -> Cell:
    """One run of the two nodes."""
    work = folder / name

    def measure() -> Cell:
        work.mkdir(parents=True, exist_ok=True)
        arguments = json.dumps({"folder": str(work.resolve()), **config})
        found: Cell = run_with_ros(_MODULE, [arguments], ros_environment(rmw))
        return found

    return _cell(folder / f"{name}.json", measure)


def _cell(file: Path, measure: Callable[[], Cell]) -> Cell:
    """A finished cell, or what measuring it gives."""
    if file.exists():
        known: Cell = json.loads(file.read_text())
        return known
    found = measure()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps(found, indent=1).encode())
    return found


def _in_process(options: argparse.Namespace, policy: str) -> Cell:
    """The same policy, executor, gate and seeds without topics; its answers come one tick late, as over topics."""
    from benchmarks.ros2_trials import EXECUTION
    from robot_io.gate import SafetyGate
    from robot_io.limits import RobotLimits
    from vla_rl.core.clock import VirtualClock
    from vla_rl.core.config import load_config
    from vla_rl.core.protocols import Policy
    from vla_rl.execution.executor import Executor
    from vla_rl.execution.loop import run_episode
    from vla_rl.execution.virtual import LatencyConfig, VirtualPlanner
    from vla_rl.runs.capability import load_corrector
    from vla_rl.runs.config import TaskConfig
    from vla_rl.runs.config_files import CONFIGS
    from vla_rl.runs.expert_policy import EXPERT, find_expert
    from vla_rl.runs.policy_folder import find_policy, load_acting_policy
    from vla_rl.runs.rollout import resolve_config
    from vla_rl.runs.task import open_robot

    if policy.startswith(EXPERT):
        folder, load = find_expert(policy)
        acting: Policy = load()
    else:
        folder = find_policy(Path(policy))
        acting = load_acting_policy(folder.path)
    execution = resolve_config(folder, overrides=EXECUTION, realtime=True).execution  # as the node resolves it
    execution = replace(execution, discrete_dims=execution.discrete_dims or folder.discrete_dims)
    clock = VirtualClock()
    robot = open_robot(TaskConfig(difficulty=options.difficulty, image_size=folder.spec.image_size[0]), clock=clock)
    gate = SafetyGate(load_config(RobotLimits, CONFIGS / "robots" / "tabletop.yaml"), robot.control_hz)
    planner = VirtualPlanner(acting, clock, robot.control_hz, LatencyConfig(typical=1.0))
    corrector = load_corrector(execution, folder)
    successes = 0
    for seed in range(options.episodes):
        gate.rearm()
        successes += run_episode(robot, Executor(planner, execution, corrector), gate, seed=seed).success is True
    robot.close()
    return {"episodes": options.episodes, "successes": successes}


def _row(rmw: str, cells: dict[str, Cell], inside: Cell) -> dict[str, Any]:
    from vla_rl.report.statistics import wilson_interval

    outside = cells["episodes"]["episodes"]
    low, high = wilson_interval(inside["successes"], inside["episodes"])
    theirs = wilson_interval(outside["successes"], outside["episodes"])
    trials = [*cells["faults"]["faults"], *cells["peer"]["faults"]]
    takeovers, soak = cells["takeovers"]["takeovers"], cells["soak"]["soak"]
    return {
        "rmw": rmw,
        "over_topics": [outside["successes"], outside["episodes"]],
        "in_process": [inside["successes"], inside["episodes"]],
        "success_within_interval": low <= theirs[1] and theirs[0] <= high,
        "latency_ms": cells["episodes"]["latency_ms"],
        "period_p99_ms": soak["period_p99_ms"],
        "missed_commands": soak["missed"],
        "soak_ticks": soak["ticks"],
        "takeovers": len(takeovers),
        "takeovers_exact": sum(_is_exact(trial) for trial in takeovers),
        "fault_trials": len(trials),
        "fault_trials_failed": sum(not trial["passed"] for trial in trials),
        "worst_reaction": max(trial["reaction_ms"] / trial["declared_ms"] for trial in trials),
    }


def _worst(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all middlewares together: the worst, or the sum of what should be 0."""
    return {
        "success_within_interval": all(row["success_within_interval"] for row in rows),
        "period_p99_ms": max(row["period_p99_ms"] for row in rows),
        "missed_commands": sum(row["missed_commands"] for row in rows),
        "added_latency_ms": {name: max(row["latency_ms"][name] for row in rows) for name in ("p50", "p99")},
        "fault_trials": sum(row["fault_trials"] for row in rows),
        "fault_trials_failed": sum(row["fault_trials_failed"] for row in rows),
    }


def _is_exact(takeover: Cell) -> bool:
    return bool(takeover["exact"] and takeover["largest_jump"] <= takeover["allowed_jump"])


def _latency(latency_ms: Mapping[str, float]) -> str:
    return f"{latency_ms['p50']:.1f} / {latency_ms['p99']:.1f} ms"


def _share(counts: list[int]) -> str:
    from vla_rl.report.statistics import wilson_interval

    low, high = wilson_interval(*counts)
    return f"{counts[0]}/{counts[1]} [{low:.0%}, {high:.0%}]"
