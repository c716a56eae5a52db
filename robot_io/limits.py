"""The limits of a robot: the safety gate holds every command to them, and they say where an attempt may begin."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Self

import numpy as np

from robot_io.joint_monitor import JointMonitorConfig
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.types import Float32Array

_REST_TOLERANCE = 0.02
"""Of the range between the limits: as far outside of them as robots are found that sag or were calibrated anew."""

_SHORTEST_QUATERNION = 0.5
"""On a straight way from one to another it is at least .7 long."""


@dataclass(frozen=True)
class GateConfig:
    """Limits of commands, in the action's own units, one number per action dimension. Empty limits: see `filled`.

    Attributes:
        low: Smallest command.
        high: Largest command.
        max_velocity: Fastest change of the command, per second.
        max_acceleration: Per second^2; empty: not limited, then ``max_velocity`` bounds the step between two commands.
        max_jerk: Per second^3; empty together with ``max_acceleration``.
        discrete_dims: Dimensions that may jump (grippers): only clamped.
        delta_dims: Dimensions that are steps, not targets: at rest they are 0, and they are not smoothed. A robot with
            them takes one command a tick: a step that is sent K times is K times as large.
        workspace_low: Lowest x, y, z of the tool, meters; empty: not limited. Targets outside are not followed, and a
            motion towards the border is braked in time. From outside, targets inside are followed.
        workspace_high: Highest x, y, z of the tool.
        max_observation_age_ms: An older observation is a fault.
        max_action_age_ms: An action planned from an older observation is a fault; longer than a chunk and a delay.
        stop_after_ms: A fault that lasts this long latches the stop.
        max_gap_ms: A longer pause between two ticks latches the stop: the process stood still, and the robot with it.
    """

    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    max_velocity: tuple[float, ...] = ()
    max_acceleration: tuple[float, ...] = ()
    max_jerk: tuple[float, ...] = ()
    discrete_dims: tuple[int, ...] = ()
    delta_dims: tuple[int, ...] = ()
    workspace_low: tuple[float, ...] = ()
    workspace_high: tuple[float, ...] = ()
    max_observation_age_ms: float = 200.0
    max_action_age_ms: float = 3000.0
    stop_after_ms: float = 300.0
    max_gap_ms: float = 500.0

    def filled(
        self,
        low: Sequence[float],
        high: Sequence[float],
        discrete_dims: Sequence[int] = (),
        delta_dims: Sequence[int] = (),
    ) -> Self:
        """Fill empty limits from a simulator's action space.

        The velocity limit becomes the light preset for physics tasks: the whole range in a fifth of a second.
        """
        lowest, highest = self.low or tuple(map(float, low)), self.high or tuple(map(float, high))
        velocity = self.max_velocity or tuple(5.0 * (top - bottom) for bottom, top in zip(lowest, highest, strict=True))
        discrete = self.discrete_dims or tuple(map(int, discrete_dims))
        delta = self.delta_dims or tuple(map(int, delta_dims))
        return replace(self, low=lowest, high=highest, max_velocity=velocity, discrete_dims=discrete, delta_dims=delta)


@dataclass(frozen=True)
class RobotLimits(GateConfig):
    """Limits of a robot that measures itself, as its file of limits gives them.

    Attributes:
        rest_tolerance: How far outside low and high a robot may be at the start of an attempt; empty: a fiftieth of
            the range between them.
        tool_link: Link of the robot's description whose place the workspace limits.
        self_distance: Smallest distance between parts of the robot, meters. A command that brings them closer is not
            followed. 0: not limited. Links that one joint connects may touch.
        touching: Pairs of further links that may touch.
        names: Action dimensions that the limits are for, in their order; compared with what the robot declares.
        units: Unit of the numbers of each.
        quaternions: First of four dimensions each that are a quaternion x, y, z, w. It and its negative are one
            rotation: the one counts that is nearer to the command before. The node adds its pose outputs.
        joint_monitor: What the joint monitor notices.
    """

    rest_tolerance: tuple[float, ...] = ()
    tool_link: str = ""
    self_distance: float = 0.0
    touching: tuple[tuple[str, str], ...] = ()
    names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    quaternions: tuple[int, ...] = ()
    joint_monitor: JointMonitorConfig = field(default_factory=JointMonitorConfig)

    @classmethod
    def of(cls, config: GateConfig) -> "RobotLimits":
        """Return limits of commands with the defaults of a robot; a robot's own limits unchanged."""
        if isinstance(config, RobotLimits):
            return config
        return cls(**{name.name: getattr(config, name.name) for name in fields(config)})


def check_names(config: GateConfig, action: Dimensions) -> None:
    """Refuse limits that name other dimensions than the robot declares, another order or other units.

    Limits without names are taken in the robot's order and units.

    Raises:
        UserError: With both lists.
    """
    limits = RobotLimits.of(config)
    own = Dimensions(limits.names, limits.units)
    if not own.agrees(action):
        raise UserError(
            f"the limits are for {own.words()}; the robot has {action.words()}. Write limits in the robot's order and "
            "units (--limits FILE, parameter limits of the ROS 2 node)"
        )


def agreed_posture(readings: Float32Array, config: RobotLimits, step: Float32Array) -> Float32Array:
    """Return where a robot rests, float32 [A]: the median of readings that agree to within one tick of the limits.

    One bad reading would be the first command. No attempt begins with readings that are further apart than one tick of
    motion, or that agree on an impossible place.

    Args:
        readings: Successive readings, float32 [N, A]; N = 1 if the robot measures nothing.
        config: The limits.
        step: Largest change of a command in one tick, float32 [A]; infinite for dimensions that may jump.

    Raises:
        UserError: The readings do not fit the limits, are not finite, disagree, or lie outside.
    """
    low, high = np.asarray(config.low, np.float32), np.asarray(config.high, np.float32)
    if readings.shape[1:] != low.shape:
        raise UserError(
            f"the robot rests at a command of shape {list(readings.shape[1:])}; "
            f"the gate has limits for {len(low)} dimensions. Use the limits of this robot"
        )
    finite = np.isfinite(readings).all(axis=0)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        raise UserError(
            f"the robot rests at {readings[-1, bad].tolist()} in dimensions {bad.tolist()} of its command; expected "
            "finite numbers. Check the cables, encoders and calibration of these joints"
        )
    if none := no_rotations(readings[-1], config.quaternions):
        length = np.linalg.norm(readings[-1, none[0] : none[0] + 4])
        raise UserError(
            f"the robot rests at a quaternion of length {length:.4g} in dimensions {none[0]} to {none[0] + 3}; "
            "expected 1. Check that its driver knows the tool, and that these dimensions are a quaternion"
        )
    tolerance = rest_tolerance(config)
    allowed = np.where(np.isfinite(step), step, tolerance)
    spread = readings.max(axis=0) - readings.min(axis=0)
    posture: Float32Array = np.median(readings, axis=0).astype(np.float32)
    outside = np.maximum(low - posture, posture - high)
    for dim in np.setdiff1d(np.arange(len(low)), config.delta_dims):
        if spread[dim] > allowed[dim]:
            raise UserError(
                f"{len(readings)} readings of dimension {dim} of the robot's posture disagree by {spread[dim]:.4g}; "
                f"expected at most {allowed[dim]:.4g}, one tick of motion. "
                "Keep the robot still, and check the encoder of this joint"
            )
        if outside[dim] > tolerance[dim]:
            raise UserError(
                f"the robot rests at {posture[dim]:.6g} in dimension {dim}, outside its limits "
                f"{low[dim]:g} to {high[dim]:g}. The rest_tolerance is {tolerance[dim]:.4g}. "
                "Move it inside by hand, or check its calibration and the file of limits"
            )
    posture[list(config.delta_dims)] = 0
    return posture


def nearer_signs(values: Float32Array, near: Float32Array, quaternions: Sequence[int]) -> Float32Array:
    """Return values, float32 [..., A], where each quaternion has the sign that is nearer to ``near``, float32 [A]."""
    for first in quaternions:
        part = slice(first, first + 4)
        turned_over = values[..., part] @ near[part] < 0
        values = values.copy()
        values[..., part] *= np.where(turned_over, np.float32(-1), np.float32(1))[..., None]
    return values


def no_rotations(values: Float32Array, quaternions: Sequence[int]) -> list[int]:
    """Return the quaternions in values, float32 [A], that are too short to be a rotation: zeros could be any."""
    return [first for first in quaternions if np.linalg.norm(values[first : first + 4]) < _SHORTEST_QUATERNION]


def rest_tolerance(config: RobotLimits) -> Float32Array:
    """Return how far outside its limits a robot may be found, float32 [A]."""
    width = np.asarray(config.high, np.float32) - np.asarray(config.low, np.float32)
    return np.asarray(config.rest_tolerance or _REST_TOLERANCE * width, np.float32)


def check_limits(
    config: RobotLimits, rate_hz: float, commands_per_tick: int, has_tool_position: bool, sees_itself: bool = False
) -> None:
    """Raise ConfigError for limits that are missing, not finite, of different lengths, crossed or not positive."""
    names = ["low", "high", "max_velocity"]
    if config.max_acceleration or config.max_jerk:
        names += ["max_acceleration", "max_jerk"]
    if config.rest_tolerance:
        names += ["rest_tolerance"]
    sizes = {name: len(getattr(config, name)) for name in names}
    if len(set(sizes.values())) != 1 or not config.low:
        raise ConfigError(f"the gate needs one number per action dimension in each limit, found {sizes}")
    for name in (*names, "workspace_low", "workspace_high"):
        if not np.isfinite(getattr(config, name)).all():
            raise ConfigError(f"the gate's {name} {getattr(config, name)} must be finite: infinity limits nothing")
    for low, high in (("low", "high"), ("workspace_low", "workspace_high")):
        bottoms, tops = getattr(config, low), getattr(config, high)
        if not all(bottom < top for bottom, top in zip(bottoms, tops, strict=False)):
            raise ConfigError(f"the gate's {low} {bottoms} must be below its {high} {tops}")
    for name in names[2:]:
        if not all(limit > 0 for limit in getattr(config, name)):
            raise ConfigError(f"the gate's {name} {getattr(config, name)} must be positive")
    for name in ("discrete_dims", "delta_dims"):
        if not all(0 <= dim < len(config.low) for dim in getattr(config, name)):
            raise ConfigError(f"the gate's {name} {getattr(config, name)} are not among {len(config.low)} dimensions")
    if not all(0 <= first <= len(config.low) - 4 for first in config.quaternions):
        raise ConfigError(
            f"the gate's quaternions {config.quaternions} begin four dimensions each, and there are {len(config.low)}"
        )
    turned = [first + part for first in config.quaternions for part in range(4)]
    if len(set(turned)) < len(turned) or not {*config.delta_dims, *config.discrete_dims}.isdisjoint(turned):
        raise ConfigError(
            f"the gate's quaternions {config.quaternions} begin four dimensions each; delta_dims is "
            f"{config.delta_dims}, discrete_dims {config.discrete_dims}. "
            "Quaternions may not overlap each other, delta_dims or discrete_dims"
        )
    if len(config.workspace_low) not in {0, 3} or len(config.workspace_low) != len(config.workspace_high):
        raise ConfigError("the gate's workspace_low and workspace_high need three numbers each (x, y, z), or none")
    if config.workspace_low and not has_tool_position:
        raise ConfigError(
            "workspace limits need the forward kinematics of the robot. Name its URDF (parameter robot_description, "
            "option robot.urdf) and the limits' tool_link. Or give SafetyGate a tool_position"
        )
    if not 0 <= config.self_distance < np.inf or (config.self_distance and not sees_itself):
        raise ConfigError(
            f"the gate's self_distance is {config.self_distance:g}; expected meters, with the robot's URDF. "
            "Name the URDF (parameter robot_description, option robot.urdf)"
        )
    if config.delta_dims and (config.workspace_low or config.self_distance):
        raise ConfigError(
            f"the gate's delta_dims {config.delta_dims} are steps, so workspace and self_distance cannot be checked. "
            "Leave both to the robot's own controller. Or remove delta_dims from the limits: "
            "a policy's steps are then added up to targets"
        )
    if config.delta_dims and commands_per_tick > 1:
        raise ConfigError(
            f"the gate's delta_dims {config.delta_dims} are steps, which {commands_per_tick} commands a tick "
            "would repeat: set commands_per_tick to 1"
        )
    if not (0 < rate_hz < np.inf) or commands_per_tick < 1:
        raise ConfigError(f"rate_hz is {rate_hz} and commands_per_tick {commands_per_tick}; both must be positive")
    for name in ("max_observation_age_ms", "max_action_age_ms", "max_gap_ms", "stop_after_ms"):
        time_ms, may_be_zero = getattr(config, name), name == "stop_after_ms"
        if not (np.isfinite(time_ms) and (time_ms > 0 or (may_be_zero and time_ms == 0))):
            raise ConfigError(f"the gate's {name} is {time_ms:g}; expected a time in ms, or nothing would be noticed")
    if config.max_gap_ms < (tick_ms := 1000 / rate_hz):
        raise ConfigError(
            f"the gate's max_gap_ms is {config.max_gap_ms:g}, and a tick takes {tick_ms:g} ms. Every tick would be a "
            "pause; set max_gap_ms to more"
        )
