"""MJCF fragments shared by our tasks: table, Cartesian arms, free-standing objects, cameras.

Every arm comes in from its own side of the table. A carriage runs along a rail (y), a lift on its tower (z). A
horizontal boom (x) carries a parallel gripper whose fingers point inwards and open along y. Nothing hangs over the
workspace, so both cameras see what is between the fingers.

The frames make joint values world coordinates: the x, y and z slides of an arm read the position of its grip point, in
meters. Lengths are meters, angles radians, everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FINGER_REACH = 0.050  # m, one finger's travel: the gripper opens to twice this
GRIPPER_OPENING_MAX = 2 * FINGER_REACH  # m
TOWER_X = 0.30  # m, distance of the towers from the middle of the table
ARENA_HALF = (0.170, 0.130)  # m, inside of the fence

CHECKER = "vla_rl_checker"
"""Name of the table's texture. The ray caster draws its pattern, and no other texture's."""
RED, GREEN, DARK_GREEN = "0.92 0.10 0.12 1", "0.05 0.70 0.30 1", "0.02 0.42 0.18 1"
_TABLE, _WALL, _FENCE = "0.87 0.86 0.83 1", "0.88 0.95 1 1", "0.45 0.42 0.40 1"
_RAIL, _TOWER, _BOOM = "0.30 0.32 0.36 1", "0.22 0.24 0.28 1", "0.62 0.65 0.70 1"
_TINT = {"left": "0.10 0.35 0.95 1", "right": "0.98 0.55 0.05 1"}
_SIGN = {"left": -1, "right": 1}
# Contact bits: 1 table, 2 objects, 4 left arm, 8 right arm. What reaches over the table meets the objects and the
# other arm, but never the table, above which its lift stops.
_HARD = {"left": 'contype="4" conaffinity="10"', "right": 'contype="8" conaffinity="6"'}


@dataclass(frozen=True)
class ArmSpec:
    """One arm: its side ("left" or "right") and the box its grip point may be sent to, in meters."""

    side: str
    x_range: tuple[float, float]
    y_range: tuple[float, float] = (-0.13, 0.13)
    z_range: tuple[float, float] = (0.014, 0.20)


def box_geom(
    half: Sequence[float], middle: Sequence[float], rgba: str, attributes: str = 'class="object"', tilt: str = "0 0 0"
) -> str:
    """Return a box by its half sizes, its middle and its Euler angles; further MJCF attributes as text."""
    size, pos = (" ".join(map(str, values)) for values in (half, middle))
    return f'<geom type="box" size="{size}" pos="{pos}" euler="{tilt}" rgba="{rgba}" {attributes}/>'


def four_walls(
    inside: float, thickness_half: float, low: float, high: float, rgba: str, attributes: str, flare: float = 0.0
) -> str:
    """Return walls around a square; lengths in meters.

    Args:
        inside: Half the width of the square at the foot of the walls.
        thickness_half: Half a wall's thickness.
        low, high: Heights of foot and rim.
        rgba, attributes: Their color, and further MJCF attributes.
        flare: How far they lean outwards, radians.
    """
    lean, half_height = (high - low) * np.sin(flare), (high - low) / 2
    out, along = inside + thickness_half + lean / 2, inside + 2 * thickness_half + lean / 2
    walls = []
    for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        half = (thickness_half, along, half_height) if x else (along, thickness_half, half_height)
        middle = (x * out, y * out, low + half_height)
        walls.append(box_geom(half, middle, rgba, attributes, tilt=f"{-y * flare} {x * flare} 0"))
    return "".join(walls)


def standing_object(name: str, geoms: str, mass: float, height: float, inertia: float) -> str:
    """Return a body that moves freely and rights itself, like a tumbler toy with a weighted base, so it ends upright.

    Its joints are x and y slides that end above the fence, a z slide and a free yaw. Weak springs hold roll and pitch.
    The frame is at the middle of its base.
    """
    tilt = 'type="hinge" stiffness="0.6" damping="0.02"'
    half_x, half_y = ARENA_HALF[0] - 0.01, ARENA_HALF[1] - 0.01
    return f"""
    <body name="{name}">
      <inertial mass="{mass}" pos="0 0 {height / 3}" diaginertia="{inertia} {inertia} {inertia}"/>
      <joint name="{name}_x" type="slide" axis="1 0 0" range="{-half_x} {half_x}"/>
      <joint name="{name}_y" type="slide" axis="0 1 0" range="{-half_y} {half_y}"/>
      <joint name="{name}_z" type="slide" axis="0 0 1"/>
      <joint name="{name}_yaw" type="hinge" axis="0 0 1" damping="0.0004"/>
      <joint name="{name}_roll" {tilt} axis="1 0 0"/>
      <joint name="{name}_pitch" {tilt} axis="0 1 0"/>
      {geoms}
    </body>"""


def flat_marker(name: str, half: tuple[float, float], rgba: str) -> str:
    """Return a painted rectangle on the table that nothing touches; its x and y slides only serve to place it."""
    return f"""
    <body name="{name}">
      <inertial mass="0.01" pos="0 0 0" diaginertia="1e-5 1e-5 1e-5"/>
      <joint name="{name}_x" type="slide" axis="1 0 0"/>
      <joint name="{name}_y" type="slide" axis="0 1 0"/>
      {box_geom((*half, 0.001), (0, 0, 0), rgba, 'contype="0" conaffinity="0"')}
    </body>"""


def scene_xml(arms: tuple[ArmSpec, ...], bodies: str) -> str:
    """Return the whole MJCF model: table with a low fence, the arms, the task's bodies and the cameras."""
    return f"""
<mujoco model="vla_rl">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.005" integrator="implicitfast" iterations="20" ls_iterations="10" cone="pyramidal"/>
  <visual><headlight active="0"/></visual>
  <asset>
    <texture name="{CHECKER}" type="2d" builtin="checker" width="256" height="256" rgb1="1 1 1" rgb2="0.93 0.93 0.93"/>
    <material name="table" texture="{CHECKER}" texrepeat="10 7"/>
  </asset>
  <default>
    <geom solref="0.012 1" friction="0.4 0.005 0.0001"/>
    <default class="link"><geom contype="0" conaffinity="0" mass="0.05"/></default>
    <default class="fence"><geom contype="1" conaffinity="2"/></default>
    <default class="finger">
      <geom mass="0.02" friction="1.4 0.02 0.0001" priority="1"/>
      <joint type="slide" range="0 {FINGER_REACH}" damping="60" armature="0.05"/>
    </default>
    <default class="object"><geom contype="2" conaffinity="15"/></default>
    <default class="axis"><position kp="700" kv="32" forcerange="-45 45"/></default>
    <default class="grip"><position kp="500" forcerange="-14 14"/></default>
  </default>
  <worldbody>
    <light name="lamp" pos="0.30 -0.55 0.78" dir="-0.30 0.55 -0.78" directional="true" castshadow="false"
      ambient="0.50 0.50 0.50" diffuse="0.55 0.55 0.55" specular="0 0 0"/>
    <camera name="front" pos="0 -0.53 0.43" xyaxes="1 0 0 0 0.595 0.804" fovy="34"/>
    <camera name="top" pos="0 0 0.70" xyaxes="1 0 0 0 1 0" fovy="31"/>
    <camera name="overview" pos="0.36 -0.92 0.66" xyaxes="0.93 0.36 0 -0.20 0.52 0.83" fovy="38"/>
    <geom name="table" type="box" size="0.40 0.28 0.02" pos="0 0 -0.02" contype="1" conaffinity="2"
      material="table" rgba="{_TABLE}"/>
    <geom name="wall" class="link" type="box" size="2 0.01 1" pos="0 0.60 0" rgba="{_WALL}"/>
    {_fence()}{"".join(_rail(arm) for arm in arms)}
    {"".join(_arm_body(arm) for arm in arms)}
    {bodies}
  </worldbody>
  <tendon>{"".join(_opening_tendon(arm) for arm in arms)}</tendon>
  <equality>{"".join(_mirrored_fingers(arm) for arm in arms)}</equality>
  <actuator>{"".join(_actuators(arm) for arm in arms)}</actuator>
</mujoco>"""


def _arm_body(arm: ArmSpec) -> str:
    """Return one arm. Its links carry their own weight (gravcomp), so that the servos need no integral term.

    The mass of a slide is mostly its armature (the drive), so the three axes have alike dynamics however the links
    are nested.
    """
    name, sign, tint = arm.side, _SIGN[arm.side], _TINT[arm.side]
    slide = 'type="slide" damping="2" armature="0.35"'
    link, reach = 'class="link"', f'class="link" {_HARD[name]}'
    finger = f'class="finger" {_HARD[name]}'
    return f"""
    <body name="{name}_carriage" pos="{sign * TOWER_X} 0 0" gravcomp="1">
      <joint name="{name}_y" axis="0 1 0" {slide}/>
      {box_geom((0.018, 0.026, 0.125), (sign * 0.022, 0, 0.145), _TOWER, link)}
      <body name="{name}_lift" gravcomp="1">
        <joint name="{name}_z" axis="0 0 1" {slide}/>
        {box_geom((0.014, 0.032, 0.022), (-sign * 0.010, 0, 0.004), tint, link)}
        <body name="{name}_boom" gravcomp="1">
          <joint name="{name}_x" axis="1 0 0" {slide}/>
          {box_geom((0.200, 0.011, 0.009), (-sign * 0.035, 0, 0.004), _BOOM, reach)}
          {box_geom((0.011, 0.058, 0.011), (-sign * (TOWER_X - 0.060), 0, 0), _TOWER, reach)}
          <body name="{name}_finger_front" pos="{-sign * TOWER_X} 0 0" gravcomp="1">
            <joint name="{name}_finger_front" class="finger" axis="0 -1 0"/>
            {box_geom((0.030, 0.006, 0.011), (sign * 0.012, -0.006, 0), tint, finger)}
          </body>
          <body name="{name}_finger_back" pos="{-sign * TOWER_X} 0 0" gravcomp="1">
            <joint name="{name}_finger_back" class="finger" axis="0 1 0"/>
            {box_geom((0.030, 0.006, 0.011), (sign * 0.012, 0.006, 0), tint, finger)}
          </body>
        </body>
      </body>
    </body>"""


def _rail(arm: ArmSpec) -> str:
    return box_geom((0.03, 0.20, 0.010), (_SIGN[arm.side] * (TOWER_X + 0.022), 0, 0.010), _RAIL, 'class="link"')


def _fence() -> str:
    half_x, half_y = ARENA_HALF
    along_x, along_y = (half_x + 0.01, 0.005, 0.004), (0.005, half_y, 0.004)
    sides = ((along_x, (0, -half_y - 0.005, 0.004)), (along_x, (0, half_y + 0.005, 0.004)))
    ends = ((along_y, (-half_x - 0.005, 0, 0.004)), (along_y, (half_x + 0.005, 0, 0.004)))
    return "".join(box_geom(half, middle, _FENCE, 'class="fence"') for half, middle in (*sides, *ends))


def _opening_tendon(arm: ArmSpec) -> str:
    fingers = "".join(f'<joint joint="{arm.side}_finger_{end}" coef="1"/>' for end in ("front", "back"))
    return f'<fixed name="{arm.side}_opening">{fingers}</fixed>'


def _mirrored_fingers(arm: ArmSpec) -> str:
    return f'<joint joint1="{arm.side}_finger_front" joint2="{arm.side}_finger_back" solref="0.01 1"/>'


def _actuators(arm: ArmSpec) -> str:
    """Four position servos in the order of the action: x, y, z of the grip point and the gripper's opening."""
    name = arm.side
    slides = "".join(
        f'<position class="axis" name="{name}_{axis}" joint="{name}_{axis}" ctrlrange="{low} {high}"/>'
        for axis, (low, high) in zip("xyz", (arm.x_range, arm.y_range, arm.z_range), strict=True)
    )
    opening = f'tendon="{name}_opening" ctrlrange="0 {GRIPPER_OPENING_MAX}"'
    return f'{slides}<position class="grip" name="{name}_grip" {opening}/>'
