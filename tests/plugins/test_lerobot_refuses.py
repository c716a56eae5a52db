"""A robot of lerobot is refused and stopped for the same reasons as a robot of topics, by the same code."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from lerobot.robots.config import RobotConfig
from vla_rl_lerobot import set_up
from vla_rl_lerobot.robot import LerobotRobot

from robot_io.gate import Reason
from robot_io.joint_monitor import JointMonitorConfig
from robot_io.limits import RobotLimits
from tests.fakes.lerobot_arm import MemoryArm
from tests.robot_io.test_description import URDF
from vla_rl.acting.robot_check import robot_items
from vla_rl.acting.robots import RobotRequest, RobotSetup
from vla_rl.core.clock import Clock, MonotonicClock, VirtualClock
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Float32Array
from vla_rl.execution.loop import run_episode
from vla_rl.execution.sources import Demonstrator

HZ = 20.0
LIMITS = RobotLimits(low=(-110.0, -160.0, 0.0), high=(110.0, 175.0, 100.0), max_velocity=(90.0, 90.0, 400.0))
SPEC = PolicySpec("degrees_arm", (), (2, 2), 3, 3, control_hz=HZ)


@RobotConfig.register_subclass("degrees_arm")
@dataclass(kw_only=True)
class DegreesArmConfig(RobotConfig):
    port: str = ""


class DegreesArm(MemoryArm):
    """Two joints in degrees and a gripper in percent, which follow at once."""

    config_class = DegreesArmConfig
    name = "degrees_arm"
    observation_features: ClassVar = dict.fromkeys(("shoulder.pos", "elbow.pos", "gripper.pos"), float)
    action_features: ClassVar = observation_features

    def __init__(self, config: DegreesArmConfig) -> None:
        super().__init__(config)
        self.config = config
        self.position = dict.fromkeys(self.action_features, 10.0)
        self.sent: list[dict[str, float]] = []
        self.before_reading: list[Any] = []

    def get_observation(self) -> dict[str, Any]:
        if self.before_reading:
            self.before_reading.pop()()
        return dict(self.position)

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        self.position = dict(action)
        self.sent.append(self.position)
        return action


@pytest.fixture
def urdf(tmp_path: Path) -> str:
    file = tmp_path / "arm.urdf"
    file.write_text(URDF)
    return str(file)


def arm(limits: RobotLimits = LIMITS, clock: Clock | None = None, **options: Any) -> RobotSetup:
    """As ``vla-rl rollout --robot lerobot`` sets it up."""
    request = RobotRequest(SPEC, MonotonicClock(), limits, options={"type": "degrees_arm", **options})
    setup = set_up(request)
    if clock is not None:
        assert isinstance(setup.robot, LerobotRobot)
        setup.robot.clock = clock
    return setup


def described(urdf: str) -> dict[str, Any]:
    return {"urdf": urdf, "urdf_units": "degrees", "urdf_joints": {"gripper.pos": ""}}


@contextlib.contextmanager
def connected(setup: RobotSetup) -> Iterator[DegreesArm]:
    setup.robot.connect()
    with contextlib.closing(setup.robot):
        yield setup.robot.device  # type: ignore[attr-defined]


def lead(setup: RobotSetup, target: Float32Array, seconds: float) -> Reason:
    """Lead the arm straight to a target; returns what the gate objected to."""
    rest, reasons, ticks = np.float32([10, 10, 10]), 0, [0]

    def wanted() -> tuple[Float32Array, Float32Array]:
        ticks[0] += 1
        part = min(ticks[0] / (0.8 * seconds * HZ), 1.0)
        command = ((1 - part) * rest + part * target).astype(np.float32)
        return command, command

    class Notes:
        def on_step(self, step: Any) -> None:
            nonlocal reasons
            reasons |= int(step.extras["gate_reasons"])

        def on_episode(self, episode: object) -> None: ...

        def on_metrics(self, metrics: object) -> None: ...

    max_ticks = round(seconds * HZ)
    run_episode(setup.robot, Demonstrator(wanted), setup.gate, seed=0, subscribers=[Notes()], max_ticks=max_ticks)
    return Reason(reasons)


def test_the_description_of_an_arm_holds_its_limits_in_the_units_of_its_driver(urdf: str) -> None:
    assert arm(**described(urdf)).gate.config.high == LIMITS.high
    with pytest.raises(ConfigError, match=r"high of shoulder be 150, the robot's description says 143\.239"):
        arm(replace(LIMITS, high=(150.0, 175.0, 100.0)), **described(urdf))
    with pytest.raises(UserError, match="say degrees or radians"):
        arm(urdf=urdf)
    with pytest.raises(UserError, match=r"no joint 'gripper' that moves\. Did you mean 'grip'"):
        arm(urdf=urdf, urdf_units="degrees")
    with pytest.raises(UserError, match=r"Did you mean 'gripper\.pos'"):
        arm(**{**described(urdf), "urdf_joints": {"griper.pos": ""}})


def test_an_arm_in_degrees_does_not_meet_itself_and_stays_in_its_workspace(urdf: str) -> None:
    for limits, reason in (
        (replace(LIMITS, self_distance=0.02), Reason.SELF_COLLISION),
        (
            replace(LIMITS, workspace_low=(0.5, -2, -1), workspace_high=(2, 2, 1), tool_link="tool"),
            Reason.WORKSPACE,
        ),
    ):
        setup = arm(limits, VirtualClock(), **described(urdf))
        with connected(setup) as device:
            assert reason in lead(setup, np.float32([10, 172, 10]), 4.0)
        elbow = math.radians(device.position["elbow.pos"])
        if reason is Reason.SELF_COLLISION:
            assert 2.8 < elbow < 2.95
        else:
            assert 0.5 * (math.cos(math.radians(10)) + math.cos(math.radians(10) + elbow)) >= 0.5 - 1e-6


def test_the_list_before_it_moves_says_what_the_description_holds(urdf: str) -> None:
    setup = arm(replace(LIMITS, self_distance=0.02), VirtualClock(), **described(urdf))
    assert setup.description is not None
    assert "2 of 3 dimensions" in setup.description.words()
    with connected(setup):
        assert all(item.answer for item in robot_items(setup, SPEC)[:-1])


def test_the_list_says_that_a_limited_effort_is_not_measured(caplog: pytest.LogCaptureFixture) -> None:
    setup = arm(replace(LIMITS, joint_monitor=JointMonitorConfig(max_effort=(5.0,) * 3)), VirtualClock())
    with connected(setup):
        watched = robot_items(setup, SPEC)[-2]
        assert not watched.answer
        assert "max_effort" in watched.found
        lead(setup, np.float32([10, 10, 10]), 0.5)
    assert caplog.text.count("the robot measures no effort") == 1


def test_another_rate_than_the_policys_is_refused() -> None:
    with pytest.raises(UserError, match=r"2\.5 times as fast"):
        arm(control_hz=50.0)
    assert arm(control_hz=50.0, any_rate=True).robot.control_hz == 50.0


def test_a_camera_that_no_store_can_name_is_refused_before_anybody_has_driven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DegreesArm, "observation_features", {**DegreesArm.observation_features, "передняя": (8, 8, 3)})
    with pytest.raises(ConfigError, match=r"the camera 'передняя' .* robot\.cameras="):
        arm()


def test_limits_of_another_robot_are_refused() -> None:
    with pytest.raises(ConfigError, match="limits are those of 2 dimensions, the robot takes 3"):
        arm(RobotLimits(low=(-1.0,) * 2, high=(1.0,) * 2, max_velocity=(1.0,) * 2))
    with pytest.raises(ConfigError, match="must be finite"):
        arm(replace(LIMITS, high=(110.0, math.inf, 100.0)))


def test_two_programs_do_not_drive_one_bus(tmp_path: Path) -> None:
    port = tmp_path / "ttyACM0"
    port.write_bytes(b"")
    first, second = arm(port=str(port)), arm(port=str(port))
    with connected(first):
        with pytest.raises(UserError, match=r"ttyACM0 is in use, by another program"):
            second.robot.connect()
        assert not second.robot.device.is_connected  # type: ignore[attr-defined]
    with connected(second) as device:
        assert device.is_connected, "the first one has let go"


def test_after_a_pause_of_the_whole_program_nothing_moves_until_it_is_rearmed() -> None:
    clock = VirtualClock()
    setup = arm(clock=clock)
    with connected(setup) as device:
        pause = [lambda: clock.sleep_until_ns(clock.now_ns() + 3_000_000_000)]
        # Three readings at rest, then twenty ticks, then the program stands still for three seconds inside a reading.
        device.before_reading = [*pause, *[lambda: None] * 23]
        reasons = lead(setup, np.float32([80, 80, 10]), 8.0)
        assert Reason.LOOP_PAUSED in reasons
        assert setup.gate.latched
        assert len({tuple(sent.values()) for sent in device.sent[20:]}) <= 1, "not a step after the pause"
        again = lead(setup, np.float32([80, 80, 10]), 1.0)
        assert Reason.LATCHED in again


class Leader:
    """A leader arm. As lerobot's do, it switches the torque of what is on its port off when it is connected."""

    name = "leader"
    action_features: ClassVar = dict.fromkeys(DegreesArm.action_features, float)

    def __init__(self, port: Path) -> None:
        self.config = DegreesArmConfig(port=str(port))
        self.limp: list[str] = []

    def connect(self) -> None:
        self.limp.append(self.config.port)


def test_a_leader_on_the_port_of_the_arm_does_not_let_it_fall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port of the arm, copied to its teleoperator."""
    ports = [tmp_path / name for name in ("ttyACM0", "ttyACM1")]
    for port in ports:
        port.touch()
    for port in ports:
        leader = Leader(port)
        monkeypatch.setattr("vla_rl_lerobot.make_device", lambda kind, options, made=leader: made)
        monkeypatch.setattr("vla_rl_lerobot.TerminalKeys.start", lambda keys: None)
        setup = arm(port=str(ports[0]), teleop={"type": "leader", "port": str(port)})
        assert setup.make_takeover is not None
        setup.robot.connect()
        if port is ports[0]:
            with pytest.raises(UserError, match=r"ttyACM0 is in use, by another program or another device of this one"):
                setup.make_takeover()
            assert not leader.limp
        else:
            setup.make_takeover()
            assert leader.limp == [str(port)]
        setup.robot.close()


def test_a_port_that_may_not_be_opened_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "ttyACM0"
    folder.mkdir()  # opened for writing it fails for everybody, root too
    with pytest.raises(UserError, match=r"ttyACM0 cannot be opened .*is it plugged in, may you use it"):
        arm(port=str(folder)).robot.connect()
