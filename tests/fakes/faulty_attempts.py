"""Attempts without any hardware, with faults at random moments and with misbehaving inference; and what to check of
them. The tests run some, the benchmark of execution very many.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_io.gate import GateConfig, SafetyGate
from robot_io.mock_robot import MockRobot, MockRobotConfig
from tests.fakes.failing_robot import FailingRobot, MockFaults
from vla_rl.core.clock import VirtualClock
from vla_rl.core.types import ActionChunk, Float32Array, Observation, Source
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import run_episode
from vla_rl.execution.plan import Inference, Plan, Planner, PlanRequest
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.execution.virtual import FaultyLatencyConfig, Latency, LatencyConfig, VirtualPlanner

HORIZON = 16
TICK_NS = 50_000_000
REST = np.full(1, -1, np.float32)
CHAOS = FaultyLatencyConfig(
    Latency.HEAVY_TAILED,
    typical=3.0,
    spread=0.7,
    drop_probability=0.05,
    duplicate_probability=0.2,
    reorder_probability=0.05,
    stall_probability=0.02,
    stall=30.0,
)
HASTY = ExecutionConfig(execute_ticks=5)

JOINTS, HZ, MAX_DELAY = 3, 30.0, 6
TICK_S = 1 / HZ
ROBOT = MockRobotConfig(joints=JOINTS, control_hz=HZ, image_size=8, duration_s=8.0)
LIGHT = GateConfig(
    low=(-1.0,) * JOINTS, high=(1.0,) * JOINTS, max_velocity=(2.0,) * JOINTS, max_observation_age_ms=150.0
)
SMOOTH = GateConfig(
    low=LIGHT.low,
    high=LIGHT.high,
    max_velocity=LIGHT.max_velocity,
    max_acceleration=(10.0,) * JOINTS,
    max_jerk=(200.0,) * JOINTS,
    max_observation_age_ms=150.0,
)
EXECUTION = ExecutionConfig(execute_ticks=6, hold_ticks=10)
# Jerk-limited braking from 2 rad/s: 2 / 10 + 10 / 200 s.
BRAKING_S = 0.25
STOPS_WITHIN_S = {
    "nan_action": 0.3 + 3 * TICK_S,
    "nan_state": 0.15 + 0.3 + 3 * TICK_S,
    "frozen_camera": 0.15 + 0.3 + 3 * TICK_S,
    "dead_camera": 0.15 + 0.3 + 3 * TICK_S,
    # From the last request that was answered: its delay, its chunk, the hold.
    "killed_inference": (MAX_DELAY + HORIZON + EXECUTION.hold_ticks + 2) * TICK_S,
    "stalled_loop": ROBOT.command_timeout_ms * 1e-3 + 2 * TICK_S,
}
"""The declared times from a fault to rest; the ticks are to see it, to let the tick pass, to act."""


class TickPolicy:
    """Plans actions whose value is their tick."""

    version = 7

    def __init__(self, horizon: int = HORIZON) -> None:
        self._ramp = np.arange(horizon, dtype=np.float32)[:, None]

    def reset(self, seed: int) -> None:
        self.seed = seed

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        del committed
        return ActionChunk(self._ramp + np.float32(observation.tick), observation.tick, 0, self.version)


class WavePolicy:
    """Waves the joints; from some tick on it says NaN."""

    version = 0

    def __init__(self, nan_from_tick: float = np.inf) -> None:
        self._nan_from_tick = nan_from_tick

    def reset(self, seed: int) -> None:
        self._phase = seed % 7

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        del committed
        ticks = observation.tick + np.arange(HORIZON)
        actions = np.sin(ticks / 9 + self._phase)[:, None].repeat(JOINTS, 1).astype(np.float32)
        actions[ticks >= self._nan_from_tick] = np.nan
        return ActionChunk(actions, observation.tick, 0, 0)


class SilentPlanner:
    """Answers the first few requests of an episode, then falls silent: inference was killed."""

    silent_since_tick = 0

    def __init__(self, planner: Planner, answers: int) -> None:
        self._planner, self._answers = planner, answers

    def reset(self, seed: int) -> None:
        self._planner.reset(seed)
        self._left = self._answers

    def request(self, request: PlanRequest, inference: Inference) -> None:
        self._left -= 1
        if self._left >= 0:
            self._planner.request(request, inference)
            self.silent_since_tick = request.observation.tick

    def poll(self) -> list[Plan]:
        return self._planner.poll()

    def wait(self) -> int:
        return self._planner.wait()


def observe(tick: int) -> Observation:
    """An observation captured at the start of its tick, 20 Hz."""
    return Observation({}, np.zeros(1, np.float32), "", tick, {"state": tick * TICK_NS})


def drive(config: ExecutionConfig, latency: LatencyConfig, ticks: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Drive an executor of a `TickPolicy` for some ticks; returns one column per field of its actions."""
    clock = VirtualClock()
    executor = Executor(VirtualPlanner(TickPolicy(), clock, 20.0, latency), config)
    executor.reset(seed, REST)
    rows = []
    for tick in range(ticks):
        now_ns = tick * TICK_NS
        clock.sleep_until_ns(now_ns)
        action = executor.propose(observe(tick), now_ns)
        executor.sent(action.action)
        rows.append(
            (action.tick, action.action[0], action.source, action.chunk_id, action.chunk_index, action.planned_ns)
        )
    tick_of, value, source, chunk_id, index, planned_ns = np.array(rows, np.int64).T
    return {
        "tick": tick_of,
        "value": value,
        "planned": source == Source.POLICY,
        "chunk_id": chunk_id,
        "index": index,
        "observed": planned_ns // TICK_NS,
    }


def misaligned(columns: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """bool [T], ticks whose action is not the one scheduled for them in chunks that only get newer; held ticks that do
    not repeat the command before them count too.
    """
    planned = columns["planned"]
    wrong: NDArray[np.bool_] = columns["tick"] != np.arange(len(planned))
    first = int(np.argmax(planned))
    tick, value, chunk_id, index, observed = (
        columns[name][planned] for name in ("tick", "value", "chunk_id", "index", "observed")
    )
    # Nothing is consumed before the first action: plans from earlier observations are shifted to start there.
    bad = (index != tick - np.maximum(observed, first)) | (value != observed + index)
    bad[1:] |= (np.diff(chunk_id) < 0) | (np.diff(observed) < 0)
    wrong[planned] |= bad
    held = np.flatnonzero(~planned)
    before = np.where(held > 0, columns["value"][held - 1], REST[0])
    wrong[held] |= columns["value"][held] != before
    return wrong


def run_trial(trial: int) -> tuple[str, float, str]:
    """Run one attempt with one fault at a random moment.

    Returns:
        the fault; the time from it to rest, s, without the braking; and what else was wrong, empty if nothing was.
    """
    random = np.random.default_rng(trial)
    kind = list(STOPS_WITHIN_S)[trial % len(STOPS_WITHIN_S)]
    at_s = int(random.integers(15, 90)) / HZ
    faults = {
        "nan_state": MockFaults(state_nan_s=at_s),
        "frozen_camera": MockFaults(camera_freezes_s=at_s),
        "dead_camera": MockFaults(camera_dies_s=at_s),
        "stalled_loop": MockFaults(stall_s=at_s, stall_duration_s=random.uniform(0.6, 2.0)),
    }.get(kind, MockFaults())
    clock = VirtualClock()
    robot = FailingRobot(faults, ROBOT, clock)
    policy = WavePolicy(round(at_s * HZ) if kind == "nan_action" else np.inf)
    latency = LatencyConfig(Latency.RECORDED, samples=tuple(random.uniform(0, MAX_DELAY, 10)))
    planner = SilentPlanner(
        VirtualPlanner(policy, clock, HZ, latency),
        answers=int(random.integers(1, 12)) if kind == "killed_inference" else 10**9,
    )
    smooth = bool(random.integers(2))
    limits, commands_per_tick = SMOOTH if smooth else LIGHT, int(random.integers(1, 4))
    gate = SafetyGate(limits, HZ, commands_per_tick)
    robot.reset(trial)
    start = robot.rest_command()
    summary = run_episode(robot, Executor(planner, EXECUTION), gate, seed=trial)
    if robot.stopped_ns is None:
        return kind, np.inf, "the robot was never stopped"
    if kind == "killed_inference":
        at_s = planner.silent_since_tick / HZ
    stop_s = robot.stopped_ns * 1e-9 - at_s - (BRAKING_S if smooth else 0.0)
    if not summary.stopped:
        return kind, stop_s, "the attempt was not stopped"
    if wrong := _wrong_commands(robot, start, limits, commands_per_tick):
        return kind, stop_s, wrong
    if gate.latched:
        ticks = run_episode(robot, Executor(planner, EXECUTION), gate, seed=trial).ticks
        if ticks != 1 or any((command != start).any() for _, command in robot.writes):
            return kind, stop_s, "a latched stop was left by starting another attempt"
    return kind, stop_s, ""


def _wrong_commands(robot: MockRobot, start: Float32Array, limits: GateConfig, commands_per_tick: int) -> str:
    """What is wrong with the commands of an attempt that began at rest at ``start``, up to the stop and after it; empty
    if nothing is. The robot's own obedience does not count: a robot that obeys everything must be as safe.
    """
    commands = np.stack([start, *(command for _, command in robot.writes)])
    stopped_after = robot.stopped_after
    if stopped_after is None:
        return "the loop never called stop"
    if (commands[stopped_after + 1 :] != commands[stopped_after]).any():
        return "it was told to move after the stop"
    at_rest = commands[-1:].repeat(3, axis=0)  # as the stop leaves it
    moments_ns = np.array([time_ns for time_ns, _ in robot.writes])
    paused = int(np.argmax(np.diff(moments_ns) > limits.max_gap_ms * 1e6)) + 1
    if paused > 1 and (commands[paused + 1 :] != commands[paused]).any():
        return "it was told to move on after a pause"
    stream = commands[: paused + 1] if paused > 1 else np.concatenate([commands, at_rest])
    if broken := broken_limits(stream, limits, HZ * commands_per_tick):
        return f"the commands broke the limits of {broken}"
    if commands_per_tick > 1 and np.diff(moments_ns).min() < 1e9 / HZ / commands_per_tick - 1:
        return "commands came in a burst"
    return ""


def broken_limits(commands: NDArray[np.floating], limits: GateConfig, command_hz: float) -> str:
    """The first limit that a stream of commands [T, A] breaks, but for the rounding of float32; empty if none.

    Position, velocity, acceleration and jerk are divided differences of neighboring commands.
    """
    smooth = np.setdiff1d(np.arange(len(limits.low)), limits.discrete_dims)
    if (commands < np.asarray(limits.low, np.float32)).any() or (commands > np.asarray(limits.high, np.float32)).any():
        return "position"
    rounding = np.abs(commands[:, smooth]).max() * 2.0**-24
    orders = {"velocity": limits.max_velocity, "acceleration": limits.max_acceleration, "jerk": limits.max_jerk}
    for order, (name, limit) in enumerate(orders.items(), start=1):
        if limit and len(commands) > order:
            differences = np.abs(np.diff(commands[:, smooth].astype(np.float64), order, axis=0)).max(axis=0)
            allowed = np.array(limit)[smooth] / command_hz**order
            if (differences > allowed * (1 + 1e-9) + 2**order * rounding).any():
                return name
    return ""
