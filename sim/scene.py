"""MJCF fragments shared by our tasks: table, Cartesian arms, free-standing objects, cameras.

Every arm comes in from its own side of the table: a carriage runs along a rail (y), a lift on its tower (z) and a horizontal boom (x) carries a
parallel gripper whose fingers point inwards and open along y. Nothing hangs over the workspace, so both cameras see what is between the fingers.

The frames are laid out such that joint values *are* world coordinates: the x, y and z slides of an arm read the position of its grip point, in metres.
"""

from dataclasses import dataclass

FINGER_REACH = 0.050  # m, one finger's travel: the gripper opens to twice this
GRIPPER_OPENING_MAX = 2 * FINGER_REACH  # m
TOWER_X = 0.30  # m, distance of the towers from the middle of the table
ARENA_HALF = (0.170, 0.130)  # m, inside of the fence

COLOURS = {
    "table": "0.87 0.86 0.83 1",
    "wall": "0.88 0.95 1 1",
    "fence": "0.45 0.42 0.40 1",
    "rail": "0.30 0.32 0.36 1",
    "tower": "0.22 0.24 0.28 1",
    "boom": "0.62 0.65 0.70 1",
    "left": "0.10 0.35 0.95 1",
    "right": "0.98 0.55 0.05 1",
}


@dataclass(frozen=True)
class ArmSpec:
    """One arm: its side ("left" or "right") and the box its grip point may be sent to, in metres."""

    side: str
    x_range: tuple[float, float]
    y_range: tuple[float, float] = (-0.13, 0.13)
    z_range: tuple[float, float] = (0.014, 0.20)


def arm_body(arm: ArmSpec) -> str:
    """MJCF body of one arm. Robot links carry their own weight (gravcomp), so that the servos need no integral term."""
    sign = -1 if arm.side == "left" else 1
    name, tint = arm.side, COLOURS[arm.side]
    # Contact bits: 1 table, 2 objects, 4 left arm, 8 right arm. What reaches over the table meets the objects and the other arm, never the table.
    hard = 'contype="4" conaffinity="10"' if arm.side == "left" else 'contype="8" conaffinity="6"'
    # The mass of a slide is mostly its armature (the drive), so the three axes have alike dynamics however the links are nested.
    slide = 'type="slide" damping="2" armature="0.35"'
    return f"""
    <body name="{name}_carriage" pos="{sign * TOWER_X} 0 0" gravcomp="1">
      <joint name="{name}_y" axis="0 1 0" {slide}/>
      <geom class="link" type="box" size="0.018 0.026 0.125" pos="{sign * 0.022} 0 0.145" rgba="{COLOURS["tower"]}"/>
      <body name="{name}_lift" gravcomp="1">
        <joint name="{name}_z" axis="0 0 1" {slide}/>
        <geom class="link" type="box" size="0.014 0.032 0.022" pos="{-sign * 0.010} 0 0.004" rgba="{tint}"/>
        <body name="{name}_boom" gravcomp="1">
          <joint name="{name}_x" axis="1 0 0" {slide}/>
          <geom class="link" {hard} type="box" size="0.160 0.011 0.009" pos="{-sign * 0.075} 0 0.004" rgba="{COLOURS["boom"]}"/>
          <geom class="link" {hard} type="box" size="0.011 0.058 0.011" pos="{-sign * (TOWER_X - 0.060)} 0 0" rgba="{COLOURS["tower"]}"/>
          <body name="{name}_finger_front" pos="{-sign * TOWER_X} 0 0" gravcomp="1">
            <joint name="{name}_finger_front" class="finger" axis="0 -1 0"/>
            <geom class="finger" {hard} pos="{sign * 0.012} -0.006 0" rgba="{tint}"/>
          </body>
          <body name="{name}_finger_back" pos="{-sign * TOWER_X} 0 0" gravcomp="1">
            <joint name="{name}_finger_back" class="finger" axis="0 1 0"/>
            <geom class="finger" {hard} pos="{sign * 0.012} 0.006 0" rgba="{tint}"/>
          </body>
        </body>
      </body>
    </body>"""


def arm_actuators(arm: ArmSpec) -> str:
    """Four position servos in the order of the action: x, y, z of the grip point and the gripper's opening."""
    name = arm.side
    slides = "".join(
        f'<position class="axis" name="{name}_{axis}" joint="{name}_{axis}" ctrlrange="{low} {high}"/>'
        for axis, (low, high) in zip("xyz", (arm.x_range, arm.y_range, arm.z_range), strict=True)
    )
    return f'{slides}<position class="grip" name="{name}_grip" tendon="{name}_opening" ctrlrange="0 {GRIPPER_OPENING_MAX}"/>'


def standing_object(name: str, geoms: str, mass: float, height: float, inertia: float) -> str:
    """A body that moves freely and rights itself, like a tumbler toy with a weighted base: whatever goes wrong, it ends upright on the table.

    Its joints are x and y slides that end above the fence, a z slide, a free yaw, and roll and pitch held by weak springs.
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


def flat_marker(name: str, size: tuple[float, float], rgba: str) -> str:
    """A painted rectangle on the table that nothing touches; its x and y slides only serve to place it."""
    return f"""
    <body name="{name}">
      <inertial mass="0.01" pos="0 0 0" diaginertia="1e-5 1e-5 1e-5"/>
      <joint name="{name}_x" type="slide" axis="1 0 0"/>
      <joint name="{name}_y" type="slide" axis="0 1 0"/>
      <geom type="box" size="{size[0]} {size[1]} 0.001" rgba="{rgba}" contype="0" conaffinity="0"/>
    </body>"""


def scene_xml(arms: tuple[ArmSpec, ...], bodies: str) -> str:
    """The whole MJCF model: table with a low fence, the arms, the task's bodies and the two cameras."""
    half_x, half_y = ARENA_HALF
    fence = "".join(
        f'<geom name="fence_{name}" class="fence" size="{size}" pos="{pos}"/>'
        for name, size, pos in (
            ("front", f"{half_x + 0.01} 0.005 0.004", f"0 {-half_y - 0.005} 0.004"),
            ("back", f"{half_x + 0.01} 0.005 0.004", f"0 {half_y + 0.005} 0.004"),
            ("left", f"0.005 {half_y} 0.004", f"{-half_x - 0.005} 0 0.004"),
            ("right", f"0.005 {half_y} 0.004", f"{half_x + 0.005} 0 0.004"),
        )
    )
    rails = "".join(
        f'<geom name="rail_{arm.side}" class="link" type="box" size="0.03 0.20 0.010" '
        f'pos="{(-1 if arm.side == "left" else 1) * (TOWER_X + 0.022)} 0 0.010" rgba="{COLOURS["rail"]}"/>'
        for arm in arms
    )
    tendons = "".join(
        f'<fixed name="{arm.side}_opening"><joint joint="{arm.side}_finger_front" coef="1"/><joint joint="{arm.side}_finger_back" coef="1"/></fixed>'
        for arm in arms
    )
    mirrored = "".join(
        f'<joint joint1="{arm.side}_finger_front" joint2="{arm.side}_finger_back" solref="0.01 1"/>' for arm in arms
    )
    return f"""
<mujoco model="vla_rl">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.005" integrator="implicitfast" iterations="20" ls_iterations="10" cone="pyramidal"/>
  <visual><headlight active="0"/></visual>
  <asset>
    <texture name="checker" type="2d" builtin="checker" width="256" height="256" rgb1="1 1 1" rgb2="0.93 0.93 0.93"/>
    <material name="table" texture="checker" texrepeat="10 7"/>
  </asset>
  <default>
    <geom solref="0.012 1" friction="0.4 0.005 0.0001"/>
    <default class="link"><geom contype="0" conaffinity="0" mass="0.05"/></default>
    <default class="fence"><geom type="box" contype="1" conaffinity="2" rgba="{COLOURS["fence"]}"/></default>
    <default class="finger">
      <geom type="box" size="0.030 0.006 0.011" mass="0.02" friction="1.4 0.02 0.0001" priority="1"/>
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
      material="table" rgba="{COLOURS["table"]}"/>
    <geom name="wall" class="link" type="box" size="2 0.01 1" pos="0 0.60 0" rgba="{COLOURS["wall"]}"/>
    {fence}{rails}
    {"".join(arm_body(arm) for arm in arms)}
    {bodies}
  </worldbody>
  <tendon>{tendons}</tendon>
  <equality>{mirrored}</equality>
  <actuator>{"".join(arm_actuators(arm) for arm in arms)}</actuator>
</mujoco>"""
