"""How ros2_control's JointTrajectoryController drives what the node streams to it, in simulated time.

The controller is the emulator of `tests.fakes.jtc`, which does cycle by cycle what the real one does. It runs at 500 Hz
on an arm that is behind its commands; messages come late by some milliseconds, now and then by twenty.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_io.gate import SafetyGate
from robot_io.limits import RobotLimits
from robot_io.ros2.outputs import Curve, Output, OutputSettings, curve
from tests.fakes.jtc import JointTrajectoryController, Point, Settings
from tests.fakes.ros2_control import Nobody
from vla_rl.core.config import load_config

_ARM = Path(__file__).parents[1] / "examples" / "ros2_control_arm" / "config"
_REST = np.array([0.0, -0.8, 0.0, -2.4, 0.0, 1.6, 0.8, 0.04])
_START_S, _SECONDS, _SETTLED_S, _DIED_S = 1.0, 8.0, 0.5, 4.1
_CONTROL_HZ, _CHUNK_TICKS = 20.0, 8
_LAG_S = 0.02  # of the arm behind its command
_LATE_S, _VERY_LATE_S, _VERY_LATE_SHARE = 0.002, 0.02, 0.02
_JOINTS = tuple(f"joint_{index}" for index in range(1, 8))

Vector = NDArray[np.float64]
Say = Callable[[Sequence[Vector], int], tuple[Sequence[Point], float]]
"""All commands and the number of the newest -> the points of its message and its stamp, s."""


@dataclass(frozen=True)
class Way:
    """A way to stream, and the controller's settings that it needs.

    Attributes:
        commands_per_tick: of the node; a tick is 50 ms.
        points: ``output.NAME.points``; 0: the rest of a chunk, of which the node could know only the plan.
        desired: ``interpolate_from_desired_state``.
    """

    commands_per_tick: int
    points: int
    desired: bool = True

    @property
    def period_s(self) -> float:
        """Between two commands."""
        return 1 / (_CONTROL_HZ * self.commands_per_tick)

    @property
    def delay_s(self) -> float:
        """From sending a command to being there."""
        return max(self.points, 1) * self.period_s


WAYS: Mapping[str, Way] = {
    "1 point, from the measured state": Way(1, 1, desired=False),
    "1 point": Way(1, 1),
    "rest of the chunk": Way(1, 0),
    "3 points": Way(1, 3),
    "5 commands a tick, 1 point": Way(5, 1),
    "5 commands a tick, 3 points": Way(5, 3),
    "5 commands a tick, 5 points": Way(5, 5),
}
EXAMPLE = "5 commands a tick, 5 points"
"""As `examples/ros2_control_arm` is set."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser  # there is nothing to choose


def commands_of_gate(commands_per_tick: int) -> list[Vector]:
    """float64 [7] each: what the example's gate passes of chunks that do not quite continue each other."""
    gate = SafetyGate(load_config(RobotLimits, _ARM / "limits.yaml"), _CONTROL_HZ, commands_per_tick)
    gate.reset(_REST.astype(np.float32))
    random = np.random.default_rng(0)
    commands: list[Vector] = []
    rates_hz = np.linspace(0.15, 0.4, 7)
    shift: Vector = np.zeros(7)
    for tick in range(round(_SECONDS * _CONTROL_HZ)):
        if tick % _CHUNK_TICKS == 0:
            shift = random.normal(0, 0.02, 7)
        target = _REST.astype(np.float32)
        target[:7] += 0.5 * np.sin(2 * np.pi * rates_hz * tick / _CONTROL_HZ) + shift
        now_ns = round(tick * 1e9 / _CONTROL_HZ)
        commands += [command[:7].astype(np.float64) for command in gate.admit(target, now_ns, now_ns, now_ns).commands]
    return commands


def drive(way: Way, commands: Sequence[Vector], until_s: float = np.inf) -> tuple[Vector, Vector]:
    """Times [N] and the controller's position commands [N, 7]; after ``until_s`` the node is dead."""
    random = np.random.default_rng(1)
    sent_s = np.arange(len(commands)) * way.period_s
    late_s = np.abs(random.normal(0, _LATE_S, len(commands)))
    late_s += _VERY_LATE_S * (random.random(len(commands)) < _VERY_LATE_SHARE)
    arrivals_s = _START_S + np.maximum.accumulate(sent_s + late_s)
    settings = Settings(_JOINTS, interpolate_from_desired_state=way.desired)
    controller = JointTrajectoryController(settings, commands[0])
    cycle_s, say = 1 / settings.update_hz, _sayer(way, commands)
    position: Vector = commands[0]
    velocity: Vector = np.zeros(7)
    driven: list[Vector] = []
    index = 0
    times_s = _START_S + np.arange(round(_SECONDS * settings.update_hz)) * cycle_s
    for now_s in times_s.tolist():
        while index < len(commands) and arrivals_s[index] <= now_s and sent_s[index] < until_s:
            controller.send(_JOINTS, *say(index, _START_S + float(sent_s[index]), now_s))
            index += 1
        command = controller.update(now_s, position, velocity)
        driven.append(command)
        velocity = (command - position) / _LAG_S
        position = position + velocity * cycle_s
    times_s = times_s - _START_S + cycle_s  # a command is for the next cycle
    return np.asarray(times_s, np.float64), np.array(driven)


def judge(way: Way) -> dict[str, float]:
    """How far the driven positions are from the line through the gate's commands, and how rough they are.

    Returns:
        ``max`` and ``rms`` of all joints, rad, without the delay; ``delay_ms`` from sending a command to being there.
        ``acceleration`` and ``acceleration_rms`` of the hardware's commands, rad/s^2. ``beyond``, rad: motion past the
        last command when the node dies in a motion.
    """
    commands = commands_of_gate(way.commands_per_tick)
    times_s, driven = drive(way, commands)
    asked_s = np.arange(len(commands)) * way.period_s + way.delay_s
    line = np.stack([np.interp(times_s, asked_s, joint) for joint in np.array(commands).T], axis=1)
    counts = (times_s > _SETTLED_S) & (times_s < asked_s[-1])
    deviation = np.abs(driven - line)[counts]
    acceleration = np.abs(np.diff(driven, 2, axis=0) / (times_s[1] - times_s[0]) ** 2)[counts[2:]]
    return {
        "max": float(deviation.max()),
        "rms": float(np.sqrt((deviation**2).mean())),
        "delay_ms": way.delay_s * 1e3,
        "acceleration": float(acceleration.max()),
        "acceleration_rms": float(np.sqrt((acceleration**2).mean())),
        "beyond": _beyond(way, commands),
    }


def measure() -> dict[str, float]:
    """The example's way: `judge`, each name with ``jtc_``; ``jtc_tracking_error`` is its ``max``, of the emulator."""
    found = judge(WAYS[EXAMPLE])
    return {"jtc_tracking_error": found["max"], **{f"jtc_{name}": value for name, value in found.items()}}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All ways."""
    del options
    return {**measure(), "controller": "emulated", "rows": {name: judge(way) for name, way in WAYS.items()}}


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per way."""
    lines = [
        "| messages | there after | largest error | its RMS | peak acceleration | its RMS | past the last command |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in result["rows"].items():
        errors = [f"{row[key] * 1e3:.2f} mrad" for key in ("max", "rms")]
        rough = [f"{row[key]:.{digits}f} rad/s²" for key, digits in (("acceleration", 0), ("acceleration_rms", 1))]
        cells = [name, f"{row['delay_ms']:.0f} ms", *errors, *rough, f"{row['beyond'] * 1e3:.0f} mrad"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Emulated controller, simulated time. Command: `{result['command']}`."])


def _sayer(way: Way, commands: Sequence[Vector]) -> Callable[[int, float, float], tuple[Sequence[Point], float, float]]:
    """Index, sending time and arrival, s -> points, arrival, and stamp, s: by the node's own code but for the chunk."""
    clock_s = [0.0]
    settings = OutputSettings("arm", "", "trajectory", _JOINTS, points=max(way.points, 1))
    output = Output(settings, Nobody(), round(way.period_s * 1e9), lambda: round(clock_s[0] * 1e9))
    output.begin(commands[0].astype(np.float32))

    def say(index: int, sent_s: float, arrived_s: float) -> tuple[Sequence[Point], float, float]:
        if not way.points:
            ahead = np.array(commands[index : index + _CHUNK_TICKS - index % _CHUNK_TICKS], np.float32)
            times_ns = [round((number + 1) * way.period_s * 1e9) for number in range(len(ahead))]
            return _points(Curve(ahead, times_ns)), arrived_s, 0.0
        clock_s[0] = sent_s
        said = curve(way.points, output.remember(commands[index].astype(np.float32)))
        return _points(said), arrived_s, said.start_ns * 1e-9

    return say


def _points(said: Curve) -> list[Point]:
    velocities = [None] * len(said.positions) if said.velocities is None else list(said.velocities)
    return [
        Point(time_ns * 1e-9, position.astype(np.float64), velocity)
        for time_ns, position, velocity in zip(said.from_start_ns, said.positions, velocities, strict=True)
    ]


def _beyond(way: Way, commands: Sequence[Vector]) -> float:
    times_s, driven = drive(way, commands, until_s=_DIED_S)
    last = round(_DIED_S / way.period_s) - 1
    heading = np.sign(commands[last] - commands[last - 1])
    after = driven[times_s > _DIED_S]
    return max(0.0, float(((after - commands[last]) * heading).max()))
