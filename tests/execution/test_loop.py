"""The one loop: order, pacing, endings, takeover to the tick, replay to the byte (spec tests 13 and 14)."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import ReachEnv, ReachPolicy

from robot_io.env_robot import EnvRobot
from robot_io.gate import GateConfig, SafetyGate
from robot_io.limits import RobotLimits
from robot_io.mock_robot import MockRobot, MockRobotConfig
from robot_io.recorder import Recorder
from robot_io.ros2.clock import RosTime
from tests.fakes.faulty_attempts import broken_limits
from tests.fakes.scheduled import ScheduledTakeover
from vla_rl.core.clock import VirtualClock
from vla_rl.core.config import load_config
from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Condition
from vla_rl.core.types import Episode, Float32Array, Origin, Source, Step
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import EpisodeSummary, Pacer, run_episode
from vla_rl.execution.plan import ActionSource, InlinePlanner
from vla_rl.execution.sources import Demonstrator, Replay, TakeoverSwitch
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.execution.virtual import FaultyLatencyConfig, Latency, LatencyConfig, VirtualPlanner

LIMITS = GateConfig(low=(-1.0, -1.0), high=(1.0, 1.0), max_velocity=(1.0, 1.0))
STEP = 1.0 / 20 + 1e-6
JITTER = FaultyLatencyConfig(Latency.JITTERED, typical=3.0, spread=1.5, drop_probability=0.1)


def record(
    robot: EnvRobot, source: ActionSource, seed: int = 0, limits: GateConfig = LIMITS
) -> tuple[EpisodeSummary, Episode]:
    recorder = Recorder(Origin.SIM, "toy", robot.control_hz)
    recorder.begin(f"episode-{seed}", seed, 3)
    summary = run_episode(robot, source, SafetyGate(limits, 20.0), seed=seed, subscribers=[recorder])
    assert recorder.episode is not None
    return summary, recorder.episode.validate()


def make_executor(robot: EnvRobot, noise: float = 0.0, latency: LatencyConfig | None = None) -> Executor:
    policy = ReachPolicy(noise=noise)
    if latency is None:
        return Executor(InlinePlanner(policy), ExecutionConfig())
    return Executor(VirtualPlanner(policy, robot.clock, 20.0, latency), ExecutionConfig())


def test_an_episode_ends_with_the_task_and_is_recorded_whole() -> None:
    robot = EnvRobot(ReachEnv())
    summary, episode = record(robot, make_executor(robot))
    assert summary.success
    assert summary.terminated
    assert summary.held_ticks == summary.human_ticks == summary.missed_ticks == 0
    assert len(episode) == summary.ticks
    assert episode.final_state is not None
    assert np.abs(episode.final_state[:2] - episode.final_state[2:]).max() < 0.02, "after the last command: it touches"
    assert np.abs(episode.state[-1, :2] - episode.state[-1, 2:]).max() >= 0.02, "before it"
    assert episode.final_images["front"][0, 0, 0] == len(episode)
    assert summary.duration_s == pytest.approx(summary.ticks / 20)
    assert episode.success
    assert episode.terminated
    assert (episode.source == Source.POLICY).all()
    np.testing.assert_array_equal(episode.extras["chunk_index"], np.arange(len(episode)) % 8)
    np.testing.assert_array_equal(episode.extras["chunk_id"], np.arange(len(episode)) // 8)


def test_a_time_limit_truncates() -> None:
    robot = EnvRobot(ReachEnv(limit=10))
    summary, episode = record(robot, make_executor(robot))
    assert (summary.ticks, summary.terminated, summary.success) == (10, False, False)
    assert not episode.terminated
    robot = EnvRobot(ReachEnv())
    gate = SafetyGate(LIMITS, 20.0)
    summary = run_episode(robot, make_executor(robot), gate, seed=0, max_ticks=4)
    assert (summary.ticks, summary.terminated, summary.success) == (4, False, False)


@pytest.mark.parametrize("latency", [None, LatencyConfig(typical=2.0)])
def test_takeover_is_bumpless_and_flagged_to_the_tick(latency: LatencyConfig | None) -> None:
    intervals = [(5, 12), (20, 24)]
    robot = EnvRobot(ReachEnv())
    takeover = ScheduledTakeover(intervals, lambda tick, proposed: np.array([-1, 1], np.float32))
    summary, episode = record(robot, TakeoverSwitch(make_executor(robot, 0.3, latency), takeover))
    human = np.zeros(len(episode), bool)
    for first, after in intervals:
        human[first:after] = True
    np.testing.assert_array_equal(episode.source == Source.HUMAN, human)
    assert summary.human_ticks == human.sum()
    steps = np.abs(np.diff(episode.action_sent, axis=0))
    assert steps.max() <= STEP, "the command never moves faster than the normal rate limit, handovers included"
    delay = 0 if latency is None else 2
    for _, after in intervals:
        held = episode.source[after : after + delay]
        assert (held == Source.HOLD).all(), "plans made before the hand-back are dropped"
        assert episode.source[after + delay] == Source.POLICY
        assert episode.extras["chunk_index"][after + delay] == 0
        assert (episode.action_sent[after : after + delay] == episode.action_sent[after - 1]).all()


def test_during_a_takeover_the_shadow_of_the_policy_is_recorded_on_request() -> None:
    takeover = ScheduledTakeover([(0, 6)], lambda tick, proposed: np.zeros(2, np.float32))
    robot = EnvRobot(ReachEnv())
    _, plain = record(robot, TakeoverSwitch(make_executor(robot), takeover))
    _, shadow = record(robot, TakeoverSwitch(make_executor(robot), takeover, infer_during_takeover=True))
    assert not plain.action_policy[1:6].any()
    assert shadow.action_policy[1:6].any()
    np.testing.assert_array_equal(plain.action_sent[:6], shadow.action_sent[:6])


def test_a_run_repeats_to_the_byte_under_jitter_loss_and_takeover() -> None:
    def run() -> Episode:
        robot = EnvRobot(ReachEnv())
        takeover = ScheduledTakeover([(9, 15)], lambda tick, proposed: proposed + np.float32(0.02))
        return record(robot, TakeoverSwitch(make_executor(robot, 0.2, JITTER), takeover), seed=11)[1]

    first, second = run(), run()
    assert first.action_sent.tobytes() == second.action_sent.tobytes()
    assert first.source.tobytes() == second.source.tobytes()
    assert all(np.array_equal(first.extras[name], second.extras[name]) for name in first.extras)


def test_replay_of_a_recorded_episode_sends_identical_commands() -> None:
    robot = EnvRobot(ReachEnv())
    takeover = ScheduledTakeover([(9, 15)], lambda tick, proposed: np.ones(2, np.float32))
    _, episode = record(robot, TakeoverSwitch(make_executor(robot, 0.2, JITTER), takeover), seed=5)
    assert {Source.POLICY, Source.HUMAN, Source.HOLD} <= set(episode.source)
    summary, again = record(robot, Replay(episode), seed=5)
    assert summary.success == episode.success
    assert again.action_sent.tobytes() == episode.action_sent.tobytes()
    assert again.action_policy.tobytes() == episode.action_policy.tobytes()
    assert again.source.tobytes() == episode.source.tobytes()
    assert again.images["front"].tobytes() == episode.images["front"].tobytes()


def test_replay_of_another_world_stops_at_the_end_of_the_recording() -> None:
    robot = EnvRobot(ReachEnv())
    _, episode = record(robot, make_executor(robot), seed=0)
    summary, again = record(robot, Replay(episode), seed=1)
    assert summary.stopped
    assert summary.success is False
    assert len(again) == len(episode)


def test_under_jerk_limits_a_replay_follows_closely_and_within_them() -> None:
    """To the byte is a claim for the rate-limited gate alone: the limiter has to follow the commands anew."""
    limits = replace(LIMITS, max_acceleration=(5.0, 5.0), max_jerk=(100.0, 100.0))
    robot = EnvRobot(ReachEnv())
    _, episode = record(robot, make_executor(robot, 0.1), seed=3, limits=limits)
    _, again = record(robot, Replay(episode), seed=3, limits=limits)
    steps = min(len(episode), len(again))
    assert np.abs(again.action_sent - episode.action_sent[:steps]).max() < STEP, "a tick of motion at full speed"
    assert not broken_limits(again.action_sent, limits, 20.0)
    assert again.action_policy[:steps].tobytes() == episode.action_policy[:steps].tobytes()


def test_replay_goes_by_rows_where_ticks_were_missed() -> None:
    stalling = StallingRobot({3: 0.13, 9: 0.3})
    _, episode = record(stalling, make_executor(stalling))
    assert episode.extras["tick"].tolist()[:12] == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 16, 17]
    assert (np.diff(episode.extras["tick"]) > 1).sum() == 2
    for robot in (EnvRobot(ReachEnv()), StallingRobot({5: 0.4})):
        summary, again = record(robot, Replay(episode))
        assert again.action_sent.tobytes() == episode.action_sent.tobytes()
        assert summary.success == episode.success


def test_a_demonstration_records_the_clean_action_and_sends_the_noisy_one() -> None:
    robot = EnvRobot(ReachEnv(limit=30))
    clean = np.array([0.01, 0.02], np.float32)
    seeds: list[int] = []
    source = Demonstrator(lambda: (clean, clean + np.float32(0.01)), seeds.append)
    _, episode = record(robot, source, seed=4)
    assert seeds == [4]
    assert (episode.source == Source.DEMO).all()
    np.testing.assert_array_equal(episode.action_policy, np.tile(clean, (30, 1)))
    np.testing.assert_array_equal(episode.imitation_action(), episode.action_policy)
    np.testing.assert_allclose(episode.action_sent, episode.action_policy + 0.01, rtol=1e-5)


def test_a_tick_at_which_the_gate_lets_nothing_through_is_a_hold() -> None:
    bad = np.array([np.nan, 0], np.float32)
    actions = iter([np.zeros(2, np.float32), bad, *[np.full(2, 0.01, np.float32)] * 100])
    robot = EnvRobot(ReachEnv(limit=5))
    source = Demonstrator(lambda: (action := next(actions), action))
    summary, episode = record(robot, source)
    assert episode.source.tolist() == [Source.DEMO, Source.HOLD, *[Source.DEMO] * 3]
    assert summary.held_ticks == 1
    assert (episode.extras["gate_reasons"] != 0).tolist() == [False, True, False, False, False]


class StallingRobot(EnvRobot):
    """Blocks for a while when it is read at some ticks."""

    def __init__(self, stalls: Mapping[int, float]) -> None:
        super().__init__(ReachEnv(), VirtualClock())
        self._stalls, self._reads = stalls, 0

    def read(self) -> Any:
        self.clock.sleep_until_ns(self.clock.now_ns() + round(self._stalls.get(self._reads, 0.0) * 1e9))
        self._reads += 1
        return replace(super().read(), tick=0)


class StepList:
    """A subscriber that keeps steps."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def on_step(self, step: Step) -> None:
        self.steps.append(step)

    def on_episode(self, episode: Episode) -> None: ...

    def on_metrics(self, metrics: Mapping[str, Any]) -> None: ...


def test_an_overrun_skips_ticks_keeps_the_phase_and_the_plan_goes_on_at_its_tick() -> None:
    """Read number 3 takes 2.6 periods: tick 4 never happens, 5 begins late, and 6 begins on the grid."""
    robot = StallingRobot({3: 0.13})
    steps = StepList()
    gate = SafetyGate(replace(LIMITS, max_observation_age_ms=1e4), 20.0)
    summary = run_episode(robot, make_executor(robot), gate, seed=0, subscribers=[steps], max_ticks=7)
    ticks = [step.observation.tick for step in steps.steps]
    assert ticks == [0, 1, 2, 3, 5, 6, 7]
    assert summary.missed_ticks == 1
    assert [step.extras["chunk_index"] for step in steps.steps] == ticks


def test_the_pacer_keeps_its_grid() -> None:
    clock = VirtualClock()
    pacer = Pacer(clock, 100)
    starts = []
    for work in [0, 30, 99, 100, 130, 250, 10, 1000, 0]:
        starts.append((pacer.tick, clock.now_ns()))
        clock.sleep_until_ns(clock.now_ns() + work)
        pacer.next_tick()
    assert starts == [(0, 0), (1, 100), (2, 200), (3, 300), (4, 400), (5, 530), (7, 780), (8, 800), (18, 1800)]
    assert pacer.missed == 1 + 9


def test_an_exception_in_the_policy_brings_the_robot_to_rest() -> None:
    class BrokenPolicy(ReachPolicy):
        def infer(self, observation: Any, committed: Float32Array | None = None) -> Any:
            raise RuntimeError("out of memory")

    robot = EnvRobot(ReachEnv())
    with pytest.raises(RuntimeError, match="out of memory"):
        run_episode(robot, Executor(InlinePlanner(BrokenPolicy())), SafetyGate(LIMITS, 20.0), seed=0)
    with pytest.raises(Exception, match="has ended"):
        robot.write(np.zeros(2, np.float32))


ROBOTS = Path(__file__).parents[2] / "configs" / "robots"


class Arm(MockRobot):
    """A mock that starts in the middle of its limits. Its readings and commands can be made to do something."""

    def __init__(self, limits: GateConfig, control_hz: float, duration_s: float = 60.0) -> None:
        self._middle = ((np.array(limits.low) + np.array(limits.high)) / 2).astype(np.float32)
        self.on_read: Callable[[int], None] = lambda number: None
        self.on_write: Callable[[int], None] = lambda number: None
        config = MockRobotConfig(joints=len(limits.low), control_hz=control_hz, image_size=8, duration_s=duration_s)
        super().__init__(config, clock=VirtualClock())

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self._position, self._command = self._middle.copy(), self._middle.copy()
        self._reads = self._writes = 0

    def read(self) -> Any:
        self._reads += 1
        self.on_read(self._reads)
        return super().read()

    def write(self, action: Float32Array) -> Float32Array:
        self._writes += 1
        self.on_write(self._writes)
        return super().write(action)

    def sleep(self, duration_s: float) -> None:
        self.clock.sleep_until_ns(self.clock.now_ns() + round(duration_s * 1e9))


def race(limits: GateConfig) -> Demonstrator:
    """To the farthest corner, as fast as the gate lets it."""
    corner = np.array(limits.high, np.float32)
    return Demonstrator(lambda: (corner, corner))


def stream(arm: Arm) -> np.ndarray:
    """Every command that reached the robot, from its rest at the start to the hold that a stop is, float32 [T, A]."""
    sent = [command for _, command in arm.writes]
    assert arm.stopped_after == len(sent), "nothing comes after the stop"
    return np.stack([arm._middle, *sent, *[sent[-1]] * 3])


def moving(commands: np.ndarray) -> bool:
    """The stream freezes at more than a tenth of the fastest motion."""
    steps = np.abs(np.diff(commands, axis=0)).max(axis=1)
    return bool(steps[-4] > 0.1 * steps.max())


def a_label(arm: Arm) -> None:
    def call(number: int) -> None:
        arm.terminated = arm.success = number >= 17

    arm.on_read = call


def a_reading_that_fails(arm: Arm) -> None:
    def fail(number: int) -> None:
        if number == 18:
            raise ConnectionError("no answer")

    arm.on_read = fail


def a_command_that_fails(arm: Arm) -> None:
    def fail(number: int) -> None:
        if number == 23:
            raise ConnectionError("no answer")

    arm.on_write = fail


def the_time(arm: Arm) -> None:
    arm.config = replace(arm.config, duration_s=0.55)


@pytest.mark.parametrize("commands_per_tick", [1, 4])
@pytest.mark.parametrize("ending", [the_time, a_label, a_reading_that_fails, a_command_that_fails])
@pytest.mark.parametrize(("name", "control_hz"), [("so101", 30.0), ("franka_panda", 50.0)])
def test_whatever_ends_an_attempt_the_robot_is_braked_within_its_limits(
    name: str, control_hz: float, ending: Callable[[Arm], None], commands_per_tick: int
) -> None:
    limits = load_config(RobotLimits, ROBOTS / f"{name}.yaml")
    arm = Arm(limits, control_hz)
    ending(arm)
    recorder = Recorder(Origin.REAL, name, control_hz)
    recorder.begin("episode", 0, 0)
    gate = SafetyGate(limits, control_hz, commands_per_tick)
    broke_off = ending in (a_reading_that_fails, a_command_that_fails)
    with pytest.raises(ConnectionError) if broke_off else nullcontext():
        summary = run_episode(arm, race(limits), gate, seed=0, subscribers=[recorder], max_ticks=100)
    commands = stream(arm)
    assert not broken_limits(commands, limits, control_hz * commands_per_tick)
    assert len(commands) < 2.0 * control_hz * commands_per_tick, "it takes no longer than the limits need"
    episode = recorder.episode or recorder.finish()
    assert episode is not None
    assert moving(commands[: len(episode) * commands_per_tick + 4]), "the attempt ended in motion"
    if not broke_off:
        assert len(episode) == summary.ticks, "braking is no part of the episode"
        assert summary.duration_s == pytest.approx(summary.ticks / control_hz, abs=1.1 / control_hz)
        assert (summary.terminated, episode.terminated) == (arm.terminated, arm.terminated)
        assert summary.success is episode.success is arm.success


@pytest.mark.parametrize("ending", [the_time, a_reading_that_fails])
def test_waiting_for_a_slow_tick_is_no_pause_of_the_braking(ending: Callable[[Arm], None]) -> None:
    """At 2.5 Hz the last command of a tick is 350 ms after its beginning, and the tick before began 400 ms earlier."""
    limits = GateConfig(
        low=(-9.0,), high=(9.0,), max_velocity=(1.0,), max_acceleration=(1.0,), max_jerk=(5.0,),
        max_observation_age_ms=1e4, max_action_age_ms=1e4,
    )  # fmt: skip
    arm = Arm(limits, 2.5)
    ending(arm)
    arm.config = replace(arm.config, duration_s=2.3 if ending is the_time else 60.0)
    gate = SafetyGate(limits, 2.5, 8)
    with pytest.raises(ConnectionError) if ending is a_reading_that_fails else nullcontext():
        run_episode(arm, race(limits), gate, seed=0, max_ticks=100)
    assert gate.at_rest
    assert not broken_limits(stream(arm), limits, 20.0)


def test_a_world_that_ends_with_its_episode_is_not_braked() -> None:
    robot = EnvRobot(ReachEnv(limit=10))
    limits = replace(LIMITS, max_acceleration=(5.0, 5.0), max_jerk=(100.0, 100.0))
    gate = SafetyGate(limits, 20.0)
    summary = run_episode(robot, race(limits), gate, seed=0)
    assert (summary.ticks, summary.success, gate.at_rest) == (10, False, False)


def test_a_robot_that_stood_still_before_an_exception_is_not_pushed_on() -> None:
    """The camera driver waited for half a second before it gave up: the last command has been reached long ago."""
    limits = load_config(RobotLimits, ROBOTS / "so101.yaml")
    arm = Arm(limits, 30.0)

    def time_out(number: int) -> None:
        if number == 18:
            arm.sleep(0.4)
            raise TimeoutError("no frame")

    arm.on_read = time_out
    with pytest.raises(TimeoutError):
        run_episode(arm, race(limits), SafetyGate(limits, 30.0), seed=0)
    assert moving(stream(arm))
    assert len(arm.writes) == arm.stopped_after == 17


@pytest.mark.parametrize(
    ("where", "commands_per_tick", "delta_dims"),
    [
        ("while it is decided", 1, ()),
        ("while it is decided", 1, (0,)),
        ("while it is decided", 4, ()),
        ("before it is sent", 1, ()),
        ("within a tick", 4, ()),
        ("in the braking", 1, ()),
        ("in the braking", 1, (0,)),
        ("in the braking", 4, ()),
    ],
)
def test_a_process_that_stood_still_within_a_tick_sends_nothing_of_it(
    where: str, commands_per_tick: int, delta_dims: tuple[int, ...]
) -> None:
    """Stopped for 3 s: the robot has come to rest at the last command, and stays there. Steps end."""
    limits = replace(load_config(RobotLimits, ROBOTS / "so101.yaml"), delta_dims=delta_dims)
    arm = Arm(limits, 30.0)
    first = 17 * commands_per_tick  # commands before the tick of the pause

    class Stopped(VirtualClock):
        """The process stands still where it waits for the time of a command."""

        before: int | None = None

        def sleep_until_ns(self, deadline_ns: int) -> None:
            super().sleep_until_ns(deadline_ns)
            if len(arm.writes) == self.before:
                self.before = None
                super().sleep_until_ns(deadline_ns + 3 * 10**9)

    class Thinking:
        """A source whose process stands still while it decides."""

        def __init__(self) -> None:
            self._inner, self._asked = race(limits), 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def propose(self, *arguments: Any) -> Any:
            self._asked += 1
            if where == "while it is decided" and self._asked == 18:
                arm.sleep(3.0)
            return self._inner.propose(*arguments)

    arm.clock = clock = Stopped()
    if where != "while it is decided":
        clock.before = (
            first + {"before it is sent": 0, "within a tick": commands_per_tick // 2, "in the braking": 5}[where]
        )
    gate = SafetyGate(limits, 30.0, commands_per_tick)
    steps, max_ticks = StepList(), 17 if where == "in the braking" else 100
    run_episode(arm, Thinking(), gate, seed=0, subscribers=[steps], max_ticks=max_ticks)
    commands = np.stack([command for _, command in arm.writes])
    times_s = np.array([time_ns for time_ns, _ in arm.writes]) / 1e9
    paused = np.flatnonzero(np.diff(times_s) > 1.0)
    last = paused[0] if len(paused) else len(commands) - 1
    targets = np.setdiff1d(np.arange(commands.shape[1]), delta_dims)
    until = commands[: last + 1, targets]
    assert moving(np.concatenate([until, *[until[-1:]] * 3])), "it paused in motion"
    assert (commands[last:, targets] == commands[last, targets]).all()
    assert not commands[last + 1 :, list(delta_dims)].any()
    assert times_s[last] < 2.0
    assert arm.stopped_after == len(commands)
    assert where == "in the braking" or (gate.latched and "stood still" in gate.why)
    if where == "while it is decided":
        assert steps.steps[17].source is Source.HOLD, "nothing of it was sent"
        np.testing.assert_array_equal(steps.steps[17].action_sent[targets], commands[last, targets])
        assert not steps.steps[17].action_sent[list(delta_dims)].any()


@pytest.mark.parametrize("commands_per_tick", [1, 4])
def test_a_pause_while_a_command_is_sent_ends_the_braking(commands_per_tick: int) -> None:
    """A bus that blocks for longer than a gap may be, but not for as long as braking may take."""
    limits = GateConfig(low=(-10.0,), high=(10.0,), max_velocity=(2.0,), max_acceleration=(1.0,), max_jerk=(20.0,))
    arm = Arm(limits, 20.0)
    write, last = arm.write, 60 * commands_per_tick + 3

    def block(action: Float32Array) -> Float32Array:
        sent = write(action)
        if len(arm.writes) == last:
            arm.sleep(1.0)
        return sent

    arm.write = block  # type: ignore[method-assign]
    gate = SafetyGate(limits, 20.0, commands_per_tick)
    run_episode(arm, race(limits), gate, seed=0, max_ticks=60)
    assert gate.at_rest
    assert len(arm.writes) == arm.stopped_after == last
    assert moving(stream(arm))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("commands_per_tick", [1, 4])
def test_a_first_error_in_the_braking_does_not_end_it(commands_per_tick: int, error: type[BaseException]) -> None:
    """Ctrl-C, or a bus that fails once."""
    limits = load_config(RobotLimits, ROBOTS / "so101.yaml")
    arm = Arm(limits, 30.0)

    def fail(number: int) -> None:
        if number == 17 * commands_per_tick + 3:
            raise error

    arm.on_write = fail
    gate = SafetyGate(limits, 30.0, commands_per_tick)
    with pytest.raises(error):
        run_episode(arm, race(limits), gate, seed=0, max_ticks=17)
    assert gate.at_rest
    assert not broken_limits(stream(arm), limits, 30.0 * commands_per_tick)


def test_a_second_signal_ends_the_braking_at_once() -> None:
    limits = load_config(RobotLimits, ROBOTS / "so101.yaml")
    arm = Arm(limits, 30.0)

    def interrupt(number: int) -> None:
        if number >= 20:
            raise KeyboardInterrupt

    arm.on_write = interrupt
    with pytest.raises(KeyboardInterrupt):
        run_episode(arm, race(limits), SafetyGate(limits, 30.0), seed=0, max_ticks=17)
    assert len(arm.writes) == arm.stopped_after == 19


class PausedSteps(Arm):
    """A joint that takes steps. Its process stands still, and its reading stays old for two ticks more."""

    stops = 0

    def condition(self) -> Condition:
        return Condition(np.zeros(1, np.float32), np.zeros(1, np.float32), self._captured_ns)

    def read(self) -> Any:
        observation = super().read()
        if self._reads == 10:
            self.sleep(2.0)
        if self._reads not in (10, 11, 12):
            self._captured_ns = self.clock.now_ns()
        return observation

    def stop(self) -> None:
        self.stops += 1
        super().stop()


def test_steps_that_a_pause_has_ended_are_recorded_as_ended() -> None:
    """The gate sends nothing until it knows where the robot is, and the robot ends its steps."""
    limits = RobotLimits(low=(-1.0,), high=(1.0,), max_velocity=(20.0,), delta_dims=(0,))
    arm, steps = PausedSteps(limits, 20.0), StepList()
    action = np.full(1, 0.5, np.float32)
    run_episode(arm, Demonstrator(lambda: (action, action)), SafetyGate(limits, 20.0), seed=0, subscribers=[steps])
    sent = sum(float(command[0]) for _, command in arm.writes)
    assert sent == sum(float(step.action_sent[0]) for step in steps.steps) == 4.5
    assert arm.stops > 1, "a tick without a command ends steps"


class InPlace(ScheduledTakeover):
    """A takeover that adds to the array that it is shown."""

    def command(self, tick: int, proposed: Float32Array) -> Float32Array | None:
        proposed += 0.5
        return proposed


def test_what_others_do_to_its_arrays_does_not_move_the_gate() -> None:
    """Of a person's input, and of a robot that converts its commands where they stand."""
    arm = arm_of_two()
    write = arm.write

    def in_degrees(action: Float32Array) -> Float32Array:
        sent = write(action.copy())
        action *= 57.3
        return sent

    arm.write = in_degrees  # type: ignore[method-assign]
    source = TakeoverSwitch(Executor(InlinePlanner(ReachPolicy())), InPlace([], lambda _, action: action))
    steps = StepList()
    run_episode(arm, source, SafetyGate(LIMITS, 20.0), seed=0, subscribers=[steps], max_ticks=40)
    commands = stream(arm)
    assert np.abs(np.diff(commands, axis=0)).max() <= STEP
    np.testing.assert_array_equal([step.action_sent for step in steps.steps], commands[1:41])


def test_after_an_interruption_the_rest_of_the_tick_is_sent_before_the_braking() -> None:
    limits = load_config(RobotLimits, ROBOTS / "so101.yaml")
    arm = Arm(limits, 30.0)

    class Interrupting(VirtualClock):
        """Ctrl-C comes while the loop waits between two commands of a tick."""

        interrupts = True

        def sleep_until_ns(self, deadline_ns: int) -> None:
            if self.interrupts and len(arm.writes) == 70:
                self.interrupts = False
                raise KeyboardInterrupt
            super().sleep_until_ns(deadline_ns)

    arm.clock = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        run_episode(arm, race(limits), SafetyGate(limits, 30.0, 4), seed=0)
    assert not broken_limits(stream(arm), limits, 120.0)


def test_an_interrupted_clock_of_the_machine_still_paces_the_braking() -> None:
    """As a ROS node is deactivated in the middle of a motion."""
    limits = load_config(RobotLimits, ROBOTS / "so101.yaml")
    arm, clock = Arm(limits, 30.0), RosTime(simulated=False)
    arm.clock = clock
    interrupted_ns: list[int] = []

    def deactivate(number: int) -> None:
        if number == 12:
            clock.interrupt()
            interrupted_ns.append(clock.now_ns())
            arm.terminated = True

    arm.on_read = deactivate
    clock.begin()
    gate = SafetyGate(replace(limits, max_observation_age_ms=1e4, max_action_age_ms=1e4), 30.0, 4)
    run_episode(arm, race(limits), gate, seed=0)
    assert gate.at_rest
    assert arm.writes[-1][0] - interrupted_ns[0] > 0.15e9, "braking takes about a fifth of a second"


def test_a_clock_that_nobody_can_wait_on_gets_no_braking_in_a_burst() -> None:
    """Simulated ROS time, interrupted."""

    class Interrupted(VirtualClock):
        def sleep_until_ns(self, deadline_ns: int) -> None:
            if len(arm.writes) < 68:
                super().sleep_until_ns(deadline_ns)

    limits = load_config(RobotLimits, ROBOTS / "so101.yaml")
    arm = Arm(limits, 30.0)
    arm.clock = Interrupted()
    run_episode(arm, race(limits), SafetyGate(limits, 30.0, 4), seed=0, max_ticks=17)
    assert len(arm.writes) == arm.stopped_after == 68


def test_a_late_tick_sends_fewer_commands_and_none_in_a_burst() -> None:
    """Ten commands a tick, 20 Hz. One reading takes 45 ms, two take 7 ms, one takes 2.3 ticks."""
    limits = GateConfig(low=(-9.0,), high=(9.0,), max_velocity=(1.0,), max_observation_age_ms=1e4)
    for config in (limits, replace(limits, max_acceleration=(10.0,), max_jerk=(200.0,))):
        arm = Arm(config, 20.0)
        late_s = {15: 0.045, 20: 0.007, 21: 0.007, 25: 0.115}
        arm.on_read = lambda number, arm=arm, late_s=late_s: arm.sleep(late_s.get(number, 0.0))
        targets = iter(np.arange(1000) * np.float32(0.045))
        source = Demonstrator(lambda targets=targets: 2 * (np.array([next(targets)], np.float32),))
        steps = StepList()
        run_episode(arm, source, SafetyGate(config, 20.0, 10), seed=0, subscribers=[steps], max_ticks=40)
        times_ms = np.array([time_ns for time_ns, _ in arm.writes]) / 1e6
        assert np.diff(times_ms).min() >= 5.0
        commands = np.array([command[0] for _, command in arm.writes])
        assert (np.abs(np.diff(commands)) / np.diff(times_ms) * 1e3).max() <= 1.0 + 1e-4
        ticks = np.floor(times_ms / 50 + 1e-9).astype(int)
        sent = np.bincount(ticks, minlength=41)[:41]
        expected = np.full(41, 10)
        expected[[14, 19, 20, 24, 25, 26]] = 1, 9, 9, 0, 0, 7
        assert sent.tolist() == expected.tolist()
        assert [step.observation.tick for step in steps.steps][24:27] == [24, 26, 27]


def test_an_ended_attempt_is_stopped_once_within_its_last_tick() -> None:
    arm = Arm(LIMITS, 20.0)
    the_time(arm)
    stops_ns: list[int] = []
    stop = arm.stop
    arm.stop = lambda: (stops_ns.append(arm.clock.now_ns()), stop())[1]  # type: ignore[method-assign]
    run_episode(arm, race(LIMITS), SafetyGate(LIMITS, 20.0), seed=0, max_ticks=100)
    assert stops_ns == [arm.writes[-1][0]], "a tick later nothing is commanded any more"


def test_a_posture_that_cannot_be_held_starts_nothing() -> None:
    arm = Arm(LIMITS, 20.0)
    arm._middle[1] = np.nan
    with pytest.raises(UserError, match=r"dimensions \[1\]"):
        run_episode(arm, race(LIMITS), SafetyGate(LIMITS, 20.0), seed=0)
    assert not arm.writes


def planned_late(arm: Arm, latency: LatencyConfig, **config: Any) -> Executor:
    planner = VirtualPlanner(ReachPolicy(), arm.clock, 20.0, latency)
    return Executor(planner, ExecutionConfig(strategy="naive", **config))


class MeasuredArm(Arm):
    """A real arm's readings before an attempt."""

    def rest_readings(self) -> Float32Array:
        return np.stack([self._middle] * 3)


def arm_of_two() -> Arm:
    arm = MeasuredArm(GateConfig(low=(-1.0, -1.0), high=(1.0, 1.0), max_velocity=(1.0, 1.0)), 20.0, duration_s=5.0)
    arm.config = replace(arm.config, state_size=4)
    return arm


@pytest.mark.parametrize("supervised", [False, True])
def test_a_robot_rests_until_the_first_plan_is_here_and_then_never_holds(supervised: bool) -> None:
    arm = arm_of_two()
    executor = planned_late(arm, LatencyConfig(typical=2.5))
    source = TakeoverSwitch(executor, ScheduledTakeover([], lambda _, action: action)) if supervised else executor
    before_ns = arm.clock.now_ns()
    summary = run_episode(arm, source, SafetyGate(LIMITS, 20.0), seed=0, max_ticks=30)
    assert summary.held_ticks == 0
    first_ns, first = arm.writes[0]
    assert 2.5 <= (first_ns - before_ns) * 1e-9 * 20.0 <= 3.5, "nothing was sent before the plan was here"
    assert np.abs(first - arm._middle).max() <= STEP


def test_a_policy_that_never_answers_keeps_nobody_waiting() -> None:
    arm = arm_of_two()
    executor = planned_late(arm, FaultyLatencyConfig(typical=1.0, drop_probability=1.0), cold_start_ticks=5)
    before_ns = arm.clock.now_ns()
    summary = run_episode(arm, executor, SafetyGate(LIMITS, 20.0), seed=0, max_ticks=200)
    assert summary.stopped
    assert summary.held_ticks == summary.ticks
    assert arm.clock.now_ns() - before_ns < 3e9
    assert np.abs(stream(arm) - arm._middle).max() == 0


def test_an_environment_begins_at_once() -> None:
    robot = EnvRobot(ReachEnv())
    summary, _ = record(robot, make_executor(robot, latency=LatencyConfig(typical=3.0)))
    assert summary.held_ticks == 3
