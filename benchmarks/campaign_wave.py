"""The campaign's robot in numbers, and a policy for it that always moves, and plans NaN when its picture is white."""

import numpy as np

from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import ActionChunk, Float32Array, Observation

WAVE, STEPS = "wave", "wave:delta"  # parameter policy; the second one plans steps
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
        """Plan a chunk of the wave."""
        del committed
        ticks = observation.tick + np.arange(HORIZON + 1)[:, None]
        targets = AMPLITUDE * np.sin(SPEED * ticks + np.arange(len(JOINTS)) + self._phase)
        actions = np.diff(targets, axis=0) if self._steps else targets[1:]
        if observation.images[CAMERA].mean() > WHITE:
            actions = np.full_like(actions, np.nan)
        return ActionChunk(actions.astype(np.float32), observation.tick, 0, self.version)


def wave_spec(steps: bool = False) -> PolicySpec:
    """What a policy of the campaign's robot is connected to."""
    size = len(JOINTS)
    return PolicySpec(
        env_id="campaign",
        cameras=(CAMERA,),
        image_size=(PICTURE, PICTURE),
        state_dim=size,
        action_dim=size,
        control_hz=HZ,
        delta_dims=tuple(range(size)) if steps else (),
    )
