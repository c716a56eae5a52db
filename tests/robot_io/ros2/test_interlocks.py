"""What keeps the robot still beside its own streams, over real topics: the dead-man, the service of the emergency stop,
the controllers' states; and the heartbeat that a watchdog in hardware listens to.
"""

from concurrent.futures import Future
from typing import Any

import pytest

from tests.fakes.ros2_rig import RMWS
from tests.fakes.ros2_scripts import begin_on_each

SCRIPT = """
import json, threading, time
from controller_manager_msgs.msg import ControllerManagerActivity, NamedLifecycleState
from lifecycle_msgs.msg import State
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool, Trigger
from robot_io.ros2 import qos
from tests.fakes.holding_rig import HoldingRig

DEADMAN_MS = 1000  # a busy machine misses 300 ms now and then
rig = HoldingRig(deadman_topic="deadman", deadman_timeout_ms=f"{DEADMAN_MS}.0", heartbeat_topic="heartbeat",
                 controllers="[arm_controller, arm_hardware]")
hand = rig.world.create_publisher(Bool, "deadman", 1)
manager = rig.world.create_publisher(ControllerManagerActivity, "/controller_manager/activity", qos.latched())
holding = threading.Event()
rig.world.create_timer(0.05, lambda: holding.is_set() and hand.publish(Bool(data=True)))
beats = []
rig.world.create_subscription(Bool, "heartbeat", lambda message: beats.append((time.monotonic(), message.data)), 10)


def controllers(**labels):
    told = [NamedLifecycleState(name=name, state=State(label=label)) for name, label in labels.items()]
    manager.publish(ControllerManagerActivity(controllers=told[:1], hardware_components=told[1:]))


def runs():
    # A busy machine may miss the dead-man for so long: the node rightly does not begin, or stops. A person re-arms it.
    if rig.stopped():
        rearmed()
    rig.trigger("start")
    rig.until(lambda: rig.node._standing_by == "", 2.0)
    time.sleep(0.6)
    return rig.node._standing_by == ""


def attempt(act, within_s=5.0):
    # Begin an attempt, let something happen in it, and say how long the node took to stop, and why.
    end_s = time.monotonic() + 20.0
    while not runs():
        assert time.monotonic() < end_s, rig.why
    before = len(beats)
    began_s = time.monotonic()
    act()
    latched = rig.until(lambda: rig.session.gate.latched, within_s)
    after_ms = (time.monotonic() - began_s) * 1e3
    stopped = rig.until(rig.stopped, 3.0) if latched else rig.stopped()
    said = {"stopped": stopped, "why": rig.why, "after_ms": after_ms, "beats": before}
    last = beats[-1][0] - began_s if beats else 0.0
    time.sleep(0.8)
    later = sum(at_s > began_s + after_ms / 1e3 + 0.3 for at_s, _ in beats)
    return said | {"last_beat_ms": last * 1e3, "beats_after": later}


def rearmed():
    holding.set()
    controllers(arm_controller="active", arm_hardware="active")
    time.sleep(0.3)
    return rig.trigger("rearm")


said = {"estop before configure": rig.trigger("estop")}
assert rig.transition("configure") and rig.transition("activate")
controllers(arm_controller="active", arm_hardware="active")
rig.trigger("start")
assert rig.until(rig.stopped)
said["start without the dead-man"] = rig.why
said["rearm"] = rearmed()
said["let go"] = attempt(lambda: (holding.clear(), hand.publish(Bool(data=False))))
time.sleep(0.3)
holding.set()
time.sleep(0.5)
said["held again"] = rig.stopped()
rearmed()
said["silent"] = attempt(holding.clear)
rearmed()
values = [value for _, value in beats]
said["beats alternate"] = all(a != b for a, b in zip(values, values[1:]))
said["taken over"] = attempt(lambda: (rig.call(SetBool, "takeover", SetBool.Request(data=True)), holding.clear()), 1.5)
rig.call(SetBool, "takeover", SetBool.Request(data=False))
assert rig.until(rig.stopped)
said["given back"] = rig.why
rearmed()
said["service"] = attempt(lambda: rig.trigger("estop"))
rig.trigger("start")
said["start after the service"] = rig.trigger("start")
said["rearm after the service"] = rearmed()
said["an attempt after the service"] = attempt(lambda: None, 1.0)
rig.trigger("discard")
assert rig.until(lambda: "~/start" in rig.node._standing_by)
said["controller"] = attempt(lambda: controllers(arm_controller="inactive", arm_hardware="active"))
rearmed()
said["hardware"] = attempt(lambda: controllers(arm_controller="active"))
rearmed()
said["manager gone"] = attempt(lambda: rig.world.destroy_publisher(manager))
print(json.dumps(said), flush=True)
rig.end()
"""


@pytest.fixture(scope="module")
def begun() -> dict[str, Future[Any]]:
    return begin_on_each(SCRIPT)


@pytest.fixture(scope="module", params=RMWS)
def said(begun: dict[str, Future[Any]], request: pytest.FixtureRequest) -> Any:
    return begun[request.param].result()


pytestmark = pytest.mark.slow  # test_node_refuses runs the same modules

LATE_MS = 500.0  # of a busy machine, and of whoever looks at the node


def test_nothing_begins_until_the_dead_man_is_held(said: dict[str, Any]) -> None:
    assert "dead-man" in said["start without the dead-man"]
    assert said["rearm"][0]


@pytest.mark.parametrize(("how", "declared_ms"), [("let go", 200.0), ("silent", 1000.0 + 200.0)])
def test_a_dead_man_that_is_let_go_latches_the_stop_in_time(how: str, declared_ms: float, said: dict[str, Any]) -> None:
    stop = said[how]
    assert stop["stopped"]
    assert "the dead-man on deadman was not held" in stop["why"]
    assert stop["after_ms"] <= declared_ms + LATE_MS
    if how == "silent":
        assert stop["after_ms"] >= 900.0, "a message that is only late does not stop it"


def test_holding_it_again_moves_nothing(said: dict[str, Any]) -> None:
    assert said["held again"] is True, "only a person re-arms"


def test_a_person_who_commands_needs_no_dead_man(said: dict[str, Any]) -> None:
    assert not said["taken over"]["stopped"]
    assert "dead-man" in said["given back"], "the policy does"


def test_the_heartbeat_changes_with_every_tick_until_the_stop(said: dict[str, Any]) -> None:
    assert said["beats alternate"]
    stop = said["silent"]
    assert stop["beats"] > 8, "twelve ticks of 50 ms"
    assert 0.0 < stop["last_beat_ms"] <= stop["after_ms"]
    assert stop["beats_after"] == 0


def test_the_service_stops_and_only_rearming_releases_it(said: dict[str, Any]) -> None:
    accepted, why = said["estop before configure"]
    assert not accepted
    assert "moves nothing" in why
    assert "~/estop was called" in said["service"]["why"]
    assert not said["start after the service"][0]
    assert said["rearm after the service"][0]
    assert not said["an attempt after the service"]["stopped"]


def test_controllers_that_are_not_active_stop_the_robot(said: dict[str, Any]) -> None:
    assert "arm_controller is inactive" in said["controller"]["why"]
    assert "arm_hardware is not known" in said["hardware"]["why"]
    assert "has no publisher: start the controller manager" in said["manager gone"]["why"]
