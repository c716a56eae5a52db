"""What a node lives through: figures for /diagnostics that cannot be had when an attempt ends."""

import pytest

from tests.fakes.ros2_scripts import ros_or_skip, said_by

pytestmark = pytest.mark.slow  # a process of its own

SCRIPT = """
import json, time
from tests.fakes.holding_rig import HoldingRig

rig = HoldingRig()
acting = lambda: rig.node._wiring.robot.acting
assert rig.transition("configure") and rig.transition("activate") and rig.trigger("start")[0]
assert rig.until(acting)
health = rig.session.health


def fails():
    raise RuntimeError("no figures")


rig.session.health = fails
rig.trigger("success")
said = {"ended": rig.until(lambda: "~/start" in rig.node._standing_by)}
rig.session.health = health
said["start"] = rig.trigger("start")
said["acts"] = rig.until(acting)
print(json.dumps(said), flush=True)
rig.end()
"""


def test_an_attempt_whose_figures_cannot_be_had_is_followed_by_the_next() -> None:
    said = said_by(SCRIPT, environment=ros_or_skip())
    assert said["ended"]
    assert said["start"][0], said["start"]
    assert said["acts"]
