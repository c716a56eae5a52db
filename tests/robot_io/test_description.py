"""What a URDF refuses and forbids: limits that loosen it, a tool outside the workspace, an arm that meets itself."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_io.description import Description, make_gate
from robot_io.gate import Reason, SafetyGate
from robot_io.limits import RobotLimits
from vla_rl.core.config import load_config
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.types import Float32Array

HZ = 20.0
REACH = 0.5  # meters, of each of the two links

# A planar arm of two links on a post, with a finger that its twin mimics, and a second arm that nobody commands.
URDF = f"""<?xml version="1.0"?>
<robot name="planar">
  <link name="post"><collision><origin xyz="0 0 -0.5"/><geometry><box size="0.1 0.1 0.6"/></geometry></collision></link>
  <link name="upper"><collision><origin xyz="0.25 0 0" rpy="0 1.5708 0"/>
    <geometry><cylinder radius="0.04" length="0.4"/></geometry></collision></link>
  <link name="lower"><collision><origin xyz="0.25 0 0" rpy="0 1.5708 0"/>
    <geometry><cylinder radius="0.04" length="0.4"/></geometry></collision></link>
  <link name="tool"><visual><geometry><mesh filename="package://nowhere/tool.dae"/></geometry></visual></link>
  <link name="finger"/><link name="thumb"/>
  <link name="fist"><collision><geometry><sphere radius="0.06"/></geometry></collision></link>
  <link name="other"><collision><geometry><sphere radius="0.05"/></geometry></collision></link>
  <joint name="shoulder" type="revolute"><parent link="post"/><child link="upper"/><axis xyz="0 0 1"/>
    <limit lower="-3.0" upper="3.0" velocity="2.0" effort="40"/>
    <safety_controller soft_lower_limit="-2.5" soft_upper_limit="2.5" k_velocity="10"/></joint>
  <joint name="elbow" type="revolute"><parent link="upper"/><child link="lower"/><axis xyz="0 0 1"/>
    <origin xyz="{REACH} 0 0"/><limit lower="-3.1" upper="3.1" velocity="3.0" effort="20"/></joint>
  <joint name="flange" type="fixed"><parent link="lower"/><child link="tool"/><origin xyz="{REACH} 0 0"/></joint>
  <joint name="knuckle" type="fixed"><parent link="tool"/><child link="fist"/></joint>
  <joint name="grip" type="prismatic"><parent link="tool"/><child link="finger"/><axis xyz="0 1 0"/>
    <limit lower="0" upper="0.04" velocity="0.1" effort="10"/></joint>
  <joint name="grip_twin" type="prismatic"><parent link="tool"/><child link="thumb"/><axis xyz="0 -1 0"/>
    <limit lower="0" upper="0.08" velocity="0.1" effort="10"/><mimic joint="grip" multiplier="2"/></joint>
  <joint name="elsewhere" type="revolute"><parent link="post"/><child link="other"/><axis xyz="0 0 1"/>
    <origin xyz="0 3 0"/><limit lower="-1" upper="1" velocity="1" effort="1"/></joint>
</robot>"""
JOINTS = ("shoulder", "elbow")
PLANAR = RobotLimits(low=(-2.0, -3.0), high=(2.0, 3.0), max_velocity=(1.5, 1.5))


def gate_of(limits: RobotLimits, xml: str = URDF) -> SafetyGate:
    return make_gate(limits, HZ, 1, JOINTS, Description(xml, JOINTS))


def drive(gate: SafetyGate, start: tuple[float, float], target: tuple[float, float]) -> tuple[Float32Array, Reason]:
    """Where the gate lets the arm come to, which is led straight to the target in eight seconds; its objections."""
    gate.reset(np.float32([start] * 3))
    reasons, command = 0, np.float32(start)
    for tick in range(200):
        now_ns = (tick + 1) * 50_000_000
        part = min((tick + 1) / 160, 1.0)
        wanted = (1 - part) * np.float32(start) + part * np.float32(target)
        verdict = gate.admit(wanted.astype(np.float32), now_ns, now_ns, now_ns)
        reasons |= verdict.reasons
        command = verdict.commands[-1]
    return command, Reason(reasons)


def tool_at(shoulder: float, elbow: float) -> tuple[float, float]:
    """Of a planar arm, by hand."""
    x = REACH * (math.cos(shoulder) + math.cos(shoulder + elbow))
    return x, REACH * (math.sin(shoulder) + math.sin(shoulder + elbow))


def test_empty_limits_are_the_narrower_of_hard_and_soft_ones() -> None:
    limits = Description(URDF, JOINTS).tighten(RobotLimits())
    assert limits.low == (-2.5, -3.1)
    assert limits.high == (2.5, 3.1)
    assert limits.max_velocity == (2.0, 3.0)
    assert limits.joint_monitor.max_effort == (40.0, 20.0)


def test_tighter_limits_stand() -> None:
    limits = gate_of(PLANAR).config
    assert limits.low == PLANAR.low
    assert limits.max_velocity == PLANAR.max_velocity


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"high": (2.6, 3.0)}, "high of shoulder be 2.6, the robot's description says 2.5"),
        ({"low": (-2.0, -3.11)}, "low of elbow be -3.11, the robot's description says -3.1"),
        ({"max_velocity": (1.5, 3.2)}, "max_velocity of elbow be 3.2, the robot's description says 3"),
    ],
)
def test_limits_that_loosen_the_description_are_refused(change: dict[str, tuple[float, ...]], words: str) -> None:
    with pytest.raises(ConfigError, match="never loosen it") as refused:
        gate_of(replace(PLANAR, **change))  # type: ignore[arg-type]
    assert words in str(refused.value)


def test_effort_is_tightened_too() -> None:
    too_much = load_config(RobotLimits, overrides=["joint_monitor.max_effort=[41,20]"])
    with pytest.raises(
        ConfigError, match=r"joint_monitor.max_effort of shoulder be 41, the robot's description says 40"
    ):
        Description(URDF, JOINTS).tighten(too_much)


def test_a_limit_that_nobody_gives_is_asked_for() -> None:
    continuous = URDF.replace('name="elbow" type="revolute"', 'name="elbow" type="continuous"')
    with pytest.raises(ConfigError, match="low of elbow; write it down"):
        Description(continuous, JOINTS).tighten(RobotLimits())
    unknown = URDF.replace('velocity="3.0"', 'velocity="0"')
    with pytest.raises(ConfigError, match="max_velocity of elbow"):
        Description(unknown, JOINTS).tighten(RobotLimits())
    assert Description(unknown, JOINTS).tighten(PLANAR).max_velocity == PLANAR.max_velocity


def test_commands_in_degrees() -> None:
    described = Description(URDF, ("shoulder", ""), [math.pi / 180, 1.0])
    in_degrees = replace(PLANAR, low=(-140.0, 0.0), high=(140.0, 100.0), max_velocity=(90.0, 400.0))
    assert described.tighten(in_degrees).high == (140.0, 100.0), "what it does not know it does not limit"
    with pytest.raises(ConfigError, match="high of shoulder be 150"):
        described.tighten(replace(in_degrees, high=(150.0, 100.0)))


def test_the_tool_of_a_planar_arm_is_where_geometry_says() -> None:
    limits = replace(PLANAR, workspace_low=(-9.0,) * 3, workspace_high=(9.0,) * 3, tool_link="tool")
    described = Description(URDF, JOINTS)
    make_gate(limits, HZ, 1, JOINTS, described)
    assert described.kinematics is not None
    for posture in np.random.default_rng(1).uniform(-2, 2, (50, 2)):
        found = described.kinematics.tool_position(posture.astype(np.float32))
        np.testing.assert_allclose(found, (*tool_at(*posture), 0.0), atol=1e-6)


def test_a_mimicking_finger_moves_with_its_twin() -> None:
    limits = RobotLimits(workspace_low=(-9.0,) * 3, workspace_high=(9.0,) * 3, tool_link="thumb")
    described = Description(URDF, (*JOINTS, "grip"))
    make_gate(limits, HZ, 1, (), described)
    assert described.kinematics is not None
    found = described.kinematics.tool_position(np.float32([0, 0, 0.03]))
    np.testing.assert_allclose(found, (2 * REACH, -0.06, 0.0), atol=1e-6)


@pytest.mark.parametrize("jerk", [False, True])
def test_the_workspace_of_the_description_holds_the_tool(jerk: bool) -> None:
    limits = replace(PLANAR, workspace_low=(-2.0, -2.0, -1.0), workspace_high=(2.0, 0.4, 1.0), tool_link="tool")
    if jerk:
        limits = replace(limits, max_acceleration=(5.0, 5.0), max_jerk=(100.0, 100.0))
    reached, reasons = drive(gate_of(limits), (0.0, 0.0), (0.5, 0.5))
    assert Reason.WORKSPACE in reasons
    assert 0.35 < tool_at(*reached)[1] <= 0.4 + 1e-6
    free, _ = drive(gate_of(PLANAR), (0.0, 0.0), (0.5, 0.5))
    assert tool_at(*free)[1] > 0.6, "the joints' own limits would have let it"


@pytest.mark.parametrize(
    "guarded",
    [{"workspace_low": (-1.0,) * 3, "workspace_high": (1.0,) * 3, "tool_link": "tool"}, {"self_distance": 0.02}],
)
def test_places_are_not_watched_where_the_robot_takes_steps(guarded: dict[str, Any]) -> None:
    """A step is no posture: watched as one, the tool would always be near where all joints are 0."""
    with pytest.raises(ConfigError, match=r"delta_dims .* cannot be checked"):
        gate_of(replace(PLANAR, **guarded, delta_dims=(0, 1)))


@pytest.mark.parametrize("jerk", [False, True])
def test_an_arm_does_not_meet_itself(jerk: bool) -> None:
    limits = replace(PLANAR, self_distance=0.02)
    if jerk:
        limits = replace(limits, max_acceleration=(5.0, 5.0), max_jerk=(100.0, 100.0))
    gate = gate_of(limits)
    reached, reasons = drive(gate, (0.0, 1.0), (0.0, 3.0))
    assert Reason.SELF_COLLISION in reasons
    # The fist (a ball of 6 cm at the end of the lower link) and the upper arm (a cylinder of 4 cm, from 0.05 to 0.45 m)
    # keep two centimeters apart.
    x, y = REACH + REACH * math.cos(reached[1]), REACH * math.sin(reached[1])
    gap = math.hypot(max(0.05 - x, 0.0), y - 0.04) - 0.06
    assert 0.02 - 1e-6 <= gap < 0.03
    back, reasons = drive(gate, (0.0, float(reached[1])), (0.0, 0.5))
    assert back[1] == pytest.approx(0.5, abs=1e-4), "it may leave"


def test_from_a_posture_that_is_too_close_only_the_way_out_is_open() -> None:
    gate = gate_of(replace(PLANAR, self_distance=0.02))
    deeper, reasons = drive(gate, (0.0, 2.97), (0.0, 3.0))
    assert Reason.SELF_COLLISION in reasons
    assert deeper[1] == pytest.approx(2.97)
    out, _ = drive(gate, (0.0, 2.97), (0.0, 1.0))
    assert out[1] == pytest.approx(1.0)


def test_one_fault_that_the_robot_is_in_does_not_open_the_door_to_the_other() -> None:
    """Outside the workspace the arm may come back, and still not through itself."""
    limits = replace(PLANAR, workspace_low=(-2.0, -2.0, -1.0), workspace_high=(2.0, 0.3, 1.0), tool_link="tool")
    gate = gate_of(replace(limits, self_distance=0.02))
    outside = (0.6, 1.0)
    assert tool_at(*outside)[1] > 0.3
    _, reasons = drive(gate, outside, (0.0, 2.95))
    assert Reason.SELF_COLLISION in reasons


def test_pairs_that_may_touch_are_named() -> None:
    described = Description(URDF, JOINTS)
    limits = load_config(RobotLimits, base={"self_distance": 0.02, "touching": [["upper", "fist"]]})
    make_gate(limits, HZ, 1, JOINTS, described)
    assert described.kinematics is not None
    assert ("fist", "upper") not in described.kinematics.pairs
    assert ("lower", "upper") not in described.kinematics.pairs, "one joint connects them"
    assert described.kinematics.unwatched == ["other"]
    assert "NOT other" in described.words()
    assert not described.kinematics.too_close(np.float32([0, 3.0]))
    close = Description(URDF, JOINTS)
    make_gate(replace(PLANAR, self_distance=0.02), HZ, 1, JOINTS, close)
    assert close.kinematics is not None
    assert close.kinematics.too_close(np.float32([0, 3.0]))


def test_links_that_always_overlap_are_named() -> None:
    fat = URDF.replace('radius="0.06"', 'radius="0.6"')
    with pytest.raises(UserError, match=r"\[fist, upper\]\. If they may touch, name them in the limits' touching"):
        gate_of(replace(PLANAR, self_distance=0.02), fat)


@pytest.mark.parametrize(
    ("xml", "limits", "words"),
    [
        ("robot.urdf", PLANAR, "neither XML nor a file"),
        ("<robot", PLANAR, "is no XML"),
        ("<launch/>", PLANAR, "expected a URDF"),
        (URDF.replace('"shoulder"', '"shoulde"'), PLANAR, "Did you mean 'shoulde'"),
        (URDF.replace('upper="3.0"', 'upper="${pi}"'), PLANAR, "is no number"),
        (URDF, replace(PLANAR, workspace_low=(0.0,) * 3, workspace_high=(1.0,) * 3, tool_link="tol"), "mean 'tool'"),
        (URDF, replace(PLANAR, workspace_low=(0.0,) * 3, workspace_high=(1.0,) * 3, tool_link="other"), "without comm"),
        (URDF, replace(PLANAR, workspace_low=(0.0,) * 3, workspace_high=(1.0,) * 3, tool_link="finger"), "without com"),
        (URDF, replace(PLANAR, self_distance=0.01, touching=(("upper", "fits"),)), "mean 'fist'"),
        (URDF, replace(PLANAR, self_distance=math.nan), "self_distance is nan"),
        (
            URDF.replace('<sphere radius="0.06"/>', '<mesh filename="package://arm/fist.stl"/>'),
            replace(PLANAR, self_distance=0.01),
            "collision shape of link 'fist'",
        ),
    ],
)
def test_what_cannot_work_is_refused(xml: str, limits: RobotLimits, words: str) -> None:
    with pytest.raises(UserError, match=words):
        gate_of(limits, xml)


def test_without_a_description_nobody_promises_what_needs_one() -> None:
    for limits in (
        replace(PLANAR, self_distance=0.1),
        replace(PLANAR, workspace_low=(0,) * 3, workspace_high=(1,) * 3),
    ):
        with pytest.raises(ConfigError, match="robot_description"):
            make_gate(limits, HZ, 1, JOINTS, None)


def test_meshes_beside_the_file_are_read(tmp_path: Path) -> None:
    corners = [(-0.1, 0, 0), (0.1, 0, 0), (0, 0.1, 0), (0, 0, 0.1)]
    faces = ["f 1 3 2", "f 1 2 4", "f 1 4 3", "f 2 3 4"]
    (tmp_path / "fist.obj").write_text("\n".join([*(f"v {x} {y} {z}" for x, y, z in corners), *faces]))
    file = tmp_path / "arm.urdf"
    file.write_text(URDF.replace('<sphere radius="0.06"/>', '<mesh filename="fist.obj"/>'))
    described = Description(str(file), JOINTS)
    make_gate(replace(PLANAR, self_distance=0.01), HZ, 1, JOINTS, described)
    assert described.kinematics is not None
    assert ("fist", "upper") in described.kinematics.pairs
    assert described.kinematics.too_close(np.float32([0, 3.1]))
