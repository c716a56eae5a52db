"""The policy node under faults at random moments, with an observer outside; its refusals, its success and its timing.

Cells in OUT/robot/ resume: a finished one is not run again. ``--soak-minutes 480`` is the 8-hour soak. Needs a
sourced ROS 2, or the group ros-test. Without --run the scripted expert acts, in a copy of the world.
"""

import argparse
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import jtc
from benchmarks.campaign_wave import STEPS
from benchmarks.cells import Cells, origin
from robot_io.faults import FAULTS
from tests.fakes.ros2_rig import RMWS, ros_environment, run_with_ros
from vla_rl.core.config_files import read_yaml
from vla_rl.core.errors import UserError

_TRIALS, _CAMPAIGN, _LAUNCH = "benchmarks.ros2_trials", "benchmarks.campaign", "benchmarks.ros2_launch"
_DIFFICULTY = 0.3  # the launch file's
_EXPERT = f"expert:sim:vla_rl/PegInsert-v0?difficulty={_DIFFICULTY}"
_LAUNCHED = Path("robot_io/ros2/vla_rl_ros/config/simulation.yaml")
_FAULTS_A_CELL = 6
_FAULTS_OF_STEPS = ("camera_silent", "joint_frozen", "following_error", "start_off", "policy_nan", "policy_killed")
_SETTINGS = ("episodes", "fault_trials", "takeovers", "peer_trials", "soak_minutes")

Cell = dict[str, Any]


class _Kept(Cells):
    """Cells that are measured where they are missing, or only some of them."""

    def __init__(self, folder: Path, settings: Any, inputs: Any, only: Sequence[str] | None) -> None:
        super().__init__(folder, settings, inputs)
        self._only = only

    def cell(self, name: str, measure: Callable[[], Cell]) -> Cell:
        """A finished cell, or what measuring it gives; empty where it is not to be measured."""
        if name not in self:
            if self._only is not None and not any(part in name for part in self._only):
                return {}
            self.write(name, measure())
        return self.by_name()[name]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=Path, help="a run of the default task, whose newest policy acts")
    parser.add_argument("--episodes", type=int, default=100, help="over topics, and as many in process")
    parser.add_argument("--fault-trials", type=int, default=30, help="of each fault, on each middleware")
    parser.add_argument("--takeovers", type=int, default=10)
    parser.add_argument("--peer-trials", type=int, default=10, help="of a robot whose computer is gone (SIGKILL)")
    parser.add_argument("--soak-minutes", type=float, default=10.0, help="of the loop at 50 Hz; 480 for 8 hours")
    parser.add_argument("--rmw", nargs="+", default=list(RMWS), help="middlewares")
    parser.add_argument("--cells", nargs="*", help="measure only those whose name has this in it; none: only gather")
    parser.add_argument("--work", type=Path, default=Path("runs/bench/robot"), help="folder of logs and episodes")


def run(options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.campaign_policies import policies_for_strategies
    from benchmarks.robot_in_process import in_process
    from vla_rl.acting.policy_folder import find_policy

    policy = str(options.run.resolve()) if options.run else _EXPERT
    overrides = read_yaml(_LAUNCHED)["/**"]["ros__parameters"]["overrides"]
    policies = policies_for_strategies((options.work / "policies").resolve())
    acting = "trained" if options.run else "expert"
    settings = {name: getattr(options, name) for name in _SETTINGS}
    kept = _Kept(
        options.out / "robot",
        {**settings, "difficulty": _DIFFICULTY, "policy": acting, "faults": _campaign_faults()},
        find_policy(options.run).path if options.run else None,
        options.cells,
    )
    cells = {rmw: _measure(options, kept, rmw, policy, policies) for rmw in options.rmw}
    inside = kept.cell("in-process", lambda: in_process(policy, _DIFFICULTY, options.episodes, overrides))
    for name in ("launch", "soak"):
        if missing := [rmw for rmw in options.rmw if not cells[rmw][name]]:
            raise UserError(f"cell {name} of {', '.join(missing)} is not finished")
    rows = [_row(rmw, cells[rmw], inside) for rmw in cells]
    trials = {rmw: _trials_of(cells[rmw]) for rmw in cells}
    return {
        "policy": acting,
        **_together(rows),
        **jtc.measure(),
        "jtc_controller": "emulated",
        "measured": origin(kept.read()),
        "rows": rows,
        "faults": [_fault_row(name, trials) for name in _campaign_faults()],
    }


def table(result: dict[str, Any]) -> str:
    """Markdown: one column per middleware, then one row per fault."""
    rows = result["rows"]
    lines: list[tuple[str, Callable[[Any], str]]] = [
        ("success over topics, the launch as typed", lambda row: _share(row["over_topics"])),
        ("success in process, same seeds", lambda row: _share(row["in_process"])),
        ("within the 95 % intervals of each other", lambda row: "yes" if row["success_within_interval"] else "no"),
        ("ticks that only held", lambda row: f"{row['held_ticks_percent']:.2f} %"),
        ("added latency, reading to command, p50 / p99", lambda row: _latency(row["latency_ms"])),
        ("period p99 at 50 Hz (20 ms)", lambda row: f"{row['period_p99_ms']:.2f} ms"),
        ("soak", lambda row: f"{row['soak_ticks']} ticks, {row['missed_commands']} missed"),
        ("takeovers exact to the tick, without a jump", lambda row: _of(row["takeovers_exact"], row["takeovers"])),
        (
            "execution strategies that ran",
            lambda row: _of(row["strategies"], row["strategies_known"]),
        ),
        ("what has to be refused and was not", lambda row: _of(row["refusals_failed"], row["refusals"])),
        ("first command from the measured posture, at most", lambda row: f"{row['first_jump']:.2f} ticks"),
        ("the robot's process killed, not met in time", lambda row: _of(row["peer_failed"], row["peer_trials"])),
        ("faults that were not met in time", lambda row: _of(row["trials_failed"], row["trials"])),
    ]
    names = [row["rmw"] for row in rows]
    head = [f"| | {' | '.join(names)} |", "|---|" + "---|" * len(rows)]
    body = [f"| {name} | {' | '.join(show(row) for row in rows)} |" for name, show in lines]
    controller = (
        f"Tracking error under an emulated JointTrajectoryController: {result['jtc_tracking_error'] * 1e3:.2f} mrad."
    )
    faults = [
        "| fault | declared, ms | longest reaction, ms | failed |",
        "|---|---|---|---|",
        *(
            f"| {FAULTS[row['fault']].what} (`{row['fault']}`) | {row['declared_ms']:.0f} "
            f"| {row['longest_ms']:.0f} | {row['failed']}/{row['trials']} |"
            for row in result["faults"]
            if row["trials"]
        ),
    ]
    acting = "A trained policy acts" if result["policy"] == "trained" else "The scripted expert acts"
    note = (
        f"{acting}. Times are the robot's own; an observer of the command topic decides. {controller} "
        f"{result['measured']} Command: `{result['command']}`."
    )
    return "\n".join([*head, *body, "", *faults, "", note])


def _measure(
    options: argparse.Namespace, kept: _Kept, rmw: str, policy: str, policies: Mapping[str, str]
) -> dict[str, Cell]:
    """All cells of a middleware."""
    # Takeovers, the killed robot and the soak are the node's affair, not the policy's: the expert needs no training.
    expert = {"env_options": {"difficulty": _DIFFICULTY}, "policy": _EXPERT}
    trial = functools.partial(_trial, kept, options.work, rmw, _TRIALS)
    campaign = functools.partial(_trial, kept, options.work, rmw, _CAMPAIGN)
    launch = functools.partial(_trial, kept, options.work, rmw, _LAUNCH)
    cells = {
        "launch": launch("launch", {"policy": policy, "episodes": options.episodes}),
        "takeovers": trial("takeovers", {**expert, "takeovers": options.takeovers}),
        "peer": trial("peer", {**expert, "lockstep": False, "kills": options.peer_trials}),
        "refusals": campaign("refusals", {"refusals": True}),
    }
    if rmw == options.rmw[0]:  # how commands travel is no strategy's affair
        cells["strategies"] = campaign("strategies", {"strategies": dict(policies)})
    names = _campaign_faults()
    for number, first in enumerate(range(0, len(names), _FAULTS_A_CELL)):
        asked = dict.fromkeys(names[first : first + _FAULTS_A_CELL], options.fault_trials)
        cells[f"faults-{number}"] = campaign(f"faults-{number}", {"trials": asked, "seed": number})
    of_steps = dict.fromkeys(_FAULTS_OF_STEPS, options.fault_trials // 3)
    cells["faults-steps"] = campaign("faults-steps", {"trials": of_steps, "node": {"policy": STEPS}})
    soak_s = options.soak_minutes * 60.0
    cells["soak"] = trial("soak", {**expert, "lockstep": False, "soak_s": soak_s})
    return cells


def _campaign_faults() -> list[str]:
    """A policy that is silent is one that was killed or hangs."""
    return [name for name, fault in FAULTS.items() if name != "policy_silent"]


def _trial(kept: _Kept, folder: Path, rmw: str, module: str, name: str, config: dict[str, Any]) -> Cell:
    """One run of a module with ROS."""
    work = folder / rmw / name

    def measure() -> Cell:
        work.mkdir(parents=True, exist_ok=True)
        arguments = json.dumps({"folder": str(work.resolve()), **config})
        found: Cell = run_with_ros(module, [arguments], ros_environment(rmw))
        return found

    return kept.cell(f"{rmw}-{name}", measure)


def _trials_of(cells: Mapping[str, Cell]) -> list[Cell]:
    return [trial for name, cell in cells.items() if name.startswith("faults-") for trial in cell.get("trials", [])]


def _row(rmw: str, cells: Mapping[str, Cell], inside: Cell) -> dict[str, Any]:
    from vla_rl.report.statistics import wilson_interval

    outside, loop = cells["launch"]["episodes"], cells["launch"]["loop"]
    low, high = wilson_interval(inside["successes"], inside["episodes"])
    theirs = wilson_interval(outside["successes"], outside["episodes"])
    trials, peers = _trials_of(cells), cells["peer"].get("kills", [])
    takeovers, soak = cells["takeovers"].get("takeovers", []), cells["soak"]["soak"]
    refusals, strategies = cells["refusals"].get("refusals", []), cells.get("strategies", {}).get("strategies", [])
    return {
        "rmw": rmw,
        "over_topics": [outside["successes"], outside["episodes"]],
        "in_process": [inside["successes"], inside["episodes"]],
        "success_within_interval": low <= theirs[1] and theirs[0] <= high,
        "held_ticks_percent": 100.0 * int(loop["held ticks"]) / int(loop["ticks"]),
        "latency_ms": cells["launch"]["latency_ms"],
        "period_p99_ms": soak["period_p99_ms"],
        "missed_commands": soak["missed"],
        "soak_ticks": soak["ticks"],
        "takeovers": len(takeovers),
        "takeovers_exact": sum(_is_exact(trial) for trial in takeovers),
        "strategies": sum(entry["ran"] for entry in strategies),
        "strategies_known": len(strategies),
        "refusals": len(refusals),
        "refusals_failed": sum(not entry["refused"] for entry in refusals),
        "first_jump": max(max(cell.get("first_jumps", [0.0]), default=0.0) for cell in cells.values()),
        "peer_trials": len(peers),
        "peer_failed": sum(not trial["passed"] for trial in peers),
        "trials": len(trials),
        "trials_failed": sum(not trial["passed"] for trial in trials),
        "spoiled": sum(trial["spoiled"] for trial in trials),
    }


def _fault_row(name: str, trials: Mapping[str, Sequence[Cell]]) -> dict[str, Any]:
    """How a fault was met, on each middleware and together."""
    of_it = {rmw: [trial for trial in those if trial["fault"] == name] for rmw, those in trials.items()}
    every = [trial for those in of_it.values() for trial in those]
    reactions = [trial["reaction_ms"] for trial in every if np.isfinite(trial["reaction_ms"])]
    return {
        "fault": name,
        "declared_ms": max((trial["declared_ms"] for trial in every), default=0.0),
        "longest_ms": max(reactions, default=0.0),
        "median_ms": float(np.median(reactions)) if reactions else 0.0,
        "trials": len(every),
        "failed": sum(not trial["passed"] for trial in every),
        "by_middleware": {
            rmw: {"trials": len(those), "failed": sum(not trial["passed"] for trial in those)}
            for rmw, those in of_it.items()
        },
        "why_not": sorted({trial["why_not"] for trial in every if not trial["passed"]}),
    }


def _together(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of all middlewares: the worst, or the sum of what is counted."""

    def total(key: str) -> int:
        return sum(row[key] for row in rows)

    def worst(key: str) -> float:
        return float(max(row[key] for row in rows))

    return {
        "refusals_tested": total("refusals"),
        "refusals_failed": total("refusals_failed"),
        "campaign_trials": total("trials"),
        "campaign_failed": total("trials_failed"),
        "first_command_jump_max": round(worst("first_jump"), 4),
        "held_ticks_percent_default_launch": worst("held_ticks_percent"),
        "strategies_on_node": total("strategies"),
        "period_p99_ms": worst("period_p99_ms"),
        "missed_commands": total("missed_commands"),
        "success_within_interval": all(row["success_within_interval"] for row in rows),
        "added_latency_ms": {name: max(row["latency_ms"][name] for row in rows) for name in ("p50", "p99")},
        "fault_trials": total("trials") + total("peer_trials"),
        "fault_trials_failed": total("trials_failed") + total("peer_failed"),
    }


def _is_exact(takeover: Cell) -> bool:
    return bool(takeover["exact"] and takeover["largest_jump"] <= takeover["allowed_jump"])


def _latency(latency_ms: Mapping[str, float]) -> str:
    return f"{latency_ms['p50']:.1f} / {latency_ms['p99']:.1f} ms"


def _of(count: int, every: int) -> str:
    return f"{count}/{every}" if every else "not run"


def _share(counts: list[int]) -> str:
    from vla_rl.report.statistics import wilson_interval

    low, high = wilson_interval(*counts)
    return f"{counts[0]}/{counts[1]} [{low:.0%}, {high:.0%}]"
