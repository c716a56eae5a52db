"""``--robot mock``: for trying a policy's timing, the gate and the display before a real arm moves."""

from dataclasses import replace

from robot_io.gate import GateConfig, SafetyGate
from robot_io.mock_robot import MockRobot, MockRobotConfig
from vla_rl.acting.robots import RobotRequest, RobotSetup, check_fits
from vla_rl.core.config import config_from_dict
from vla_rl.core.errors import UserError
from vla_rl.core.types import Origin

_LIMITS = GateConfig(
    low=(-3.0,), high=(3.0,), max_velocity=(2.0,), max_acceleration=(10.0,), max_jerk=(200.0,), stop_after_ms=300.0
)
"""Of every joint, in radians."""


def set_up(request: RobotRequest) -> RobotSetup:
    """Return the mock robot with the cameras and joints of the policy, under the policy's names."""
    spec = request.policy
    if spec is None:
        raise UserError("the mock robot has no teleoperator; record a task of the simulator")
    defaults = {
        "joints": spec.action_dim,
        "cameras": list(spec.cameras),
        "image_size": spec.image_size[0],
        "image_width": spec.image_size[1] if "image_size" not in request.options else 0,
        "state_size": spec.state_dim,
        "control_hz": spec.control_hz,
        "duration_s": 10.0,
    }
    config = config_from_dict(MockRobotConfig, {**defaults, **request.options}, where="robot")
    state_size = config.state_size or config.joints
    check_fits(spec, config.cameras, state_size, config.joints)
    state, action = spec.dimensions_of(state_size)
    named = replace(
        config,
        state_dimensions=config.state_dimensions or state,
        action_dimensions=config.action_dimensions or action,
    )
    robot = MockRobot(named, clock=request.clock)
    names = ("low", "high", "max_velocity", "max_acceleration", "max_jerk")
    missing = {name: getattr(_LIMITS, name) * config.joints for name in names if not getattr(request.gate, name)}
    gate = SafetyGate(replace(request.gate, **missing), config.control_hz)
    return RobotSetup(robot, gate, Origin.SIM, "mock", stop_input="a mock hurts nobody")
