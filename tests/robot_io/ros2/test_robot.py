"""A robot of topics without ROS: messages are handed to its callbacks, its time is a /clock that the test moves."""

import functools
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from robot_io.gate import GateConfig, Reason, SafetyGate
from robot_io.ros2.clock import RosTime
from robot_io.ros2.operator import OperatorRequests
from robot_io.ros2.robot import Interface, Ros2Robot
from vla_rl.acting.robots.ros2 import settings_from
from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import run_episode
from vla_rl.execution.plan import Planner, observed_ns

MS = 1_000_000
HZ, TICK_MS = 20.0, 50
LIMITS = GateConfig(low=(-9.0,) * 4, high=(9.0,) * 4, max_velocity=(99.0,) * 4)


class Kept:
    """An output that keeps what it is sent."""

    def __init__(self, commands: list[Float32Array]) -> None:
        self.begin, self.send = lambda rest: None, commands.append


class Bench:
    """Two arms of two joints each, "l" and "r", on a clock that starts at 1 s."""

    def __init__(self, **options: Any) -> None:
        self.clock = RosTime(simulated=True)
        self.published: list[Float32Array] = []
        options = {"joints": ["l1", "l2", "r1", "r2"], "cameras": [], **options}
        silent_ms = LIMITS.max_observation_age_ms
        self.robot = Ros2Robot(
            settings_from(options),
            self.clock,
            OperatorRequests(),
            Interface(HZ, None, silent_ms),
            [Kept(self.published)],
        )
        self.at(0)

    def at(self, ms: int) -> None:
        self.ms = ms
        self.clock.on_clock(10**9 + ms * MS)

    def joints(self, names: str, *positions: float) -> None:
        """A JointState of the joints "l1 l2"; as rclpy gives it to `Ros2Robot.on_joints`."""
        self.robot.on_joints(SimpleNamespace(header=self.header(), name=names.split(), position=positions))

    def picture(self, brightness: int) -> None:
        """An Image of the camera "front"."""
        size = {"height": 8, "width": 8, "step": 24, "data": bytes([brightness]) * 192}
        self.robot.on_image("front", SimpleNamespace(header=self.header(), encoding="rgb8", **size))

    def header(self) -> SimpleNamespace:
        sec, nanosec = divmod(10**9 + self.ms * MS, 10**9)
        return SimpleNamespace(stamp=SimpleNamespace(sec=sec, nanosec=nanosec))

    def state(self) -> tuple[float, list[float]]:
        """Age in ms and positions of what the policy is shown."""
        observation = self.robot.read()
        age_ms = (self.clock.now_ns() - observation.captured_ns["state"]) / MS
        return age_ms, np.round(observation.state, 3).tolist()


def test_a_dead_joint_driver_stops_the_robot_however_lively_the_other_is() -> None:
    bench = Bench()
    gate = SafetyGate(LIMITS, HZ)
    gate.reset(np.zeros(4, np.float32))
    dies_ms, stopped_ms = 1000, 0
    for ms in range(0, 3000, TICK_MS):
        bench.at(ms)
        bench.joints("r1 r2", ms, ms)
        if ms < dies_ms:
            bench.joints("l1 l2", ms, ms)
        observation, now_ns = bench.robot.read(), bench.clock.now_ns()
        verdict = gate.admit(np.full(4, 1e-4 * ms, np.float32), now_ns, observed_ns(observation, now_ns), now_ns)
        bench.robot.write(verdict.commands[-1])
        if ms < dies_ms:
            assert bench.state() == (0.0, [ms] * 4)
            assert bench.robot.why() == ""
        if verdict.stopped:
            stopped_ms = ms
            break
    assert Reason.OBSERVATION_STALE in Reason(verdict.reasons)
    assert 0 < stopped_ms - dies_ms <= LIMITS.max_observation_age_ms + LIMITS.stop_after_ms + 3 * TICK_MS
    age_ms = stopped_ms - dies_ms + TICK_MS
    assert bench.robot.ages_ms() == {"state": age_ms}
    assert bench.robot.why() == f"state: silent for {age_ms} ms: the driver of l1, l2"
    bench.at(stopped_ms + TICK_MS)
    bench.joints("r1 r2", 7.0, 7.0)
    bench.joints("l1 l2", 8.0, 8.0)
    assert bench.state() == (0.0, [8.0, 8.0, 7.0, 7.0]), "the driver is back"
    assert bench.robot.why() == ""


def test_joints_of_several_drivers_are_shown_as_they_were_together() -> None:
    bench = Bench()
    for ms in range(1, 1000):
        bench.at(ms)
        bench.joints("r1 r2", ms, ms)  # 1 kHz
        if ms % 10 == 3:
            bench.joints("l1 l2", ms, ms)  # 100 Hz
        if ms > 10:
            age_ms, positions = bench.state()
            assert age_ms == (ms - 3) % 10
            assert positions == [ms - age_ms] * 4


def test_joints_that_the_policy_does_not_know_tell_nothing_about_the_others() -> None:
    bench = Bench()
    bench.joints("l1 l2 r1 r2", 1, 2, 3, 4)
    bench.at(300)
    bench.joints("wheel_left wheel_right", 5, 6)
    bench.joints("l1 l2 r1 r2")  # names without positions, as some drivers send velocities
    assert bench.state() == (300.0, [1, 2, 3, 4])
    assert bench.robot.why() == "state: silent for 300 ms", "all of them: no driver is to be blamed alone"


def test_of_positions_with_the_same_stamp_the_newer_ones_count() -> None:
    bench = Bench()
    bench.joints("l1 l2 r1 r2", 1, 2, 3, 4)
    bench.joints("l1 l2 r1 r2", 5, 6, 7, 8)
    assert bench.state() == (0.0, [5, 6, 7, 8])
    bench.joints("l1 l2", np.nan, 0)
    assert bench.state() == (0.0, [5, 6, 7, 8])
    assert bench.robot.why() == "state: the joints read numbers that are not finite"
    bench.joints("l1 l2", 9, 9)
    assert bench.state() == (0.0, [9, 9, 7, 8])
    assert bench.robot.why() == ""


@pytest.mark.parametrize("camera_latency_ms", [0, 35, 400])
def test_a_picture_is_shown_with_the_joints_of_its_moment(camera_latency_ms: int) -> None:
    """Joints at 1 kHz, as soon as they are read; a camera at 20 Hz, whose pictures come late."""
    bench = Bench(cameras=["front"], camera={"front": {"latency_ms": camera_latency_ms}})
    for ms in range(1, 1500):
        bench.at(ms)
        bench.joints("l1 l2 r1 r2", ms, ms, ms, ms)
        if ms % 50 == 0:
            bench.picture(ms // 50)
        if ms > camera_latency_ms + 50:
            observation = bench.robot.read()
            shown_ms = int(observation.images["front"][0, 0, 0]) * 50 - camera_latency_ms
            assert observation.state[0] == shown_ms
            assert observation.captured_ns == {"front": 10**9 + shown_ms * MS, "state": 10**9 + shown_ms * MS}


def test_an_attempt_begins_where_the_robot_is_however_late_a_camera() -> None:
    bench = Bench(cameras=["front"])
    for ms in range(0, 500, 10):
        bench.at(ms)
        if ms == 0:
            bench.picture(1)
        bench.joints("l1 l2 r1 r2", ms, ms, ms, ms)  # somebody moves the robot by hand
    assert bench.state() == (490.0, [0] * 4), "what the policy is shown belongs together"
    assert bench.robot.rest_command().tolist() == [490] * 4, "where the robot holds is where it is"


def test_one_joint_of_a_robot_of_topics_that_freezes_latches_the_stop() -> None:
    bench = Bench(max_attempt_s=60.0)
    gate = SafetyGate(LIMITS, HZ, names=("l1", "l2", "r1", "r2"))
    bench.joints("l1 l2 r1 r2", 0, 0, 0, 0)
    command = gate.reset(np.zeros(4, np.float32))
    for ms in range(TICK_MS, 4000, TICK_MS):
        bench.at(ms)
        bench.robot.write(command)
        lively = float(command[0]) + 1e-4 * (ms % 70)
        bench.joints("l1 l2 r1 r2", lively, 0.2 if ms > 1000 else lively, lively, lively)
        gate.inspect(bench.robot.condition())
        now_ns = bench.clock.now_ns()
        verdict = gate.admit(np.full(4, 5e-4 * ms, np.float32), now_ns, now_ns, now_ns)
        command = verdict.commands[-1]
        if verdict.stopped:
            break
    assert Reason.FROZEN in Reason(verdict.reasons)
    assert "l2 stands still" in gate.why
    # 2 % of 18 takes 720 ms at this speed, and 500 ms more are the declared time.
    assert 1000 + 720 + 500 <= ms <= 1000 + 720 + 500 + 4 * TICK_MS


def test_the_effort_of_joint_states_is_watched() -> None:
    bench = Bench()
    bench.robot.on_joints(
        SimpleNamespace(header=bench.header(), name=["l1", "l2", "r1", "r2"], position=[0] * 4, effort=[1, 2, 3, -4])
    )
    bench.robot.write(np.zeros(4, np.float32))
    effort = bench.robot.condition().effort
    assert effort is not None
    assert effort.tolist() == [1, 2, 3, -4]


def image(bench: Bench, height: int, width: int) -> None:
    size = {"height": height, "width": width, "step": 3 * width, "data": bytes(range(256)) * (3 * height * width)}
    bench.robot.on_image("front", SimpleNamespace(header=bench.header(), encoding="rgb8", **size))


@pytest.mark.parametrize(
    ("shape", "words"),
    [((0, 0), "0 x 0"), ((1, 1), "1 x 1"), ((0, 16), "0 x 16"), ((16, 12), "16 x 12"), ((8, 60), "8 x 60")],
)
def test_pictures_that_show_nothing_or_another_cut_are_no_news(shape: tuple[int, int], words: str) -> None:
    bench = Bench(cameras=["front"])
    bench.joints("l1 l2 r1 r2", 0, 0, 0, 0)
    image(bench, 12, 16)
    seen_ns = bench.robot.read().captured_ns["front"]
    bench.at(300)
    bench.joints("l1 l2 r1 r2", 0, 0, 0, 0)
    image(bench, *shape)
    observation = bench.robot.read()
    assert observation.captured_ns["front"] == seen_ns
    assert observation.images["front"].shape == (12, 16, 3)
    assert words in bench.robot.why()
    bench.at(350)
    bench.joints("l1 l2 r1 r2", 0, 0, 0, 0)
    image(bench, 24, 32)  # the same cut, finer
    assert bench.robot.read().captured_ns["front"] > seen_ns


def test_a_reading_of_the_world_before_the_reset_is_none_of_the_new_one() -> None:
    """On /clock the last picture of the old world may come after the answer of the reset service, a step ahead."""
    bench = Bench(stream_timeout_s=0.05)

    def reset_world() -> None:
        bench.joints("l1 l2 r1 r2", 5, 5, 5, 5)
        bench.ms += TICK_MS  # the reading that is ahead of the clock
        bench.joints("l1 l2 r1 r2", 5, 5, 5, 5)

    def wait_for(condition: Any, timeout_s: float) -> bool:
        for _ in range(4):
            bench.at(bench.ms + TICK_MS)
            bench.joints("l1 l2 r1 r2", 1, 1, 1, 1)
        return bool(condition())

    bench.robot._reset_world = reset_world
    bench.robot._fresh.wait_for = wait_for  # type: ignore[method-assign, assignment]
    bench.robot.reset(0)
    assert bench.robot.rest_readings().tolist() == [[1] * 4] * 3


def test_nothing_is_reset_under_an_alarm() -> None:
    """The scene's reset moves the arm."""
    bench, resets = Bench(stream_timeout_s=0.05), []
    bench.robot._reset_world = lambda: resets.append(1)
    bench.robot.on_interlocks({Reason.E_STOP: "the emergency stop is pressed"})
    with pytest.raises(UserError, match="the emergency stop is pressed"):
        bench.robot.reset(0)
    assert not resets


def test_an_alarm_between_two_ticks_is_heard_however_short() -> None:
    """As a dead-man that is let go and held again at once. What was heard before an attempt began does not count."""
    bench = Bench()
    bench.joints("l1 l2 r1 r2", 1, 1, 1, 1)
    bench.robot.write(np.ones(4, np.float32))
    slips = {Reason.DEAD_MAN: "the dead-man was let go"}
    for interlocks in (slips, {}, {Reason.OTHER_PUBLISHER: "another node"}, {}):
        bench.robot.on_interlocks(interlocks)
    told = bench.robot.condition()
    assert told.interlocks == Reason.DEAD_MAN | Reason.OTHER_PUBLISHER
    assert told.why == "the dead-man was let go; another node"
    assert bench.robot.condition().interlocks == 0


def test_an_attempt_ends_while_it_waits_for_a_first_plan() -> None:
    """On /clock, deactivated in the very thread that would bring the next moment."""

    class Silent(Planner):
        def reset(self, seed: int) -> None: ...

        def request(self, request: object, inference: object) -> None: ...

        def poll(self) -> list[Any]:
            return []

        def wait(self) -> int:
            return 0

    bench = Bench()
    gate = SafetyGate(LIMITS, HZ)
    run = functools.partial(run_episode, bench.robot, Executor(Silent()), gate, seed=0, max_ticks=3)
    control = threading.Thread(target=run, daemon=True)
    control.start()
    for step in range(1, 10_000):
        bench.at(step)
        bench.joints("l1 l2 r1 r2", 0, 0, 0, 0)
        if bench.robot.acting:
            break
        time.sleep(0.005)
    assert bench.robot.acting
    bench.robot.interrupt()
    control.join(60.0)
    assert not control.is_alive()


def test_a_reset_that_sets_the_worlds_time_back_is_no_fault() -> None:
    """As a simulator's reset does, which is told by the service and on /clock, in any order. A jump afterwards is."""
    bench = Bench(stream_timeout_s=0.05)
    bench.at(5000)

    def wait_for(condition: Any, timeout_s: float) -> bool:
        bench.at(0)  # the answer came first
        for _ in range(8):
            bench.at(bench.ms + TICK_MS)
            bench.joints("l1 l2 r1 r2", 1, 1, 1, 1)
        return bool(condition())

    bench.robot._reset_world = lambda: bench.at(2000)
    bench.robot._fresh.wait_for = wait_for  # type: ignore[method-assign, assignment]
    bench.robot.reset(0)
    assert bench.state() == (0.0, [1] * 4)
    bench.at(bench.ms + TICK_MS)
    bench.joints("l1 l2 r1 r2", 1, 1, 1, 1)
    assert bench.state() == (0.0, [1] * 4)
    bench.at(0)
    for _ in range(2):
        bench.at(bench.ms + TICK_MS)
        bench.joints("l1 l2 r1 r2", 1, 1, 1, 1)
        age_ms, _ = bench.state()
    assert age_ms == TICK_MS, "no capture time is believed any more"
    assert "the clock jumped" in bench.robot.why()


def test_steps_are_not_repeated_when_the_robot_stops_and_are_not_measured() -> None:
    """The last step of an attempt, sent again as its hold, would move the robot on: with a twist, for ever."""
    options = {"joints": ["l1", "l2", "r1"], "outputs": ["arm", "tool"], "cameras": []}
    axes = ["x", "y", "z", "roll", "pitch", "yaw"]
    options["output"] = {"arm": {"joints": ["r1", "l1"]}, "tool": {"type": "twist", "joints": axes}}
    clock, positions, sent = RosTime(simulated=True), [], []
    outputs = [Kept(positions), Kept(sent)]
    robot = Ros2Robot(
        settings_from(options),
        clock,
        OperatorRequests(),
        Interface(HZ, None, 200.0, step_dims=tuple(range(2, 8))),
        outputs,
    )
    clock.on_clock(10**9)
    header = SimpleNamespace(stamp=SimpleNamespace(sec=1, nanosec=0))
    robot.on_joints(SimpleNamespace(header=header, name=["l1", "l2", "r1"], position=[1, 2, 3]))
    assert robot.rest_command().tolist() == [3, 1, 0, 0, 0, 0, 0, 0]
    robot.write(np.full(8, 0.5, np.float32))
    robot.stop()
    assert [command.tolist() for command in sent] == [[0.5] * 6, [0.0] * 6]
    assert len(positions) == 1, "a target holds by itself, and may be an old one after a pause"
    assert robot.condition().position.tolist() == [3, 1, 0, 0, 0, 0, 0, 0]


def test_what_is_told_as_velocities_says_so() -> None:
    """So that a stop never sends it back, at any speed, to where it is, and always ends it."""
    options = {"joints": ["l1", "l2", "r1"], "outputs": ["arm", "lift"], "cameras": []}
    options["output"] = {"arm": {"joints": ["r1", "l1"]}, "lift": {"type": "velocity", "joints": ["l2"]}}
    clock = RosTime(simulated=True)
    targets, rates = [], []
    robot = Ros2Robot(
        settings_from(options), clock, OperatorRequests(), Interface(HZ, None, 200.0), [Kept(targets), Kept(rates)]
    )
    clock.on_clock(10**9)
    header = SimpleNamespace(stamp=SimpleNamespace(sec=1, nanosec=0))
    robot.on_joints(SimpleNamespace(header=header, name=["l1", "l2", "r1"], position=[1, 2, 3]))
    robot.write(np.zeros(3, np.float32))
    assert list(robot.condition().rate_dims) == [2]
    robot.stop()
    assert (len(targets), len(rates)) == (1, 2)


@pytest.mark.parametrize("paused", [False, True])
def test_an_array_of_steps_and_targets_brings_no_old_target_after_a_pause(paused: bool) -> None:
    """The targets of such an array cannot stay away alone. The gate sends them when it knows where the robot is."""
    clock, sent = RosTime(simulated=True), []
    options = {"joints": ["slide", "l1"], "cameras": [], "output": {"arm": {"type": "array"}}}
    robot = Ros2Robot(
        settings_from(options), clock, OperatorRequests(), Interface(HZ, None, 200.0, step_dims=(0,)), [Kept(sent)]
    )
    gate = SafetyGate(GateConfig(low=(-1.0,) * 2, high=(1.0,) * 2, max_velocity=(99.0,) * 2, delta_dims=(0,)), HZ)

    def read(now_ns: int, position: float) -> None:
        clock.on_clock(now_ns)
        header = SimpleNamespace(stamp=SimpleNamespace(sec=now_ns // 10**9, nanosec=now_ns % 10**9))
        robot.on_joints(SimpleNamespace(header=header, name=["slide", "l1"], position=[0.0, position]))
        gate.inspect(robot.condition())

    def admit(now_ns: int) -> Float32Array:
        return gate.admit(np.float32([0.25, -0.5]), now_ns, now_ns, now_ns).commands

    robot._command = gate.reset(np.float32([0.0, -0.5]))
    read(10**9, -0.5)
    robot.write(admit(10**9)[-1])
    if paused:
        for later_ns in range(10**9, 61 * 10**9, 400 * MS):
            clock.on_clock(later_ns)
        assert not len(admit(61 * 10**9))
        robot.stop()
        assert len(sent) == 1, "somebody may have moved the arm"
        read(61 * 10**9 + MS, 0.5)
        robot.write(admit(61 * 10**9 + 2 * MS)[-1])
    robot.stop()
    assert sent[-1].tolist() == [0.0, 0.5 if paused else -0.5]
