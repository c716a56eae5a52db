"""A robot of one's own: anything with these verbs can be driven. Here a cart on a rail with a camera above it.

pip install examples/own_robot
vla-rl rollout POLICY --robot cart --realtime robot.rail_m=1.5
"""

from dataclasses import dataclass

import numpy as np

from robot_io.gate import SafetyGate
from vla_rl.acting.robots import RobotRequest, RobotSetup, check_fits
from vla_rl.core.clock import Clock
from vla_rl.core.config import config_from_dict
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.types import Float32Array, Observation, Origin

HZ, PIXELS = 20.0, 32


@dataclass(frozen=True)
class CartConfig:
    """Options of the robot, ``robot.KEY=VALUE``."""

    rail_m: float = 1.0
    duration_s: float = 2.0


class Cart:
    """One joint: the cart's place on the rail, meters. The command is where it should be."""

    control_hz = HZ
    state_dimensions = action_dimensions = Dimensions(("cart",), ("m",))  # may be left out: then positions count
    terminated = False
    success: bool | None = None  # its attempts have no judge

    def __init__(self, config: CartConfig, clock: Clock) -> None:
        self.config, self.clock = config, clock

    def connect(self) -> None:
        self._place = 0.0  # a real robot opens its bus here

    def reset(self, seed: int) -> None:
        self._ticks = 0  # a real robot goes home, or waits until a person has set the scene up

    def read(self) -> Observation:
        picture = np.zeros((PIXELS, PIXELS, 3), np.uint8)
        picture[:, round(self._place / self.config.rail_m * (PIXELS - 1))] = 255
        now_ns = self.clock.now_ns()  # when each stream was captured: the gate refuses old ones
        state = np.array([self._place], np.float32)
        return Observation({"top": picture}, state, "drive", self._ticks, {"top": now_ns, "state": now_ns})

    def rest_command(self) -> Float32Array:
        return np.array([self._place], np.float32)

    def write(self, action: Float32Array) -> Float32Array:
        self._ticks += 1
        self._place = float(np.clip(action[0], 0.0, self.config.rail_m))
        return np.array([self._place], np.float32)

    @property
    def truncated(self) -> bool:
        return self._ticks >= self.config.duration_s * HZ

    def stop(self) -> None:
        """It stands where it stands; a real robot brakes."""

    def close(self) -> None:
        """Nothing is open."""


def set_up(request: RobotRequest) -> RobotSetup:
    """What ``--robot cart`` calls: options, a check against the policy, the robot, and the limits of its gate."""
    config = config_from_dict(CartConfig, dict(request.options), where="robot")
    check_fits(request.policy, ["top"], 1, 1, (Cart.state_dimensions, Cart.action_dimensions))
    limits = request.gate.filled(low=[0.0], high=[config.rail_m])  # those of --limits stay
    return RobotSetup(Cart(config, request.clock), SafetyGate(limits, HZ), Origin.SIM, "cart")
