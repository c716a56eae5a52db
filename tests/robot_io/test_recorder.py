"""The recorder keeps every step of every attempt, however it ends."""

import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_io.gate import GateConfig, SafetyGate
from robot_io.mock_robot import MockRobot, MockRobotConfig
from robot_io.recorder import Recorder
from tests.fakes.failing_robot import FailingRobot, MockFaults
from vla_rl.acting.attempt import Attempts
from vla_rl.core.errors import UserError
from vla_rl.core.types import Episode, Float32Array, Observation, Origin, Source, Step
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.loop import run_episode
from vla_rl.execution.sources import Demonstrator


class Listener:
    """Keeps the episodes that it is told of."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []

    def on_step(self, step: Step) -> None: ...

    def on_episode(self, episode: Episode) -> None:
        self.episodes.append(episode.validate())

    def on_metrics(self, metrics: Mapping[str, Any]) -> None: ...


def make_step(index: int, last: bool = False, size: int = 4, success: bool | None = None) -> Step:
    image = np.full((size, size, 3), index % 256, np.uint8)
    state = np.full(3, index, np.float32)
    observation = Observation({"front": image}, state, "task", index, {"front": 10 * index, "state": 10 * index + 1})
    return Step(
        observation,
        state[:2] + 1,
        state[:2] + 2,
        Source(index % 4),
        truncated=last,
        success=success,
        extras={"chunk_id": index // 8, "action_age_ms": index * 0.5},
    )


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(Origin.REAL, "arm", 30.0, [Listener()])


def listener(recorder: Recorder) -> Listener:
    (only,) = recorder._listeners
    assert isinstance(only, Listener)
    return only


@pytest.mark.parametrize("length", [1, 1000])
def test_columns_are_the_steps(recorder: Recorder, length: int) -> None:
    recorder.begin("a", 5, 9)
    for index in range(length):
        recorder.on_step(make_step(index, last=index == length - 1, success=True))
    (episode,) = listener(recorder).episodes
    index = np.arange(length)
    assert len(episode) == length
    np.testing.assert_array_equal(episode.images["front"][:, 0, 0, 0], index % 256)
    np.testing.assert_array_equal(episode.state[:, 2], index)
    np.testing.assert_array_equal(episode.action_policy[:, 1], index + 1)
    np.testing.assert_array_equal(episode.action_sent[:, 0], index + 2)
    np.testing.assert_array_equal(episode.source, index % 4)
    np.testing.assert_array_equal(episode.extras["chunk_id"], index // 8)
    np.testing.assert_array_equal(episode.extras["action_age_ms"], (index * 0.5).astype(np.float32))
    np.testing.assert_array_equal(episode.extras["captured_ns.front"], 10 * index)
    np.testing.assert_array_equal(episode.extras["captured_ns.state"], 10 * index + 1)
    assert (episode.success, episode.terminated, episode.seed, episode.policy_version) == (True, False, 5, 9)
    assert (episode.env_id, episode.control_hz, episode.origin) == ("arm", 30.0, Origin.REAL)


@pytest.mark.parametrize("length", [1, 4, 5, 6, 10, 23])
def test_pictures_are_the_steps_to_the_byte(recorder: Recorder, length: int) -> None:
    """Five pictures of this size are one block of memory; the second attempt finds the blocks of the first."""
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        pictures = random.integers(0, 256, (length, 256, 256, 3), np.uint8)
        recorder.begin(name, 0, 0)
        for index, picture in enumerate(pictures):
            step = make_step(index, last=index == length - 1)
            recorder.on_step(replace(step, observation=replace(step.observation, images={"front": picture})))
        assert recorder.episode is not None
        assert recorder.episode.images["front"].tobytes() == pictures.tobytes()
        assert recorder.episode.images["front"].dtype == np.uint8


def test_no_step_copies_more_than_its_own_row(recorder: Recorder) -> None:
    """A step takes new memory for one block at most, however many rows there are."""
    recorder.begin("a", 0, 0)
    recorder.on_step(make_step(0, size=64))
    steps = [make_step(index, size=64) for index in range(1, 600)]  # 7 MB of pictures
    worst = 0
    tracemalloc.start()
    for step in steps:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        recorder.on_step(step)
        worst = max(worst, tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    assert worst < 1.2e6


@pytest.mark.parametrize("faults", [MockFaults(), MockFaults(camera_dies_s=1.0)])
def test_an_episode_is_put_together_when_the_robot_has_stopped(faults: MockFaults) -> None:
    robot = FailingRobot(faults)
    stopped_ns: list[int | None] = []

    class Looks(Listener):
        def on_episode(self, episode: Episode) -> None:
            stopped_ns.append(robot.stopped_ns)

    recorder = Recorder(Origin.REAL, "mock", robot.control_hz, [Looks()])
    recorder.begin("a", 0, 0)
    gate = SafetyGate(GateConfig(low=(-1.0,) * 6, high=(1.0,) * 6, max_velocity=(1.0,) * 6), robot.control_hz)
    target = np.ones(6, np.float32)
    summary = run_episode(robot, Demonstrator(lambda: (target, target)), gate, seed=0, subscribers=[recorder])
    assert summary.stopped == gate.latched == (faults != MockFaults())
    assert stopped_ns == [robot.stopped_ns]
    assert stopped_ns[0] is not None


def test_an_episode_does_not_change_when_the_next_is_recorded(recorder: Recorder) -> None:
    for name, offset in [("a", 0), ("b", 100)]:
        recorder.begin(name, 0, 0)
        for index in range(10):
            recorder.on_step(make_step(index + offset, last=index == 9))
    first, second = listener(recorder).episodes
    np.testing.assert_array_equal(first.state[:, 0], np.arange(10))
    np.testing.assert_array_equal(second.state[:, 0], np.arange(100, 110))


def test_a_broken_off_attempt_is_recorded_by_finish(recorder: Recorder) -> None:
    recorder.begin("a", 0, 0)
    for index in range(5):
        recorder.on_step(make_step(index))
    assert recorder.episode is None
    episode = recorder.finish(success=False)
    assert episode is not None
    assert len(listener(recorder).episodes[0]) == 5
    assert episode.success is False
    assert recorder.finish() is None, "there is nothing left to finish"


def test_beginning_anew_drops_what_was_not_finished(recorder: Recorder) -> None:
    recorder.begin("a", 0, 0)
    recorder.on_step(make_step(0))
    recorder.begin("b", 0, 0)
    assert recorder.finish() is None
    assert listener(recorder).episodes == []


def test_images_of_another_size_make_new_columns(recorder: Recorder) -> None:
    for size in (4, 8, 4):
        recorder.begin(f"size-{size}", 0, 0)
        recorder.on_step(make_step(0, last=True, size=size))
    assert [len(episode.images["front"][0]) for episode in listener(recorder).episodes] == [4, 8, 4]


def test_an_attempt_of_a_policy_that_said_nan_is_kept(recorder: Recorder) -> None:
    recorder.begin("a", 0, 0)
    for index in range(3):
        step = make_step(index, last=index == 2)
        if index == 1:
            step = replace(step, action_policy=np.array([np.nan, 1], np.float32))
        recorder.on_step(step)
    (episode,) = listener(recorder).episodes
    np.testing.assert_array_equal(episode.action_policy[:, 0], [1, 3, 3], "the command that was sent stands for it")


def test_a_step_before_begin_is_an_error(recorder: Recorder) -> None:
    with pytest.raises(UserError, match=r"before begin\(\)"):
        recorder.on_step(make_step(0))


class Interrupted(list[object]):
    """A column of numbers; Ctrl-C arrives at its 21st row."""

    def append(self, value: object) -> None:
        if len(self) == 20:
            raise KeyboardInterrupt
        super().append(value)


def test_an_attempt_that_ctrl_c_ends_within_a_row_is_stored(tmp_path: Path) -> None:
    store, robot = EpisodeStore(tmp_path), MockRobot(MockRobotConfig(joints=2, control_hz=20.0))
    gate = SafetyGate(GateConfig(low=(-1.0,) * 2, high=(1.0,) * 2, max_velocity=(1.0,) * 2), 20.0)
    attempts = Attempts(robot, gate, Origin.REAL, "mock")
    still, ticks = np.zeros(2, np.float32), [0]

    def act() -> tuple[Float32Array, Float32Array]:
        ticks[0] += 1
        if ticks[0] == 2:
            extras = attempts._recorder._extras
            extras["chunk_index"] = Interrupted(extras["chunk_index"])
        return still, still

    with pytest.raises(KeyboardInterrupt):
        attempts.run(Demonstrator(act), "attempt-000000", 0, -1, keep=store.add)
    assert len(store.read("attempt-000000")) == 20


def test_who_is_told_of_the_steps_of_an_attempt_is_told_of_its_episode() -> None:
    robot, told = MockRobot(MockRobotConfig(joints=2, control_hz=20.0, duration_s=0.2)), Listener()
    gate = SafetyGate(GateConfig(low=(-1.0,) * 2, high=(1.0,) * 2, max_velocity=(1.0,) * 2), 20.0)
    still = np.zeros(2, np.float32)
    attempt = Attempts(robot, gate, Origin.REAL, "mock", [told]).run(Demonstrator(lambda: (still, still)), "a", 0, -1)
    assert told.episodes == [attempt.episode]


@pytest.mark.parametrize("state", [np.zeros(2, np.float32), np.full(3, np.nan, np.float32)])
def test_half_an_observation_after_the_end_costs_no_episode(recorder: Recorder, state: Float32Array) -> None:
    recorder.begin("a", 5, 9)
    last = make_step(0, last=True)
    recorder.on_step(replace(last, final=replace(last.observation, state=state)))
    (episode,) = listener(recorder).episodes
    assert episode.final_state is None


def test_a_robot_that_cannot_be_read_after_the_end_costs_no_episode(caplog: pytest.LogCaptureFixture) -> None:
    class Unplugged(MockRobot):
        def read(self) -> Observation:
            if self.stopped_after is not None:
                raise UserError("the arm cannot be read")
            return super().read()

    robot = Unplugged(MockRobotConfig(joints=2, control_hz=20.0, duration_s=0.2))
    gate = SafetyGate(GateConfig(low=(-1.0,) * 2, high=(1.0,) * 2, max_velocity=(1.0,) * 2), 20.0)
    still = np.zeros(2, np.float32)
    attempt = Attempts(robot, gate, Origin.REAL, "mock").run(Demonstrator(lambda: (still, still)), "a", 0, -1)
    assert attempt.episode.final_state is None
    assert "the arm cannot be read" in caplog.text
