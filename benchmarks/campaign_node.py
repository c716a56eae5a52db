"""The policy node with a policy that always moves, and plans NaN when its picture is white: for `benchmarks.campaign`.

``policy`` is ``wave``, or ``wave:delta`` for a policy whose actions are steps. Everything else is the product's.
"""

import functools
import sys
from pathlib import Path

import numpy as np

from robot_io.ros2.node import run_node
from robot_io.ros2.operator import OperatorDesk
from robot_io.ros2.parameters import Settings
from vla_rl.core.types import ActionChunk, Float32Array, Observation, PolicySpec
from vla_rl.runs.policy_folder import PolicyFolder
from vla_rl.runs.ros2_node import PolicySession

JOINTS = ("shoulder", "elbow", "wrist")
CAMERA, PICTURE = "front", 16
HORIZON, HZ = 16, 20.0
AMPLITUDE, SPEED = 0.5, 0.15  # radians; radians a tick
WHITE = 250


class WavePolicy:
    """Waves the joints, each a little behind the one before."""

    version = 0

    def __init__(self, steps: bool = False) -> None:
        self._steps = steps

    def reset(self, seed: int) -> None:
        """The seed is the phase."""
        self._phase = 0.7 * seed

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """See `vla_rl.core.protocols.Policy.infer`."""
        del committed
        ticks = observation.tick + np.arange(HORIZON + 1)[:, None]
        targets = AMPLITUDE * np.sin(SPEED * ticks + np.arange(len(JOINTS)) + self._phase)
        actions = np.diff(targets, axis=0) if self._steps else targets[1:]
        if observation.images[CAMERA].mean() > WHITE:
            actions = np.full_like(actions, np.nan)
        return ActionChunk(actions.astype(np.float32), observation.tick, 0, self.version)


def make_session(settings: Settings, desk: OperatorDesk) -> PolicySession:
    """The session of the wave."""
    steps = settings["policy"] == "wave:delta"
    spec = PolicySpec(
        env_id="campaign",
        cameras=(CAMERA,),
        image_size=(PICTURE, PICTURE),
        state_dim=len(JOINTS),
        action_dim=len(JOINTS),
        control_hz=HZ,
        delta_dims=tuple(range(len(JOINTS))) if steps else (),
    )
    folder = PolicyFolder(path=Path(), spec=spec, horizon=HORIZON, discrete_dims=(), version=0)
    return PolicySession(settings, desk, folder, functools.partial(WavePolicy, steps))


if __name__ == "__main__":
    sys.exit(run_node(make_session))
