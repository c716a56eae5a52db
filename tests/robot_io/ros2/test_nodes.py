"""The node with the real rclpy, in processes of its own: lifecycle, the default task, takeover, a robot that dies."""

import json
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from benchmarks.ros2_trials import LIMITS
from tests.fakes.ros2_rig import RMWS, run_with_ros
from tests.fakes.ros2_scripts import begin_on_each, ros_or_skip, side_by_side
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.credit import ActorKind, CreditConfig, SegmentKind, assign, segments
from vla_rl.data.store import EpisodeStore

SMALL = {
    "env_options": {"difficulty": 0.3, "image_size": 32},
    "policy": "expert:sim:vla_rl/PegInsert-v0?difficulty=0.3&image_size=32",
}
SIMULATED = {"episodes": 6, "takeovers": 3}
REALTIME = {"lockstep": False, "episodes": 1, "kills": 1}
LIFECYCLE = ["unconfigured", "inactive", "active", "inactive", "unconfigured", "finalized"]

# Two joint drivers, of which the fast one speaks 50 times while the callbacks wait, and a robot that reads both.
BUSY = """
import json, time
import rclpy
from sensor_msgs.msg import JointState
from robot_io.ros2 import qos
from robot_io.ros2.operator import OperatorRequests
from robot_io.ros2.robot import Interface
from robot_io.ros2.wiring import Wiring
from vla_rl.acting.robots.ros2 import settings_from

rclpy.init()
node, drivers = rclpy.create_node("robot"), rclpy.create_node("drivers")
settings = settings_from({"joints": ["slow", "fast"], "cameras": []})
robot = Wiring(node, settings, Interface(20.0, None, silent_after_ms=1e4), OperatorRequests()).robot
publisher = drivers.create_publisher(JointState, "joint_states", qos.sensors())
while publisher.get_subscription_count() == 0:
    time.sleep(0.01)


def say(joint, position):
    message = JointState(name=[joint], position=[position])
    message.header.stamp = drivers.get_clock().now().to_msg()
    publisher.publish(message)


say("slow", 7.0)
for reading in range(50):
    say("fast", float(reading))
    time.sleep(0.001)
said_s = time.monotonic()
while robot.why() and time.monotonic() - said_s < 5.0:
    rclpy.spin_once(node, timeout_sec=0.1)
print(json.dumps(robot.why() or robot.read().state.tolist()))
rclpy.shutdown()
"""

Trials = dict[str, Any]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Future[Trials], EpisodeStore]]:
    """The trials, by their middleware."""
    trials = {}
    for rmw, config in zip(RMWS, (SIMULATED, REALTIME), strict=True):
        folder = tmp_path_factory.mktemp("trials")
        arguments = json.dumps({"folder": str(folder), **SMALL, **config})
        done = side_by_side.submit(run_with_ros, "benchmarks.ros2_trials", [arguments], ros_or_skip(rmw), 600.0)
        trials[rmw] = done, EpisodeStore(folder / "episodes")
    return trials


@pytest.fixture(scope="module")
def simulated(begun: dict[str, tuple[Future[Trials], EpisodeStore]]) -> tuple[Trials, EpisodeStore]:
    done, store = begun[RMWS[0]]
    return done.result(), store


@pytest.mark.slow
def test_the_lifecycle_is_walked_through_by_services(simulated: tuple[Trials, EpisodeStore]) -> None:
    assert simulated[0]["states"] == LIFECYCLE


@pytest.mark.slow
def test_the_default_task_is_solved_over_topics(simulated: tuple[Trials, EpisodeStore]) -> None:
    result, store = simulated
    assert result["episodes"]["successes"] >= 5
    episode = store.read(store.ids()[0]).validate()
    assert episode.origin is Origin.SIM
    assert sorted(episode.images) == ["front", "top"]
    steps = np.arange(len(episode)) * 50_000_000
    captured = episode.extras["captured_ns.state"] - episode.extras["captured_ns.state"][0]
    assert np.abs(captured - steps).max() <= 50_000_000, "header stamps are the capture times, a tick apart"


@pytest.mark.slow
def test_a_takeover_is_exact_to_the_tick_and_never_jumps(simulated: tuple[Trials, EpisodeStore]) -> None:
    result, store = simulated
    inside_a_chunk = []
    for takeover in result["takeovers"]:
        episode = store.read(takeover["episode_id"]).validate()
        first, after = takeover["first_human_tick"], takeover["first_policy_tick"]
        human = np.zeros(len(episode), bool)
        human[first:after] = True
        np.testing.assert_array_equal(episode.source == Source.HUMAN, human)
        inside_a_chunk.append(episode.extras["chunk_index"][first - 1] > 0)
        arms = [dim for dim in range(8) if dim not in LIMITS.discrete_dims]
        jumps = np.abs(np.diff(episode.action_sent[:, arms], axis=0))
        assert jumps.max() <= LIMITS.max_velocity[0] / episode.control_hz + 1e-6
        assert len(np.unique(episode.action_sent[first:after, 0])) > 3, "the person's commands were followed"
        assert episode.success is not None
        assert len(episode) > after, "the attempt is recorded to its end"
    assert any(inside_a_chunk), "the person comes when it pleases: once in three times in the middle of a chunk"


@pytest.mark.slow
def test_credit_of_an_attempt_with_a_takeover(simulated: tuple[Trials, EpisodeStore]) -> None:
    result, store = simulated
    takeover = result["takeovers"][0]
    first, after = takeover["first_human_tick"], takeover["first_policy_tick"]
    episode = store.read(takeover["episode_id"])
    credit = assign(episode.source, episode.success, episode.origin, CreditConfig())
    expected = [
        (SegmentKind.BEFORE_TAKEOVER, 0, first),
        (SegmentKind.INTERVENTION, first, after),
        (SegmentKind.SUFFIX, after, len(episode)),
    ]
    assert [(part.kind, part.start, part.stop) for part in segments(credit)] == expected
    assert not credit.viability_mask[:after].any(), "the outcome says nothing about the policy before the person came"
    assert (credit.actor_kind[first:after] == ActorKind.INTERVENTION).all()


@pytest.fixture(scope="module")
def realtime(begun: dict[str, tuple[Future[Trials], EpisodeStore]]) -> tuple[Trials, EpisodeStore]:
    done, store = begun[RMWS[1]]
    return done.result(), store


@pytest.mark.slow
def test_the_other_middleware_and_the_clock_of_the_machine(realtime: tuple[Trials, EpisodeStore]) -> None:
    result, store = realtime
    assert result["states"] == LIFECYCLE
    assert result["episodes"]["steps"] > 40
    episode: Episode = store.read(store.ids()[0]).validate()
    assert (np.diff(episode.extras["captured_ns.front"]) >= 0).all()


@pytest.mark.slow
def test_a_robot_whose_computer_is_gone_stops_the_node(realtime: tuple[Trials, EpisodeStore]) -> None:
    (trial,) = realtime[0]["kills"]
    assert trial["reaction_ms"] <= trial["declared_ms"]
    assert "silent for" in trial["said"]
    assert not trial["moved_after_fault"]
    assert trial["start_refused"]
    assert trial["still_until_rearmed"], "only a person re-arms"
    assert trial["rearmed"]


def test_a_fast_driver_does_not_push_the_readings_of_a_slow_one_out() -> None:
    assert {rmw: done.result() for rmw, done in begin_on_each(BUSY).items()} == {rmw: [7.0, 0.0] for rmw in RMWS}
