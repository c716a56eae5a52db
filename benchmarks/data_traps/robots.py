"""Policies on robots that have the same joints in another order, in other units, under other names, or not at all."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch
from vla_rl_lerobot.robot import LerobotRobot
from vla_rl_lerobot.takeover import LerobotTakeover

import sim
from benchmarks.data_traps.traps import SilentlyWrong, expect, trap
from robot_io.env_robot import EnvRobot
from robot_io.gate import SafetyGate
from robot_io.limits import RobotLimits
from robot_io.mock_robot import MockRobot, MockRobotConfig
from robot_io.ros2 import messages
from robot_io.ros2.clock import RosTime
from robot_io.ros2.operator import OperatorRequests
from robot_io.ros2.robot import Interface, Ros2Robot
from vla_rl.acting import rollout
from vla_rl.acting.policy_folder import find_policy, load_acting_policy
from vla_rl.acting.robots import RobotRequest, RobotSetup, check_fits, set_up_robot
from vla_rl.acting.robots.ros2 import settings_from
from vla_rl.acting.rollout import RolloutOrder, resolve_config, roll_out
from vla_rl.core.clock import VirtualClock
from vla_rl.core.dimensions import UNDECLARED, Dimensions
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Episode, Observation, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, VisionConfig

KIND = "names on robots"
ARM = Dimensions(("pan", "lift", "wrist"), ("rad", "rad", "rad"))
REVERSED = ARM.take([2, 1, 0])
SIZE = 8  # pixels
HZ = 20.0


class Arm:
    """A lerobot robot in memory whose joints follow at once.

    Args:
        joints: Names and units of its numbers, in its order; of the units ``deg`` and ``normalized`` as lerobot says
            them, by ``use_degrees``.
        declared: Height and width that it says its camera has.
        found: Those of its pictures.
    """

    name = "arm"
    is_connected = True

    def __init__(self, joints: Dimensions, declared: int = SIZE, found: int = SIZE) -> None:
        units = set(joints.units)
        self.config = SimpleNamespace(use_degrees="deg" in units) if units & {"deg", "normalized"} else None
        self.action_features = dict.fromkeys(joints.names, float)
        self.observation_features = {**self.action_features, "front": (declared, declared, 3)}
        self._position = {name: 0.1 * (number + 1) for number, name in enumerate(joints.names)}
        self._found, self._pictures = found, 0

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def get_observation(self) -> dict[str, Any]:
        self._pictures += 1  # a camera that repeats its frame counts as frozen
        return {**self._position, "front": np.full((self._found, self._found, 3), self._pictures % 256, np.uint8)}

    get_action = get_observation

    def send_action(self, action: Mapping[str, float]) -> Mapping[str, float]:
        self._position = dict(action)
        return action


def set_up(request: RobotRequest) -> RobotSetup:
    """``--robot benchmarks.data_traps.robots:set_up``: an `Arm`; the options are its arguments."""
    options = dict(request.options)
    joints = Dimensions(tuple(options.pop("joints")), tuple(options.pop("units")))
    assert request.policy is not None
    device = Arm(joints, **options)
    robot = LerobotRobot(device, HZ, "wave", request.policy.image_size, duration_s=0.5, clock=request.clock)
    names = robot.state_dimensions, robot.action_dimensions
    check_fits(request.policy, robot.cameras, len(robot.state_names), len(robot.action_names), names)
    low, high = [-200.0] * len(joints), [200.0] * len(joints)
    return RobotSetup(robot, SafetyGate(request.gate.filled(low, high), HZ), Origin.SIM, "arm")


def save_policy(folder: Path, state: Dimensions = ARM, action: Dimensions = ARM) -> Path:
    """Save a policy of a few thousand weights that has learned nothing; returns its folder."""
    torch.manual_seed(0)
    vectors = np.random.default_rng(0).uniform(-1.0, 1.0, (50, 3)).astype(np.float32)
    config = FlowVLAConfig(vision=VisionConfig(widths=(4,), kernels=(4,), strides=(4,)), expert=ExpertConfig(width=16))
    spec = PolicySpec("arm", ("front",), (SIZE, SIZE), 3, 3, HZ, dimensions=((state, action),))
    FlowVLA(config, spec, Statistics.from_arrays(vectors, vectors)).save(folder, {"policy_version": 0})
    return folder


def _act(policy: Path, robot: str, overrides: Sequence[str]) -> Episode:
    """Let a policy act for half a second; returns what was recorded."""
    found = find_policy(policy)
    store = EpisodeStore(policy.parent / "episodes")
    roll_out(RolloutOrder(found, robot, store=store), resolve_config(found, overrides=overrides))
    return store.read(store.ids()[0])


def act_on_arm(policy: Path, joints: Dimensions, *more: str) -> Episode:
    names = f"robot.joints=[{','.join(joints.names)}]", f"robot.units=[{','.join(map(repr, joints.unit_of_each()))}]"
    return _act(policy, f"{__name__}:set_up", [*names, *more])


def _check_joints(policy: Path, episode: Episode, order: Sequence[int], factor: float = 1.0) -> str:
    """Compare the first action of an episode with the policy's own plan: of each joint, and in its unit.

    Args:
        policy: Folder of the policy, in the order of `ARM`.
        episode: Of the robot.
        order: The policy's dimension of each of the robot's.
        factor: From the policy's unit to the robot's.
    """
    acting = load_acting_policy(policy)
    acting.reset(episode.seed or 0)
    state = np.empty(3, np.float32)
    state[list(order)] = episode.state[0] / factor
    images = {camera: frames[0] for camera, frames in episode.images.items()}
    planned = acting.infer(Observation(images, state, episode.task, 0)).actions[0][list(order)] * factor
    done = episode.action_policy[0]
    expect(np.allclose(done, planned, rtol=1e-4, atol=1e-5), f"{episode.action_dimensions.words()}: {done}, {planned}")
    return f"{episode.action_dimensions.words()}: {np.round(done, 3).tolist()}"


def accepted(result: object) -> str:
    """What has to be refused came through."""
    raise SilentlyWrong(f"accepted: {type(result).__name__}")


@trap(KIND, "a mock robot with the policy's joints in reversed order")
def reversed_mock(folder: Path) -> str:
    policy = save_policy(folder / "policy")
    names = f"{{names: [{','.join(REVERSED.names)}], units: [rad, rad, rad]}}"
    options = [f"robot.{what}_dimensions={names}" for what in ("state", "action")]
    episode = _act(policy, "mock", [*options, "robot.duration_s=0.5"])
    expect(episode.dimensions == (REVERSED, REVERSED), f"recorded as {episode.dimensions}")
    return _check_joints(policy, episode, [2, 1, 0])


@trap(KIND, "a mock robot whose state has the policy's order and whose action has another")
def reversed_action(folder: Path) -> str:
    policy = save_policy(folder / "policy")
    names = "robot.action_dimensions.names=[lift,wrist,pan]"
    episode = _act(policy, "mock", [names, "robot.duration_s=0.5"])
    acting = load_acting_policy(policy)
    acting.reset(episode.seed or 0)
    images = {camera: frames[0] for camera, frames in episode.images.items()}
    planned = acting.infer(Observation(images, episode.state[0], episode.task, 0)).actions[0][[1, 2, 0]]
    expect(np.allclose(episode.action_policy[0], planned, atol=1e-5), f"{episode.action_policy[0]}, {planned}")
    return episode.action_dimensions.words()


@trap(KIND, "a lerobot arm with the policy's joints in another order")
def shuffled_arm(folder: Path) -> str:
    policy = save_policy(folder / "policy", Dimensions(ARM.names), Dimensions(ARM.names))
    return _check_joints(policy, act_on_arm(policy, Dimensions(("wrist", "pan", "lift"))), [2, 0, 1])


@trap(KIND, "a policy in radians on an arm in degrees, in reversed order")
def degrees(folder: Path) -> str:
    pan, lift, wrist = (f"{name}.pos" for name in ARM.names)
    in_radians = Dimensions((pan, lift, wrist), ARM.units)
    policy = save_policy(folder / "policy", in_radians, in_radians)
    in_degrees = Dimensions((wrist, lift, pan), ("deg",) * 3)
    return _check_joints(policy, act_on_arm(policy, in_degrees), [2, 1, 0], factor=180 / np.pi)


@trap(KIND, "a policy in radians on an arm in lerobot's -100 to 100", remedy="correct the declared units")
def normalized(folder: Path) -> str:
    named = Dimensions(tuple(f"{name}.pos" for name in ARM.names), ARM.units)
    policy = save_policy(folder / "policy", named, named)
    return accepted(act_on_arm(policy, Dimensions(named.names, ("normalized",) * 3)))


@trap(KIND, "an arm that lacks a joint of the policy and has another", remedy="rename={POLICY_NAME: ROBOT_NAME}")
def missing_joint(folder: Path) -> str:
    policy = save_policy(folder / "policy")
    return accepted(act_on_arm(policy, Dimensions(("pan", "lift", "gripper"))))


@trap(KIND, "an arm with one joint more than the policy", remedy="['pan', 'lift', 'wrist', 'gripper']")
def one_more_joint(folder: Path) -> str:
    policy = save_policy(folder / "policy")
    return accepted(act_on_arm(policy, Dimensions(("pan", "lift", "wrist", "gripper"))))


@trap(KIND, "an arm whose joint has another name, which the user says")
def renamed_joint(folder: Path) -> str:
    policy = save_policy(folder / "policy", Dimensions(ARM.names), Dimensions(ARM.names))
    episode = act_on_arm(policy, Dimensions(("hand", "lift", "pan")), "rename={wrist: hand}")
    return _check_joints(policy, episode, [2, 1, 0])


@trap(KIND, "a robot that names one joint twice", remedy="name each once")
def doubled_joint(folder: Path) -> str:
    policy = save_policy(folder / "policy")
    return accepted(_act(policy, "mock", ["robot.action_dimensions.names=[pan,pan,wrist]"]))


@trap(KIND, "a policy that declares no names, on an arm that names its joints")
def nameless_policy(folder: Path) -> str:
    policy = save_policy(folder / "policy", UNDECLARED, UNDECLARED)
    return _check_joints(policy, act_on_arm(policy, Dimensions(("a", "b", "c"))), [0, 1, 2])


@trap(KIND, "a policy with names on a robot of a third party that declares none")
def silent_robot(folder: Path) -> str:
    policy = save_policy(folder / "policy")
    setup = set_up_robot("mock", RobotRequest(find_policy(policy).spec, VirtualClock(), RobotLimits()))
    robot: Any = setup.robot
    del robot.state_dimensions, robot.action_dimensions
    kept, rollout.set_up_robot = rollout.set_up_robot, lambda *_: setup
    try:
        episode = _act(policy, "mock", [])
    finally:
        rollout.set_up_robot = kept
    expect(not any(episode.dimensions), f"names were made up: {episode.dimensions}")
    return _check_joints(policy, episode, [0, 1, 2])


@trap(KIND, "pictures of another size than the driver declares", remedy="robot.cameras")
def camera_size(folder: Path) -> str:
    return accepted(act_on_arm(save_policy(folder / "policy"), Dimensions(ARM.names), "robot.declared=24"))


@trap(KIND, "a leader arm in degrees for a follower in -100 to 100", remedy="use_degrees")
def leader_units(folder: Path) -> str:
    del folder
    names = tuple(f"{name}.pos" for name in ARM.names)
    robot = LerobotRobot(Arm(Dimensions(names, ("normalized",) * 3)), HZ, "wave", clock=VirtualClock())
    return accepted(LerobotTakeover(Arm(Dimensions(names, ("deg",) * 3)), robot, engaged=lambda: True))


@trap(KIND, "a file of limits for the same joints in another order", remedy="--limits FILE")
def limits_order(folder: Path) -> str:
    spec = find_policy(save_policy(folder / "policy")).spec
    limits = RobotLimits(low=(-1.0, -2.0, -3.0), high=(1.0, 2.0, 3.0), max_velocity=(1.0,) * 3, names=REVERSED.names)
    return accepted(set_up_robot("mock", RobotRequest(spec, VirtualClock(), limits)))


class _Backwards(gymnasium.ActionWrapper):
    def action(self, action: np.ndarray) -> np.ndarray:
        return action[::-1]


@trap(KIND, "a wrapper that reverses the actions of a task that names them")
def wrapped_task(folder: Path) -> str:
    del folder
    sim.register_environments()
    env = gymnasium.make("vla_rl/PickPlace-v0", image_size=16, renderer="raycast")
    straight, turned = EnvRobot(env), EnvRobot(_Backwards(env))
    expect(bool(straight.action_dimensions), "the task names its actions")
    expect(not turned.action_dimensions, f"the wrapper passes for {turned.action_dimensions.names}")
    expect(turned.state_dimensions == straight.state_dimensions, "the wrapper changes no state")
    return " ".join(note for note in turned.notes if "by position" in note)


class _Bus:
    """A robot of topics without ROS, and what it is told."""

    def __init__(self, joints: Sequence[str]) -> None:
        clock = RosTime(simulated=True)
        clock.on_clock(10**9)
        output: Any = SimpleNamespace(begin=list, send=list)
        settings = settings_from({"joints": list(joints), "cameras": []})
        self.robot = Ros2Robot(settings, clock, OperatorRequests(), Interface(HZ, None, 200.0), [output])

    def say(self, names: Sequence[str], positions: Sequence[float]) -> None:
        header = SimpleNamespace(stamp=SimpleNamespace(sec=1, nanosec=0))
        self.robot.on_joints(SimpleNamespace(header=header, name=list(names), position=list(positions)))


@trap(KIND, "a JointState in another order than the parameter joints")
def joint_state(folder: Path) -> str:
    del folder
    bus = _Bus(ARM.names)
    bus.say(REVERSED.names, (3.0, 2.0, 1.0))
    state = bus.robot.read().state.tolist()
    expect(state == [1.0, 2.0, 3.0], f"the state is {state}")
    return f"{bus.robot.state_dimensions.names}: {state}"


@trap(KIND, "a JointState that holds a joint twice")
def doubled_joint_state(folder: Path) -> str:
    del folder
    bus = _Bus(ARM.names)
    bus.say((*ARM.names, "pan"), (1.0, 2.0, 3.0, 9.0))
    if bus.robot.why().count("twice") == 0:
        raise SilentlyWrong(f"the state is {bus.robot.read().state.tolist()}")
    return bus.robot.why()


@trap(KIND, "a trajectory for a joint that the simulated robot does not have", remedy="each once")
def foreign_trajectory(folder: Path) -> str:
    del folder
    return accepted(messages.commanded(np.zeros(3, np.float32), ARM.names, ("pan", "elbow"), (1.0, 2.0)))


@trap(KIND, "a mock robot whose state names the joints in another order than its action")
def mock_posture(folder: Path) -> str:
    del folder
    robot = MockRobot(MockRobotConfig(joints=3, image_size=8, state_dimensions=REVERSED, action_dimensions=ARM))
    told = dict(zip(robot.state_dimensions.names, robot.read().state.tolist(), strict=True))
    rests = dict(zip(robot.action_dimensions.names, robot.rest_command().tolist(), strict=True))
    expect(told == rests, f"it reads {told} and rests at {rests}")
    return str({name: round(value, 3) for name, value in told.items()})
