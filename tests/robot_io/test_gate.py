"""The safety gate: what comes out is within every limit, whatever goes in (spec test 6)."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from robot_io.gate import GateConfig, Reason, SafetyGate
from robot_io.limits import RobotLimits
from tests.fakes.faulty_attempts import broken_limits
from vla_rl.core.config import load_config
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.protocols import Gate
from vla_rl.core.types import Float32Array

MS = 1_000_000
RATE_HZ = 20.0
LIGHT = RobotLimits(
    low=(-1.0, 0.0, 0.0), high=(1.0, 2.0, 0.08), max_velocity=(1.0, 2.0, 1.0), discrete_dims=(2,), stop_after_ms=200.0
)
SMOOTH = replace(LIGHT, max_acceleration=(4.0, 8.0, 1.0), max_jerk=(80.0, 100.0, 1.0))
REST = np.array([0.0, 1.0, 0.08], np.float32)
ROBOTS = sorted((Path(__file__).parents[2] / "configs" / "robots").glob("*.yaml"))


def make_gate(config: GateConfig = LIGHT, commands_per_tick: int = 1) -> SafetyGate:
    gate = SafetyGate(config, RATE_HZ, commands_per_tick)
    gate.reset(REST)
    return gate


def admit(gate: SafetyGate, action: Float32Array | list[float], now_ms: int = 0) -> tuple[Float32Array, Reason]:
    """The last command of a fresh action, and why it differs."""
    verdict = gate.admit(np.asarray(action, np.float32), now_ms * MS, now_ms * MS, now_ms * MS)
    return verdict.commands[-1], Reason(verdict.reasons)


def test_an_action_within_the_limits_passes_untouched() -> None:
    gate = make_gate()
    command, reasons = admit(gate, [0.04, 1.05, 0.0])
    np.testing.assert_array_equal(command, np.array([0.04, 1.05, 0.0], np.float32))
    assert reasons == Reason(0)
    assert not any(gate.counts.values())
    assert isinstance(gate, Gate)


def test_the_rate_is_limited_against_the_previous_command_and_grippers_may_jump() -> None:
    gate = make_gate()
    first, reasons = admit(gate, [0.9, 1.0, 0.0])
    np.testing.assert_allclose(first, [0.05, 1.0, 0.0])
    assert reasons == Reason.RATE
    second, _ = admit(gate, [0.9, 1.0, 0.08])
    np.testing.assert_allclose(second, [0.10, 1.0, 0.08], rtol=1e-6)


def test_positions_are_clamped_with_a_reason() -> None:
    gate = make_gate(replace(LIGHT, max_velocity=(100.0,) * 3))
    command, reasons = admit(gate, [3.0, -1.0, 0.5])
    np.testing.assert_allclose(command, [1.0, 0.0, 0.08])
    assert reasons == Reason.JOINT_LIMIT
    assert gate.counts[Reason.JOINT_LIMIT] == 1


@pytest.mark.parametrize("bad", [[np.nan, 1, 0], [0, np.inf, 0], [0.0], [0.0] * 4, []])
def test_a_bad_action_holds_and_a_good_one_goes_on(bad: list[float]) -> None:
    gate = make_gate()
    admit(gate, [0.04, 1.0, 0.08], 0)
    held, reasons = admit(gate, bad, 50)
    np.testing.assert_array_equal(held, np.array([0.04, 1.0, 0.08], np.float32))
    assert reasons in (Reason.NOT_FINITE, Reason.WRONG_SHAPE)
    command, reasons = admit(gate, [0.06, 1.0, 0.08], 100)
    assert command[0] == np.float32(0.06)
    assert reasons == Reason(0)


@pytest.mark.parametrize(("stream", "reason"), [(1, Reason.OBSERVATION_STALE), (2, Reason.ACTION_STALE)])
def test_age_is_watched_and_a_lasting_fault_latches(stream: int, reason: Reason) -> None:
    gate = make_gate(replace(LIGHT, max_observation_age_ms=100.0, max_action_age_ms=100.0))
    stopped_ms = None
    for now_ms in range(0, 600, 50):
        times = [now_ms * MS] * 3
        times[stream] = 0
        verdict = gate.admit(np.array([0.5, 1.0, 0.08], np.float32), *times)
        assert bool(verdict.reasons & reason) == (now_ms > 100)
        if verdict.stopped and stopped_ms is None:
            stopped_ms = now_ms
    assert stopped_ms == 150 + 200, "seen after 100 ms, latched after 200 ms more"


def test_a_latched_stop_outlives_the_fault_and_the_attempt_and_is_rearmed_by_hand() -> None:
    gate = make_gate()
    for now_ms in range(0, 300, 50):
        admit(gate, [np.nan] * 3, now_ms)
    assert gate.latched
    gate.reset(REST)
    held, reasons = admit(gate, [0.04, 1.0, 0.08], 1000)
    np.testing.assert_array_equal(held, REST)
    assert reasons == Reason.LATCHED
    gate.rearm()
    command, reasons = admit(gate, [0.04, 1.0, 0.08], 1050)
    assert command[0] == np.float32(0.04)
    assert reasons == Reason(0)


def test_faults_that_pass_do_not_add_up() -> None:
    gate = make_gate()
    for now_ms in range(0, 5000, 50):
        admit(gate, [np.nan] * 3 if now_ms % 100 else [0.0, 1.0, 0.0], now_ms)
    assert not gate.latched
    assert gate.counts[Reason.NOT_FINITE] == 50


def test_every_reason_is_logged_when_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    gate = make_gate()
    with caplog.at_level(logging.DEBUG):
        for now_ms in (0, 50, 100):
            admit(gate, [5.0, 1.0, 0.0], now_ms)
        admit(gate, [np.nan] * 3, 150)
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == ["JOINT_LIMIT|RATE", "NOT_FINITE"]
    assert [record.levelno for record in caplog.records] == [logging.DEBUG, logging.WARNING]


def test_the_tool_stays_in_its_workspace() -> None:
    config = replace(LIGHT, max_velocity=(100.0,) * 3, workspace_low=(-0.5, 0, 0), workspace_high=(0.5, 2, 1))
    gate = SafetyGate(config, RATE_HZ, tool_position=lambda command: command)
    gate.reset(REST)
    admit(gate, [0.4, 1.0, 0.0])
    command, reasons = admit(gate, [0.6, 1.0, 0.0])
    assert command[0] == np.float32(0.4)
    assert reasons == Reason.WORKSPACE
    command, reasons = admit(gate, [0.5, 1.0, 0.0])
    assert command[0] == np.float32(0.5)
    assert reasons == Reason(0)


def assert_within_limits(commands: np.ndarray, config: GateConfig, command_hz: float) -> None:
    assert not broken_limits(commands, config, command_hz)


def wild_actions(seed: int, ticks: int) -> list[Float32Array]:
    """Smooth stretches, jumps, holds, far targets, and numbers that are not finite."""
    random = np.random.default_rng(seed)
    target = REST.astype(np.float64)
    actions = []
    while len(actions) < ticks:
        kind, length = random.integers(6), int(random.integers(1, 30))
        slope = random.normal(0, 0.03, 3)
        for _ in range(length):
            if kind == 0:
                target = random.uniform([-1.5, -0.5, 0], [1.5, 2.5, 0.1])
            elif kind in (1, 2):
                target = target + slope
            elif kind == 3:
                target = random.choice([-1, 1], 3) * 1e6
            actions.append(np.full(3, np.nan) if kind == 4 and length < 4 else np.clip(target, -1e6, 1e6))
    return [action.astype(np.float32) for action in actions[:ticks]]


@pytest.mark.parametrize("commands_per_tick", [1, 10])
@pytest.mark.parametrize("config", [LIGHT, SMOOTH], ids=["light", "smooth"])
def test_no_limit_is_violated_by_any_command(config: GateConfig, commands_per_tick: int) -> None:
    gate = make_gate(config, commands_per_tick)
    commands = [REST[None]]
    previous = REST
    for tick, action in enumerate(wild_actions(commands_per_tick, 6000 // commands_per_tick)):
        held = tick % 37 > 33
        verdict = gate.admit(previous if held else action, *[tick * 50 * MS] * 3)
        commands.append(verdict.commands)
        previous = verdict.commands[-1]
    assert not gate.latched
    assert_within_limits(np.concatenate(commands), config, RATE_HZ * commands_per_tick)


@settings(max_examples=60, deadline=None)
@given(
    npst.arrays(np.float32, st.tuples(st.integers(1, 40), st.just(3)), elements=st.floats(width=32)),
    st.sampled_from([LIGHT, SMOOTH]),
    st.integers(1, 4),
)
def test_no_sequence_of_floats_gets_past_the_gate(
    actions: np.ndarray, config: GateConfig, commands_per_tick: int
) -> None:
    gate = make_gate(config, commands_per_tick)
    commands = [REST[None]]
    for tick, action in enumerate(actions):
        commands.append(gate.admit(action, *[tick * 50 * MS] * 3).commands)
    assert_within_limits(np.concatenate(commands), config, RATE_HZ * commands_per_tick)


def test_a_smooth_motion_is_followed_closely() -> None:
    """Once it has caught up with a feasible path, a fifth of a tick's motion is all that it is away from it."""
    gate = make_gate(SMOOTH, commands_per_tick=5)
    ticks = np.arange(200)
    path = np.stack([0.5 * np.sin(ticks / 12), 1 + 0.5 * np.sin(ticks / 15), 0 * ticks], axis=1)
    sent = np.array([admit(gate, action, 50 * tick)[0] for tick, action in enumerate(path)])
    fastest = np.abs(np.diff(path, axis=0)).max()
    assert np.abs(sent - path)[60:, :2].max() < 0.2 * fastest


@pytest.mark.parametrize("config", [LIGHT, SMOOTH], ids=["light", "smooth"])
def test_a_robot_found_outside_its_bounds_comes_in_without_a_jump(config: GateConfig) -> None:
    gate = SafetyGate(replace(config, rest_tolerance=(0.3, 0.3, 0.01)), RATE_HZ)
    gate.reset(np.array([-1.2, 2.3, 0.0], np.float32))
    positions = np.array([admit(gate, [-2.0, 5.0, 0.0], 50 * tick)[0] for tick in range(60)])
    np.testing.assert_allclose(positions[-1, :2], [-1.0, 2.0], atol=1e-4)
    assert np.abs(np.diff(positions[:, 0], prepend=-1.2)).max() <= 1.0 / RATE_HZ + 1e-6


def test_a_bound_is_reached_and_left_again() -> None:
    gate = make_gate(SMOOTH, commands_per_tick=2)
    for tick in range(100):
        at_bound, _ = admit(gate, [9.0, -9.0, 0.0], 50 * tick)
    np.testing.assert_allclose(at_bound, [1.0, 0.0, 0.0], atol=1e-4)
    for tick in range(100, 200):
        back, _ = admit(gate, [0.5, 1.0, 0.0], 50 * tick)
    np.testing.assert_allclose(back, [0.5, 1.0, 0.0], atol=1e-4)


def test_a_hold_comes_to_rest_without_turning_back() -> None:
    gate = make_gate(SMOOTH, commands_per_tick=4)
    for tick in range(20):
        previous, _ = admit(gate, [0.04 * tick, 1.0, 0.0], 50 * tick)
    positions = []
    for tick in range(20, 60):
        verdict = gate.admit(previous, *[50 * tick * MS] * 3)
        positions.extend(verdict.commands[:, 0])
        previous = verdict.commands[-1]
    assert (np.diff(positions) >= -1e-6).all()
    assert positions[-1] == positions[-10]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GateConfig(), "one number per action dimension"),
        (replace(LIGHT, low=(-1.0,)), "one number per action dimension"),
        (replace(LIGHT, low=(1.0, 0, 0)), "must be below its high"),
        (replace(LIGHT, max_velocity=(0.0, 1, 1)), "max_velocity .* must be positive"),
        (replace(SMOOTH, max_jerk=()), "one number per action dimension"),
        (replace(LIGHT, discrete_dims=(3,)), "not among 3 dimensions"),
        (replace(LIGHT, workspace_low=(0.0, 0, 0), workspace_high=(1.0, 1, 1)), "forward kinematics"),
    ],
)
def test_limits_that_make_no_sense_are_refused(config: GateConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SafetyGate(config, RATE_HZ)


def test_empty_limits_are_filled_from_the_action_space_and_given_ones_are_kept() -> None:
    config = GateConfig(max_velocity=(0.5, 0.6)).filled([-1, -1], [1, 2], [1])
    assert (config.low, config.high, config.discrete_dims) == ((-1.0, -1.0), (1.0, 2.0), (1,))
    assert config.max_velocity == (0.5, 0.6)
    assert GateConfig().filled([-1], [1]).max_velocity == (10.0,)


@pytest.mark.parametrize("file", ROBOTS, ids=lambda file: file.stem)
def test_the_robots_that_ship_have_limits_that_hold(file: Path) -> None:
    config = load_config(RobotLimits, file)
    if not config.low:
        config = config.filled([-1.0] * 3, [1.0] * 3)
    gate = SafetyGate(config, 30.0, 4)
    rest = (np.array(config.low) + np.array(config.high)).astype(np.float32) / 2
    gate.reset(rest)
    random = np.random.default_rng(0)
    commands = [rest[None]]
    for tick in range(200):
        target = random.uniform(config.low, config.high).astype(np.float32)
        commands.append(gate.admit(target, *[tick * 33 * MS] * 3).commands)
    assert_within_limits(np.concatenate(commands), config, 120.0)
    assert ROBOTS, "the configurations are missing"


def test_a_fault_stops_steps_at_once_and_holds_targets() -> None:
    gate = make_gate(replace(LIGHT, delta_dims=(1,)))
    moving, _ = admit(gate, [0.04, 1.05, 0.0])
    held, reasons = admit(gate, [np.nan, 1.05, 0.0], now_ms=50)
    np.testing.assert_array_equal(held, [moving[0], 0.0, moving[2]])
    assert reasons == Reason.NOT_FINITE


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ([0.0, np.nan, np.inf], r"rests at \[nan, inf\] in dimensions \[1, 2\]"),
        ([0.0] * 8, r"of shape \[8\]; the gate has limits for 3 dimensions"),
    ],
)
def test_a_rest_that_cannot_be_held_is_refused(rest: list[float], message: str) -> None:
    for config in (LIGHT, SMOOTH):
        with pytest.raises(UserError, match=message):
            SafetyGate(config, RATE_HZ).reset(np.array(rest, np.float32))


@pytest.mark.parametrize("file", [file for file in ROBOTS if file.stem != "simulation"], ids=lambda file: file.stem)
def test_braking_takes_no_longer_than_declared(file: Path) -> None:
    config = load_config(RobotLimits, file)
    if not config.max_jerk:
        return
    gate = SafetyGate(config, 50.0)
    random = np.random.default_rng(0)
    rest = (np.array(config.low) + np.array(config.high)).astype(np.float32) / 2
    longest = 0
    for _ in range(40):
        gate.reset(rest)
        for _ in range(random.integers(2, 40)):
            gate.admit(random.uniform(config.low, config.high).astype(np.float32), 0, 0, 0)
        ticks = 0
        while not gate.at_rest:
            gate.brake()
            ticks += 1
        longest = max(longest, ticks)
    assert 2 < longest <= np.ceil(gate.braking_s * 50.0)


def test_a_step_is_neither_repeated_nor_held() -> None:
    """A dimension of steps: 0 at rest, sent once a tick, and refused where a tick takes several commands."""
    config = replace(LIGHT, delta_dims=(1,))
    with pytest.raises(ConfigError, match="commands_per_tick to 1"):
        SafetyGate(config, RATE_HZ, 4)
    gate = make_gate(config)
    assert gate.brake()[0].tolist() == [0.0, 0.0, np.float32(0.08)], "the robot's posture is not a step"
    admit(gate, [0.0, 0.05, 0.08])
    assert not gate.at_rest
    assert gate.brake()[0, 1] == 0
    assert gate.at_rest


WALLS = {"workspace_low": (-0.5, 0.0, -9.0), "workspace_high": (0.5, 2.0, 9.0)}


@pytest.mark.parametrize("commands_per_tick", [1, 5])
@pytest.mark.parametrize("config", [LIGHT, SMOOTH], ids=["light", "smooth"])
def test_no_command_leaves_the_workspace_however_fast_it_is_approached(
    config: GateConfig, commands_per_tick: int
) -> None:
    config = replace(config, **WALLS)
    gate = SafetyGate(config, RATE_HZ, commands_per_tick, tool_position=lambda command: command)
    gate.reset(REST)
    commands = [REST[None]]
    random = np.random.default_rng(0)
    for tick in range(2000):
        if tick % 40 == 0:
            corner = random.uniform([-0.7, 0, 0], [0.7, 2, 0])
        forth = min(tick % 40, 6) / 6 if tick % 40 < 20 else -1  # to an edge, then far away from it
        action = np.clip([forth * corner[0], corner[1], 0], [-0.99, 0, 0], [0.99, 2, 0]).astype(np.float32)
        commands.append(gate.admit(action, 0, 0, 0).commands)
    tools = np.concatenate(commands)
    assert np.abs(tools[:, 0]).max() <= np.float32(0.5)
    assert np.abs(tools[:, 0]).max() > 0.45
    assert gate.counts[Reason.WORKSPACE]
    assert_within_limits(tools, config, RATE_HZ * commands_per_tick)


@pytest.mark.parametrize("config", [LIGHT, SMOOTH], ids=["light", "smooth"])
def test_a_way_between_two_places_inside_does_not_cut_a_corner_outside(config: GateConfig) -> None:
    """A tool on an arm that turns: halfway between two postures it reaches farther than in either."""

    def tool_position(command: Float32Array) -> np.ndarray:
        return np.array([np.cos(command[0]), np.sin(command[0]), 0.0])

    config = replace(config, workspace_low=(-1.0, -1.0, -1.0), workspace_high=(0.95, 1.0, 1.0))
    gate = SafetyGate(config, RATE_HZ, 4, tool_position)
    gate.reset(np.array([-0.6, 1.0, 0.0], np.float32))
    reached = [gate.admit(np.array([0.6, 1.0, 0.0], np.float32), 0, 0, 0).commands for _ in range(40)]
    assert max(np.cos(command[0]) for command in np.concatenate(reached)) <= 0.95
    assert gate.counts[Reason.WORKSPACE] > 10


@pytest.mark.parametrize("config", [LIGHT, SMOOTH], ids=["light", "smooth"])
def test_a_tool_found_outside_its_workspace_can_come_in(config: GateConfig) -> None:
    gate = SafetyGate(replace(config, **WALLS), RATE_HZ, tool_position=lambda command: command)
    gate.reset(np.array([0.8, 1.0, 0.0], np.float32))
    for _ in range(60):
        command, _ = admit(gate, [0.2, 1.0, 0.0])
    np.testing.assert_allclose(command, [0.2, 1.0, 0.0], atol=1e-3)


@pytest.mark.parametrize("kind", ["delta_dims", "discrete_dims"])
def test_acceleration_limits_where_nothing_is_smoothed(kind: str) -> None:
    gate = make_gate(replace(SMOOTH, **{"discrete_dims": (), kind: (0, 1, 2)}))
    command, _ = admit(gate, [0.01, 0.01, 0.01])
    np.testing.assert_array_equal(command, np.full(3, 0.01, np.float32))
    gate.brake()
    assert gate.at_rest


@pytest.mark.parametrize("config", [LIGHT, SMOOTH], ids=["light", "smooth"])
def test_a_pause_beyond_the_limit_latches_the_stop_and_moves_nothing(config: GateConfig) -> None:
    """The process was stopped for 3 s while the robot moved: it stands at the last command, and stays there."""
    gate = make_gate(config)
    for tick in range(10):
        last, _ = admit(gate, [0.04 * tick, 1.0, 0.0], 50 * tick)
    stopped, reasons = admit(gate, [0.4, 1.0, 0.0], 450 + 3000)
    np.testing.assert_array_equal(stopped, last)
    assert reasons == Reason.LOOP_PAUSED | Reason.LATCHED
    assert gate.at_rest
    still, reasons = admit(gate, [0.4, 1.0, 0.0], 3500)
    np.testing.assert_array_equal(still, last)
    gate.rearm()
    gate.reset(last)
    assert not admit(gate, last, 99_000)[1], "between two attempts time may pass"


@pytest.mark.parametrize("config", [LIGHT, SMOOTH], ids=["light", "smooth"])
def test_commands_that_are_older_than_a_pause_are_not_sent_and_steps_end(config: GateConfig) -> None:
    gate = make_gate(replace(config, discrete_dims=(), delta_dims=(2,)))
    for tick in range(10):
        sent, _ = admit(gate, [0.04 * tick, 1.0, 0.02], 50 * tick)
    assert not gate.at_rest
    assert gate.outdated(500_000_000, sent) is None
    assert not gate.at_rest, "they may be sent"
    np.testing.assert_array_equal(gate.outdated(500_000_001, sent), [*sent[:2], 0.0])
    assert gate.at_rest
    assert sent[2], "what was sent stays"


def test_a_hiccup_within_the_limit_is_no_pause() -> None:
    gate = make_gate(replace(LIGHT, max_gap_ms=400.0))
    admit(gate, [0.0, 1.0, 0.0], 0)
    admit(gate, [0.0, 1.0, 0.0], 400)
    assert not gate.latched
    admit(gate, [0.0, 1.0, 0.0], 801)
    assert gate.latched


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"high": (np.inf, 2.0, 0.08)}, r"high .* must be finite"),
        ({"low": (-1.0, -np.inf, 0.0)}, r"low .* must be finite"),
        ({"low": (np.nan, 0.0, 0.0)}, r"low .* must be finite"),
        ({"max_velocity": (1.0, np.inf, 1.0)}, r"max_velocity .* must be finite"),
        ({"rest_tolerance": (np.nan, 1.0, 1.0)}, r"rest_tolerance .* must be finite"),
        ({"max_observation_age_ms": np.nan}, "max_observation_age_ms is nan; expected a time in ms"),
        ({"max_observation_age_ms": np.inf}, "max_observation_age_ms is inf"),
        ({"max_action_age_ms": np.nan}, "max_action_age_ms is nan"),
        ({"max_gap_ms": 0.0}, "max_gap_ms is 0"),
        ({"max_gap_ms": 49.0}, "max_gap_ms is 49, and a tick takes 50 ms"),
        ({"stop_after_ms": np.nan}, "stop_after_ms is nan"),
        ({"workspace_low": (np.nan, 0, 0), "workspace_high": (1.0, 1, 1)}, "workspace_low .* must be finite"),
        ({"workspace_low": (0.0, 0, 2), "workspace_high": (1.0, 1, 1)}, "must be below its workspace_high"),
    ],
)
def test_limits_and_watchdogs_that_never_bite_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SafetyGate(replace(LIGHT, **change), RATE_HZ, tool_position=lambda command: command)  # type: ignore[arg-type]
