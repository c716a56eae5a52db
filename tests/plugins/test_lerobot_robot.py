"""lerobot's robots and teleoperators behind our protocols, with devices that lerobot makes from their configs."""

import contextlib
import importlib
import os
import pty
import termios
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import draccus
import numpy as np
import pytest
from lerobot.robots.config import RobotConfig
from lerobot.teleoperators.utils import TeleopEvents
from lerobot.utils.errors import DeviceNotConnectedError
from vla_rl_lerobot import set_up as set_up_lerobot
from vla_rl_lerobot.devices import SpaceMouseTeleoperator, _keep_torque, make_device
from vla_rl_lerobot.robot import LerobotRobot, make_lerobot_robot
from vla_rl_lerobot.takeover import LerobotTakeover, cartesian_step

from robot_io.gate import GateConfig, SafetyGate
from robot_io.recorder import Recorder
from robot_io.terminal_keys import TerminalKeys
from tests.fakes.lerobot_arm import MemoryArm
from vla_rl.acting.robots import RobotRequest, RobotSetup
from vla_rl.core.clock import MonotonicClock, VirtualClock
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import ActionChunk, Float32Array, Observation, Origin, Source
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import EpisodeSummary, run_episode
from vla_rl.execution.plan import InlinePlanner
from vla_rl.execution.sources import Demonstrator, TakeoverSwitch

JOINTS = ("pan", "lift", "gripper")
GATE = GateConfig(low=(-1.0,) * 3, high=(1.0,) * 3, max_velocity=(1.0,) * 3)


@RobotConfig.register_subclass("plugin_arm")
@dataclass(kw_only=True)
class PluginArmConfig(RobotConfig):
    largest: float = 1.0
    disable_torque_on_disconnect: bool = True


class PluginArm(MemoryArm):
    """Joints that follow at once, up to a limit of its own, and a camera; as a third-party package would bring it."""

    config_class = PluginArmConfig
    name = "plugin_arm"

    def __init__(self, config: PluginArmConfig) -> None:
        super().__init__(config)
        self.config = config
        self._largest = config.largest
        self.torque = True
        self.unreadable: range = range(0)  # readings that raise
        self.deaf: range = range(0)  # commands that raise
        self.error: Exception = TimeoutError("front latest frame is too old: 501 ms")
        self.sent: list[float] = []
        self.commands = 0
        self.position = dict.fromkeys((f"{joint}.pos" for joint in JOINTS), 0.0)
        self.pictures = 0

    observation_features: ClassVar = {**{f"{joint}.pos": float for joint in JOINTS}, "front": (4, 6, 3)}
    action_features: ClassVar = {f"{joint}.pos": float for joint in JOINTS}

    def get_observation(self) -> dict[str, Any]:
        self.pictures += 1
        if self.pictures in self.unreadable:
            raise self.error
        return {**self.position, "front": np.full((4, 6, 3), self.pictures % 256, np.uint8)}

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        self.commands += 1
        if self.commands in self.deaf:
            raise self.error
        self.position = {name: float(np.clip(value, -self._largest, self._largest)) for name, value in action.items()}
        self.sent.append(self.position["pan.pos"])
        return self.position

    def disconnect(self) -> None:
        super().disconnect()
        self.torque = not self.config.disable_torque_on_disconnect
        if self.commands in self.deaf:
            raise self.error


class Ramp:
    """Moves every joint by a hundredth a tick."""

    version = 0

    def reset(self, seed: int) -> None: ...

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        ramp = observation.state + np.arange(1, 9, dtype=np.float32)[:, None] * np.float32(0.01)
        return ActionChunk(ramp, observation.tick, 0, 0)


class Pad:
    """A gamepad-like device: motions of the tool, lerobot's events, all from a script of ticks."""

    name = "pad"
    action_features: ClassVar = {"names": {"delta_x": 0, "delta_y": 1, "delta_z": 2, "gripper": 3}}

    def __init__(self, intervenes: range, success_at: int = -1, fails_at: int = -1) -> None:
        self._intervenes, self._success_at, self._fails_at = intervenes, success_at, fails_at
        self._tick = -1

    def get_action(self) -> dict[str, float]:
        self._tick += 1
        if self._tick == self._fails_at:
            raise OSError("unplugged")
        return {"delta_x": 1.0, "delta_y": 0.0, "delta_z": -1.0, "gripper": 2.0}

    def get_teleop_events(self) -> dict[TeleopEvents, bool]:
        return {
            TeleopEvents.IS_INTERVENTION: self._tick in self._intervenes,
            TeleopEvents.SUCCESS: self._tick == self._success_at,
        }


class Leader:
    """A leader arm: positions, no events, a posture that is not the robot's."""

    name = "leader"
    action_features = PluginArm.action_features

    def __init__(self) -> None:
        self.moved = 0.0

    def get_action(self) -> dict[str, float]:
        self.moved += 0.02
        return {"pan.pos": 0.5 + self.moved, "lift.pos": -0.7, "gripper.pos": 0.9}


@pytest.fixture
def robot(tmp_path: Path) -> LerobotRobot:
    options = {"type": "plugin_arm", "id": "arm", "calibration_dir": str(tmp_path), "largest": 0.6}
    return make_lerobot_robot(options, 20.0, "wave", duration_s=3.0, clock=VirtualClock())


def record(robot: LerobotRobot, takeover: LerobotTakeover) -> Any:
    recorder = Recorder(Origin.REAL, "plugin_arm", robot.control_hz)
    recorder.begin("attempt", None, 0)
    robot.connect()
    source = TakeoverSwitch(Executor(InlinePlanner(Ramp())), takeover)
    run_episode(robot, source, SafetyGate(GATE, robot.control_hz), seed=0, subscribers=[recorder])
    assert recorder.episode is not None
    return recorder.episode.validate()


def test_a_plugin_robot_acts_within_its_own_limits(robot: LerobotRobot) -> None:
    episode = record(robot, LerobotTakeover(Pad(range(0)), robot, step=cartesian_step(0.0)))
    assert len(episode) == 61
    assert episode.success is None
    assert list(episode.images) == ["front"]
    assert episode.images["front"].shape == (61, 4, 6, 3)
    np.testing.assert_allclose(episode.action_sent[30], 0.31, atol=1e-5)
    robot.device._largest = 0.1
    episode = record(robot, LerobotTakeover(Pad(range(0)), robot, step=cartesian_step(0.0)))
    assert episode.action_sent.max() == pytest.approx(0.1), "what the driver really sent is recorded"


def test_pictures_come_at_the_size_of_the_policy(tmp_path: Path) -> None:
    options = {"type": "plugin_arm", "calibration_dir": str(tmp_path)}
    robot = make_lerobot_robot(options, 20.0, "wave", image_size=(2, 3), clock=VirtualClock())
    robot.connect()
    first, second = robot.read().images["front"], robot.read().images["front"]
    assert first.shape == (2, 3, 3)
    assert (first == 1).all()
    assert (second == 2).all()


def test_a_pad_moves_the_tool_and_calls_the_outcome(robot: LerobotRobot) -> None:
    step = cartesian_step(0.005, gripper_dim=2, gripper_per_tick=0.01)
    episode = record(robot, LerobotTakeover(Pad(range(5, 15), success_at=20), robot, step=step))
    assert episode.success
    assert episode.terminated
    assert len(episode) == 21
    assert np.flatnonzero(episode.source == Source.HUMAN).tolist() == list(range(5, 15))
    np.testing.assert_allclose(np.diff(episode.action_sent[4:15, 0]), 0.005, atol=1e-6)
    np.testing.assert_allclose(np.diff(episode.action_sent[4:15, 2]), 0.005, atol=1e-6, err_msg="down and open")


def test_a_leader_arm_takes_over_without_a_jump(robot: LerobotRobot) -> None:
    ticks = iter(range(10**6))
    takeover = LerobotTakeover(Leader(), robot, engaged=lambda: 6 <= next(ticks) < 20, absolute_dims=())
    episode = record(robot, takeover)
    assert np.flatnonzero(episode.source == Source.HUMAN).tolist() == list(range(6, 20))
    np.testing.assert_allclose(episode.action_sent[6], episode.action_sent[5], atol=1e-6)
    np.testing.assert_allclose(np.diff(episode.action_sent[6:20, 0]), 0.02, atol=1e-6)


def test_a_device_that_fails_holds_the_robot(robot: LerobotRobot) -> None:
    pad = Pad(range(5, 12), fails_at=8)
    episode = record(robot, LerobotTakeover(pad, robot, step=cartesian_step(0.005)))
    np.testing.assert_array_equal(episode.action_sent[8], episode.action_sent[7])
    assert episode.source[8] == Source.HUMAN


class Onward:
    """Steps of a hundredth in every dimension."""

    version = 0

    def reset(self, seed: int) -> None: ...

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        return ActionChunk(np.full((8, 3), 0.01, np.float32), observation.tick, 0, 0)


STEPS = GateConfig(low=(-0.02,) * 3, high=(0.02,) * 3, max_velocity=(1.0,) * 3, delta_dims=(0, 1, 2))


def walking(tmp_path: Path) -> LerobotRobot:
    """An arm that takes steps and measures where they have brought it, which their limits do not bound."""
    options = {"type": "plugin_arm", "id": "arm", "calibration_dir": str(tmp_path)}
    robot = make_lerobot_robot(options, 20.0, "walk", duration_s=3.0, clock=VirtualClock(), step_dims=(0, 1, 2))
    device, at = robot.device, np.full(3, 0.4)
    send = device.send_action

    def step(action: dict[str, Any]) -> dict[str, Any]:
        send(action)
        at[:] += list(action.values())
        device.position = dict(zip(action, map(float, at), strict=True))
        return action

    device.send_action, device.position = step, dict.fromkeys(device.position, 0.4)
    return robot


def test_an_arm_that_takes_steps_may_be_anywhere_and_does_not_walk_on(tmp_path: Path) -> None:
    robot = walking(tmp_path)
    robot.connect()
    summary = run_episode(robot, Executor(InlinePlanner(Onward())), SafetyGate(STEPS, robot.control_hz), seed=0)
    assert (summary.ticks, summary.stopped) == (61, False)
    assert robot.device.sent[-1] == 0.0, "at the end it stands"
    assert robot.rest_command().tolist() == [0.0] * 3


class Kiwi:
    """An arm of one joint on a base that takes velocities. At one reading a person moves the arm, after a pause."""

    name, is_connected = "kiwi", True
    observation_features: ClassVar = {"arm.pos": float, "x.vel": float}
    action_features: ClassVar = observation_features

    def __init__(self, clock: VirtualClock, moved_at: int, pause_s: float) -> None:
        self.clock, self.moved_at, self.pause_s = clock, moved_at, pause_s
        self.arm, self.readings = 0.0, 0
        self.sent: list[tuple[float, float, float]] = []  # where the arm was, its target, the velocity

    def get_observation(self) -> dict[str, float]:
        self.readings += 1
        if self.readings == self.moved_at:
            self.clock.sleep_until_ns(self.clock.now_ns() + round(self.pause_s * 1e9))
            self.arm = 0.9
            return {"arm.pos": 1.7, "x.vel": 0.0}  # one reading that is wrong
        return {"arm.pos": self.arm, "x.vel": 0.0}

    def send_action(self, action: dict[str, float]) -> dict[str, float]:
        self.sent.append((self.arm, action["arm.pos"], action["x.vel"]))
        self.arm = action["arm.pos"]
        return action


@pytest.mark.parametrize(("moved_at", "pause_s"), [(4, 0.0), (12, 60.0)])
def test_ending_the_steps_of_a_base_does_not_pull_the_arm_back(moved_at: int, pause_s: float) -> None:
    """It was moved before the first command, or while the process stood still."""
    clock = VirtualClock()
    kiwi = Kiwi(clock, moved_at, pause_s)
    robot = LerobotRobot(kiwi, 20.0, "drive", duration_s=100.0, clock=clock, step_dims=(1,))
    limits = GateConfig(low=(-2.0, -1.0), high=(2.0, 1.0), max_velocity=(1.0, 50.0), delta_dims=(1,))
    action = np.float32([0.0, 0.5])
    gate = SafetyGate(limits, 20.0)
    assert run_episode(robot, Demonstrator(lambda: (action, action)), gate, seed=0).stopped
    assert max(abs(target - arm) for arm, target, _ in kiwi.sent) <= 0.05 + 1e-6
    assert kiwi.sent[-1][2] == 0.0
    assert pause_s == 0.0 or kiwi.sent[moved_at - 5][2] == 0.5, "it drove before"


def test_a_bus_that_fails_between_two_steps_repeats_none_of_them(tmp_path: Path) -> None:
    robot = walking(tmp_path)
    robot.connect()
    robot.device.deaf = range(20, 23)
    gate = SafetyGate(STEPS, robot.control_hz)
    summary = run_episode(robot, Executor(InlinePlanner(Onward())), gate, seed=0)
    assert summary.stopped
    np.testing.assert_allclose(robot.device.sent[:19], 0.01)
    assert set(robot.device.sent[19:]) == {0.0}


def test_a_person_whose_device_fails_does_not_repeat_the_last_step(tmp_path: Path) -> None:
    robot = walking(tmp_path)
    robot.connect()
    robot.reset(0)
    pad = Pad(range(9), fails_at=2)
    takeover = LerobotTakeover(pad, robot, step=cartesian_step(0.005), step_dims=(0, 1, 2))
    for tick, expected in enumerate([0.005, 0.005, 0.0]):
        command = takeover.command(tick, np.zeros(3, np.float32))
        assert command is not None
        assert robot.write(command)[0] == pytest.approx(expected), tick


# 200 ms of observation age and 300 ms of fault, at 20 Hz; then the tick that says so.
LATCHED_AFTER = 4 + 6 + 2
FOREVER = 10**9


def attempt(robot: LerobotRobot, config: GateConfig = GATE) -> tuple[EpisodeSummary, SafetyGate]:
    robot.connect()
    gate = SafetyGate(config, robot.control_hz)
    return run_episode(robot, Executor(InlinePlanner(Ramp())), gate, seed=0), gate


@pytest.mark.parametrize("kind", [TimeoutError, ConnectionError, DeviceNotConnectedError, RuntimeError, termios.error])
def test_a_driver_that_cannot_be_read_latches_the_stop(
    robot: LerobotRobot, kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    robot.device.unreadable, robot.device.error = range(20, FOREVER), kind("unplugged")
    smooth = replace(GATE, max_acceleration=(5.0,) * 3, max_jerk=(100.0,) * 3)
    summary, gate = attempt(robot, smooth)
    assert summary.stopped
    assert gate.latched
    assert 20 < summary.ticks <= 20 + LATCHED_AFTER
    assert [record.message for record in caplog.records if "cannot be read" in record.message] == [
        f"plugin_arm cannot be read ({kind.__name__}: unplugged); its last reading counts"
    ], "said once"
    acceleration = np.diff(robot.device.sent, 2) * robot.control_hz**2
    assert np.abs(acceleration).max() <= 5.0 * 1.01, "it came to rest within its limits"
    assert robot.device.sent[-1] == robot.device.sent[-2]


def test_a_reading_that_fails_now_and_then_changes_nothing(robot: LerobotRobot) -> None:
    robot.device.unreadable = range(20, 22)
    summary, gate = attempt(robot)
    assert (summary.ticks, summary.stopped, gate.latched) == (61, False, False)


def test_an_attempt_does_not_begin_blind(robot: LerobotRobot) -> None:
    robot.device.unreadable = range(FOREVER)
    with pytest.raises(UserError, match="plugin_arm cannot be read: TimeoutError: front latest frame"):
        attempt(robot)
    assert not robot.device.sent


def test_a_bus_that_takes_no_commands_latches_the_stop_and_never_jumps(robot: LerobotRobot) -> None:
    robot.device.deaf = range(20, 23)
    summary, gate = attempt(robot)
    assert summary.stopped
    assert gate.latched
    assert summary.ticks <= 20 + LATCHED_AFTER
    assert set(robot.device.sent[19:]) == {robot.device.sent[18]}, "the command that got through last, again"
    robot.device.deaf = range(0)
    gate.rearm()
    assert not run_episode(robot, Executor(InlinePlanner(Ramp())), gate, seed=0).stopped, "a new attempt is a new start"


def test_a_dead_bus_does_not_hide_why_an_attempt_broke_off(robot: LerobotRobot) -> None:
    class Broken(Ramp):
        def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
            robot.device.deaf = range(FOREVER)
            raise UserError("the reason")

    robot.connect()
    with pytest.raises(UserError, match="the reason"), contextlib.closing(robot):
        run_episode(robot, Executor(InlinePlanner(Broken())), SafetyGate(GATE, 20.0), seed=0)


def test_the_torque_stays_on_at_disconnect_unless_asked_otherwise(robot: LerobotRobot, tmp_path: Path) -> None:
    robot.connect()
    robot.close()
    assert robot.device.torque
    options = {"type": "plugin_arm", "calibration_dir": str(tmp_path), "disable_torque_on_disconnect": True}
    limp = make_lerobot_robot(options, 20.0, "wave")
    limp.connect()
    limp.close()
    assert not limp.device.torque
    # Two arms of lerobot have a config each; drivers without this field are left alone.
    arms = {"left_arm_config": {"port": "a"}, "right_arm_config": {"port": "b", "disable_torque_on_disconnect": True}}
    importlib.import_module("lerobot.robots.bi_so_follower")
    config = draccus.decode(RobotConfig, {"type": "bi_so_follower", **arms})
    _keep_torque(config, arms)
    assert not config.left_arm_config.disable_torque_on_disconnect
    assert config.right_arm_config.disable_torque_on_disconnect
    _keep_torque(RobotConfig(), {})


def test_devices_that_do_not_fit_are_refused(robot: LerobotRobot) -> None:
    with pytest.raises(UserError, match="no events"):
        LerobotTakeover(Leader(), robot)
    with pytest.raises(UserError, match=r"the action of the robot is pan\.pos, .*\. Take over with a leader arm"):
        LerobotTakeover(Pad(range(0)), robot)
    with pytest.raises(UserError, match="Did you mean 'plugin_arm'"):
        make_lerobot_robot({"type": "plugin_am"}, 20.0, "wave")
    with pytest.raises(UserError, match="largets"):
        make_lerobot_robot({"type": "plugin_arm", "largets": 1}, 20.0, "wave")
    pad = make_device("teleoperator", {"type": "gamepad"})
    LerobotTakeover(pad, robot, step=cartesian_step(0.01))


def set_up(tmp_path: Path, **changes: Any) -> RobotSetup:
    """As ``vla-rl rollout --robot lerobot`` does it, for a policy with a discrete gripper."""
    options = {"type": "plugin_arm", "calibration_dir": str(tmp_path), "teleop": {"type": "gamepad"}}
    spec = PolicySpec("plugin_arm", ("front",), (2, 3), 3, 3)
    request = RobotRequest(spec, MonotonicClock(), GATE, gripper_dims=(2,), options=options)
    return set_up_lerobot(replace(request, **changes))


def test_motions_of_a_pad_never_become_angles_of_joints(tmp_path: Path) -> None:
    make_takeover = set_up(tmp_path).make_takeover
    assert make_takeover is not None
    with pytest.raises(UserError, match="gamepad gives motions of the tool"):
        make_takeover()


def test_a_robot_that_the_policy_does_not_know_is_refused_before_it_is_connected(tmp_path: Path) -> None:
    spec = PolicySpec("plugin_arm", ("frnt",), (2, 3), 3, 3)
    with pytest.raises(UserError, match=r"needs a camera 'frnt', the robot has none\. Did you mean 'front'"):
        set_up(tmp_path, policy=spec)
    with pytest.raises(UserError, match="3 numbers of state and 3 of action, the policy was trained on 6 and 6"):
        set_up(tmp_path, policy=replace(spec, cameras=("front",), state_dim=6, action_dim=6))


@pytest.mark.parametrize("grippers", [(2,), (2, 7)], ids=["of this arm", "and of a larger robot"])
def test_the_gripper_of_the_policy_follows_a_leader_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grippers: tuple[int, ...]
) -> None:
    leader = Leader()
    monkeypatch.setattr(leader, "connect", lambda: None, raising=False)
    monkeypatch.setattr("vla_rl_lerobot.make_device", lambda what, options: leader)
    master, terminal = pty.openpty()
    monkeypatch.setattr("vla_rl_lerobot.TerminalKeys", partial(TerminalKeys, terminal=terminal))
    setup = set_up(tmp_path, gripper_dims=grippers)
    assert setup.make_takeover is not None
    assert setup.wait_for_person is not None, "a real robot asks"
    setup.robot.connect()
    setup.robot.reset(0)
    takeover = setup.make_takeover()
    takeover.reset(0)
    os.write(master, b" ")
    while (command := takeover.command(0, np.full(3, np.nan, np.float32))) is None:
        time.sleep(0.001)
    np.testing.assert_allclose(command, [0.0, 0.0, 0.9], atol=1e-6, err_msg="the joints stay, the gripper follows")


def test_a_spacemouse_speaks_as_lerobot_does(tmp_path: Path, robot: LerobotRobot) -> None:
    device = tmp_path / "hidraw0"
    right, forwards, down = (number.to_bytes(2, "little", signed=True) for number in (140, -350, 3))
    device.write_bytes(b"")
    mouse = SpaceMouseTeleoperator(device)
    mouse.connect()
    assert mouse.get_action() == {"delta_x": 0.0, "delta_y": 0.0, "delta_z": 0.0, "gripper": 1.0}
    assert not mouse.get_teleop_events()[TeleopEvents.IS_INTERVENTION]
    with device.open("ab") as stream:
        stream.write((b"\x01" + right + forwards + down).ljust(64, b"\x00"))
        stream.write(b"\x03\x01".ljust(64, b"\x00"))
    assert mouse.get_action() == {"delta_x": 1.0, "delta_y": pytest.approx(-0.4), "delta_z": 0.0, "gripper": 0.0}
    assert mouse.get_teleop_events()[TeleopEvents.IS_INTERVENTION]
    LerobotTakeover(mouse, robot, step=cartesian_step(0.01))
    mouse.disconnect()
    with pytest.raises(UserError, match="udev"):
        SpaceMouseTeleoperator(tmp_path / "none").connect()


def test_a_camera_that_gives_one_pixel_latches_the_stop(robot: LerobotRobot, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = robot.device.get_observation

    def shrinks() -> dict[str, Any]:
        read: dict[str, Any] = whole()
        return {**read, "front": read["front"][:1, :1]} if robot.device.pictures > 20 else read

    monkeypatch.setattr(robot.device, "get_observation", shrinks)
    summary, gate = attempt(robot)
    assert gate.latched
    assert summary.ticks <= 20 + LATCHED_AFTER
