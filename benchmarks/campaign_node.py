"""The policy node, which also takes the policies of `benchmarks.campaign`: ``wave``, and ``wave:delta``, whose actions
are steps. Everything else is the product's.
"""

import functools
import sys
from pathlib import Path

from benchmarks.campaign_wave import HORIZON, STEPS, WAVE, WavePolicy, wave_spec
from robot_io.ros2.node import run_node
from robot_io.ros2.operator import OperatorRequests
from robot_io.ros2.parameters import Settings
from vla_rl.acting import ros2_node
from vla_rl.acting.policy_folder import PolicyFolder


def make_session(settings: Settings, operator: OperatorRequests) -> ros2_node.PolicySession:
    """The session of the wave, or of any other policy."""
    if settings["policy"] not in (WAVE, STEPS):
        return ros2_node.make_session(settings, operator)
    steps = settings["policy"] == STEPS
    folder = PolicyFolder(path=Path(), spec=wave_spec(steps), horizon=HORIZON, discrete_dims=(), version=0)
    return ros2_node.PolicySession(settings, operator, folder, functools.partial(WavePolicy, steps))


if __name__ == "__main__":
    sys.exit(run_node(make_session))
