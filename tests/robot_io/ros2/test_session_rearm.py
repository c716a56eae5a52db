"""What ~/rearm brings back: an inference process that hangs, one whose first restart fails, an attempt that found the
disk full. And whose label an attempt is stored with.
"""

from typing import Any

import pytest

from tests.fakes.ros2_scripts import ros_or_skip, said_by

pytestmark = pytest.mark.slow  # processes of their own

SCRIPT = """
import json, os, signal, time
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from robot_io.display import LoopStatistics
from robot_io.gate import GateConfig, SafetyGate
from robot_io.mock_robot import MockRobot, MockRobotConfig
from robot_io.ros2.operator import OperatorRequests
from tests.fakes.scheduled import ScheduledTakeover
from vla_rl.core.clock import MonotonicClock
from vla_rl.core.errors import UserError
from vla_rl.core.types import ActionChunk, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.strategies import execution_config
from vla_rl.acting import ros2_node
from vla_rl.acting.attempt import Attempts


class Still:
    version = 0
    def reset(self, seed): ...
    def infer(self, observation, committed=None):
        return ActionChunk(np.tile(observation.state, (8, 1)), observation.tick, 0, 0)


class HangsOnce(Still):
    asked = 0
    def infer(self, observation, committed=None):
        self.asked += 1
        hung = Path(__file__).with_name("hung")
        if self.asked > 4 and not hung.exists():
            hung.touch()
            time.sleep(3600.0)
        return super().infer(observation, committed)


class Fails:
    alive = False
    def __init__(self, *_): ...
    def __enter__(self):
        raise UserError("the inference process could not load the policy: CUDA out of memory")


def make_session(duration_s=1.0, **gate):
    session = ros2_node.PolicySession.__new__(ros2_node.PolicySession)
    config = MockRobotConfig(joints=2, control_hz=20.0, image_size=8, duration_s=duration_s)
    robot = MockRobot(config, clock=MonotonicClock())
    spec = SimpleNamespace(image_size=(8, 8), cameras=("front",), state_dim=2, action_dim=2)
    session._policy = SimpleNamespace(spec=spec, horizon=8, n_obs_steps=1)
    session.interface = SimpleNamespace(image_size=None)
    session._load_policy = Still
    session._execution = execution_config("naive", hold_ticks=10, cold_start_ticks=10)
    session._gate = SafetyGate(GateConfig(low=(-1.0,) * 2, high=(1.0,) * 2, max_velocity=(1.0,) * 2, **gate), 20.0)
    session._statistics, session._planner, session._silent = LoopStatistics(), None, False
    counting = [session._statistics]
    session._attempts = Attempts(robot, session._gate, Origin.REAL, "mock", counting, rearms=False)
    session._robot, session._takeover = SimpleNamespace(why=lambda: ""), ScheduledTakeover([], lambda *_: None)
    session._settings, session._store = {"realtime_priority": 0}, None
    session._operator, session._corrector, session._added = OperatorRequests(), None, ()
    session._unstored = None
    return session


def told(act):
    try:
        return act() or ""
    except UserError as error:
        return str(error)


def main():
    session = make_session()
    session._start_inference()
    said = {"first": session.attempt(0, lambda: None)}
    hangs = session._planner._process.pid
    os.kill(hangs, signal.SIGSTOP)
    said["hangs"] = session.attempt(1, lambda: None)
    session.rearm()
    said["armed again"] = session.attempt(2, lambda: None)
    os.kill(session._planner._process.pid, signal.SIGKILL)
    session._planner._process.join()
    works, ros2_node.ProcessPlanner = ros2_node.ProcessPlanner, Fails
    said["restart"] = told(session.rearm)
    ros2_node.ProcessPlanner = works
    session.rearm()
    said["another"] = session.attempt(3, lambda: None)

    def full(_):
        raise OSError(28, "No space left on device")

    store = session._store = EpisodeStore(Path(__file__).with_name("store"))
    session._operator = OperatorRequests()

    def begun_and_labeled():
        session._operator.begin()
        session._operator.label(True)

    ros2_node._episode_id = lambda: "ros2-of-one-name"
    fsync, os.fsync = os.fsync, full
    said["full"] = told(lambda: session.attempt(4, begun_and_labeled))
    said["still full"] = told(session.rearm)
    os.fsync = fsync
    session.rearm()
    session.rearm()
    said["stored"] = store.ids()
    said["refused"] = told(lambda: session.attempt(5, begun_and_labeled))
    said["after a refusal"] = told(session.rearm)

    class Slow(EpisodeStore):
        def add(self, episode):
            said["late label"] = told(lambda: session._operator.label(False))
            said["late discard"] = told(session._operator.discard)
            super().add(episode)

    session._store = Slow(store.path)
    ros2_node._episode_id = lambda: "ros2-labeled-twice"
    session.attempt(6, begun_and_labeled)
    said["stored as"] = store.read("ros2-labeled-twice").success
    session._stop_inference()

    session = make_session(3.0, max_action_age_ms=600.0, stop_after_ms=50.0)  # the gate is faster than the executor
    session._load_policy = HangsOnce
    session._start_inference()
    said["hangs on the way"] = session.attempt(7, lambda: None)
    session.rearm()
    said["of the gate"] = session.attempt(8, lambda: None)
    session._stop_inference()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("session") / "session_script.py"  # its policy is made in another process
    file.write_text(SCRIPT)
    start = "import runpy, sys; sys.path.insert(0, sys.argv[1]); import session_script; session_script.main()"
    return said_by(start, str(file.parent), environment=ros_or_skip())


def test_a_policy_that_hangs_is_brought_back(said: dict[str, Any]) -> None:
    assert said["first"] == ""
    assert "no plan in time" in said["hangs"]
    assert said["armed again"] == ""
    assert "ACTION_STALE" in said["hangs on the way"]
    assert said["of the gate"] == ""


def test_a_restart_that_failed_can_be_tried_again(said: dict[str, Any]) -> None:
    assert "out of memory" in said["restart"]
    assert said["another"] == ""


def test_an_attempt_that_found_the_disk_full_is_stored_before_anything_moves_again(said: dict[str, Any]) -> None:
    assert "No space left" in said["full"]
    assert "the last attempt is not stored" in said["still full"]
    assert "No space left on device; make room" in said["still full"]
    assert said["stored"] == ["ros2-of-one-name"]


def test_a_label_that_comes_while_the_attempt_is_stored_is_refused_and_not_lost(said: dict[str, Any]) -> None:
    assert "no attempt that could be labeled" in said["late label"]
    assert "no attempt that could be labeled" in said["late discard"]
    assert said["stored as"] is True


def test_an_attempt_that_no_store_takes_does_not_keep_the_node_from_being_armed(said: dict[str, Any]) -> None:
    assert "already has an episode" in said["refused"]
    assert said["after a refusal"] == ""
