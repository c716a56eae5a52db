"""What each kind of robot declares of the numbers of its state and action, and where it comes from."""

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from vla_rl_lerobot.devices import unit_of_each

from robot_io.description import joint_units
from robot_io.env_interface import EnvDeclaration
from robot_io.env_robot import EnvRobot
from robot_io.recorder import Recorder
from robot_io.ros2.parameters import Settings
from vla_rl.acting.robots.ros2 import settings_from
from vla_rl.acting.task import spec_of_robot
from vla_rl.core.dimensions import UNDECLARED, Dimensions
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.types import Observation, Origin, Source, Step

STATE, ACTION = ("lift", "grip", "pan"), ("pan", "lift")


class NamedEnv(gymnasium.Env[Any, Any]):
    """Says what its numbers are called; its state is 0.1, 0.2, 0.3."""

    metadata = {"render_fps": 20}  # noqa: RUF012
    task_description, action_kind = "wave", "absolute"
    state_names, state_units = STATE, ("rad", "m", "rad")
    action_names, action_units = ACTION, ("rad", "rad")

    def __init__(self) -> None:
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        picture = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
        parts = {"arm": gymnasium.spaces.Box(-9, 9, (3,), np.float32), "top": picture}
        self.observation_space = gymnasium.spaces.Dict(parts)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return {"arm": np.array([0.1, 0.2, 0.3], np.float32), "top": np.zeros((8, 8, 3), np.uint8)}, {}


def test_an_environment_declares_its_own_names() -> None:
    robot = EnvRobot(NamedEnv())
    assert robot.state_dimensions == Dimensions(STATE, ("rad", "m", "rad"))
    assert robot.action_dimensions == Dimensions(ACTION, ("rad", "rad"))
    assert robot.action_names == ACTION
    assert spec_of_robot("named", robot).dimensions == ((robot.state_dimensions, robot.action_dimensions),)
    assert robot.notes == []


def test_a_declaration_comes_first_and_no_names_are_made_up() -> None:
    declared = EnvDeclaration(action_names=("x", "y"), action_units=("m", "mm"))
    assert EnvRobot(NamedEnv(), declared=declared).action_dimensions == Dimensions(("x", "y"), ("m", "mm"))
    other_parts = EnvRobot(NamedEnv(), declared=EnvDeclaration(state=("arm",)))
    assert other_parts.state_dimensions == UNDECLARED
    assert "state have no names, so they are matched by position: declare state_names" in other_parts.notes[0]


@pytest.mark.parametrize("names", [("pan",), ("pan", "pan")])
def test_names_that_do_not_fit_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="correct action_names and action_units"):
        EnvRobot(NamedEnv(), declared=EnvDeclaration(action_names=names))


def test_an_environment_rests_where_the_named_joints_are() -> None:
    robot = EnvRobot(NamedEnv())
    robot.reset(0)
    np.testing.assert_allclose(robot.rest_command(), [0.3, 0.1])  # pan, lift
    foreign = EnvRobot(NamedEnv(), declared=EnvDeclaration(action_names=("x", "y")))
    foreign.reset(0)
    np.testing.assert_allclose(foreign.rest_command(), [0.0, 0.0], err_msg="no number of the state measures x and y")


def test_a_wrapper_that_changes_observations_hides_their_names_unless_it_names_them() -> None:
    class Turned(gymnasium.ObservationWrapper):  # type: ignore[type-arg]
        def observation(self, observation: Any) -> Any:
            return {**observation, "arm": observation["arm"][::-1]}

    class Named(Turned):
        state_names = STATE[::-1]

    hidden, named = EnvRobot(Turned(NamedEnv())), EnvRobot(gymnasium.wrappers.TimeLimit(Named(NamedEnv()), 5))
    assert (hidden.state_dimensions, hidden.action_dimensions.names) == (UNDECLARED, ACTION)
    assert named.state_dimensions == Dimensions(STATE[::-1])


def test_lerobots_buses_say_their_units_of_both_arms() -> None:
    def arm(**modes: str) -> SimpleNamespace:
        motors = {name: SimpleNamespace(norm_mode=mode) for name, mode in modes.items()}
        return SimpleNamespace(bus=SimpleNamespace(motors=motors))

    left, right = arm(pan="degrees", gripper="range_0_100"), arm(pan="range_m100_100")
    both = SimpleNamespace(left_arm=left, right_arm=right)
    names = ("left_pan.pos", "left_gripper.pos", "right_pan.pos", "x.vel")
    assert unit_of_each(both, names) == ("deg", "percent", "normalized", "")


@pytest.mark.parametrize(("in_degrees", "unit"), [(True, "deg"), (False, "normalized"), (None, "")])
def test_a_driver_without_buses_says_its_units_by_its_option(in_degrees: bool | None, unit: str) -> None:
    device = SimpleNamespace(config=SimpleNamespace(use_degrees=in_degrees))
    assert unit_of_each(device, ("pan.pos", "gripper.pos", "x.vel")) == (unit, "percent" if unit else "", "")


URDF = """<robot name="arm"><joint name="pan" type="continuous"/><joint name="lift" type="prismatic"/>
<joint name="mount" type="fixed"/></robot>"""


def topics(**options: Any) -> Settings:
    return settings_from({"joints": ["lift", "pan", "other"], "cameras": [], **options})


def test_a_robot_of_topics_has_the_units_of_its_description() -> None:
    assert joint_units(URDF) == {"pan": "rad", "lift": "m"}
    state, action = topics(robot_description=URDF, output={"arm": {"joints": ["pan", "lift"]}}).dimensions
    assert state == Dimensions(("lift", "pan", "other"), ("m", "rad", ""))
    assert action == Dimensions(("pan", "lift"), ("rad", "m"))
    assert topics().dimensions == (Dimensions(("lift", "pan", "other")),) * 2


def test_a_twist_is_in_meters_and_radians() -> None:
    axes = ["vx", "vy", "vz", "wx", "wy", "wz"]
    action = topics(output={"arm": {"type": "twist", "joints": axes}}).dimensions[1]
    assert action == Dimensions(tuple(axes), ("m", "m", "m", "rad", "rad", "rad"))


def test_a_robot_that_names_another_number_of_dimensions_is_refused_at_the_first_step() -> None:
    recorder = Recorder(Origin.REAL, "arm", 20.0, dimensions=(Dimensions(STATE), Dimensions(ACTION)))
    recorder.begin("attempt", 0, -1)
    state, action = np.zeros(3, np.float32), np.zeros(3, np.float32)
    with pytest.raises(UserError, match="the action of arm has 3 numbers, but 2 names"):
        recorder.on_step(Step(Observation({}, state, "", 0), action, action, Source.DEMO))
