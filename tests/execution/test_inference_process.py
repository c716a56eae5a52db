"""Inference in another process: the same plans, no plan of an earlier attempt, and no harm when it fails or dies."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest
from toys import ReachPolicy

from robot_io.gate import GateConfig, SafetyGate
from robot_io.mock_robot import MockRobot, MockRobotConfig
from vla_rl.core.clock import MonotonicClock
from vla_rl.core.errors import UserError
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.execution.executor import Executor
from vla_rl.execution.inference_process import MessageLayout, ProcessPlanner
from vla_rl.execution.loop import run_episode
from vla_rl.execution.mailbox import Arrays, Mailbox
from vla_rl.execution.plan import Plan, PlanRequest
from vla_rl.execution.realtime import RealtimeConfig, realtime
from vla_rl.execution.strategies import ExecutionConfig, execution_config, make_strategy

CONFIG = execution_config("xiaomi", max_prefix_ticks=5)
LAYOUT = MessageLayout((("front", 4, 6), ("top", 2, 2)), 4, 2, max_horizon=20)


class ReportingPolicy(ReachPolicy):
    """Puts what it was given into its actions; can be told to fail, to be slow, or to plan too much by the state."""

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        command = observation.state[3]
        if command == 1:
            raise ValueError(f"bad task {observation.task!r}")
        if command == 2:
            time.sleep(1.0)
        chunk = super().infer(observation, committed)
        actions = chunk.actions.copy()
        actions[-1, 0] = observation.images["front"].sum() + 10 * observation.images["top"].sum()
        actions[-1, 1] = self._seed
        if command == 3:
            actions = np.tile(actions, (2, 1))
        if command == 4:
            actions = actions[:, :1]
        if command == 5:
            actions = actions[0]
        return replace(chunk, actions=actions)


def make_request(request_id: int, command: int = 0, tick: int = 0) -> PlanRequest:
    images = {"front": np.full((4, 6, 3), 1, np.uint8), "top": np.full((2, 2, 3), 2, np.uint8)}
    state = np.array([0.1, 0.2, 0.3, command], np.float32)
    observation = Observation(images, state, "grüße den Würfel", tick, {"front": 1, "top": 2, "state": 3})
    scheduled = np.arange(8, dtype=np.float32).reshape(4, 2)
    return PlanRequest(request_id, observation, scheduled, 3, np.zeros(2, np.float32))


def await_plans(planner: ProcessPlanner, timeout_s: float = 60.0) -> list[Plan]:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if plans := planner.poll():
            return plans
        time.sleep(0.002)
    return []


@pytest.fixture(scope="module")
def planner() -> Iterator[ProcessPlanner]:
    with ProcessPlanner(ReportingPolicy, LAYOUT, CONFIG) as running:
        yield running


STRATEGY = make_strategy(CONFIG)


def test_a_plan_is_the_same_as_in_this_process(planner: ProcessPlanner) -> None:
    planner.reset(42)
    request = make_request(0, tick=17)
    planner.request(request, STRATEGY)
    (plan,) = await_plans(planner)
    policy = ReportingPolicy()
    policy.reset(42)
    expected = STRATEGY.infer(policy, request)
    assert plan.request is request
    np.testing.assert_array_equal(plan.chunk.actions, expected.actions)
    np.testing.assert_array_equal(plan.chunk.actions[:3], request.scheduled[:3])
    assert (plan.chunk.start_tick, plan.chunk.policy_version) == (17, 3)


class Remembering(ReachPolicy):
    """Says which observations it was given."""

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        rows = [[each.state[0], each.images["front"][0, 0, 0]] for each in (*observation.past, observation)]
        return ActionChunk(np.array(rows, np.float32), observation.tick, 0, 0)


def test_earlier_observations_reach_the_process() -> None:
    newest = make_request(0, tick=9).observation
    past = tuple(
        replace(
            newest, state=newest.state + index, images={name: image + index for name, image in newest.images.items()}
        )
        for index in (np.uint8(7), np.uint8(8))
    )
    asked = replace(make_request(0), observation=replace(newest, past=past))
    with ProcessPlanner(Remembering, replace(LAYOUT, n_obs_steps=3), CONFIG) as planner:
        planner.reset(0)
        planner.request(asked, make_strategy(execution_config("naive")))
        (plan,) = await_plans(planner)
    assert plan.chunk is not None
    np.testing.assert_allclose(plan.chunk.actions, [[7.1, 8], [8.1, 9], [0.1, 1]], rtol=1e-6)


@pytest.mark.parametrize(
    ("task", "past", "message"),
    [
        ("ä" * 513, 0, "a task of 1026 bytes; the inference process reads 1024"),
        ("reach", 1, "the policy reads 1 observations, found are 2"),
    ],
)
def test_what_the_message_cannot_hold_is_refused(planner: ProcessPlanner, task: str, past: int, message: str) -> None:
    planner.reset(0)
    request = make_request(0)
    observation = replace(request.observation, task=task, past=(request.observation,) * past)
    with pytest.raises(UserError, match=message):
        planner.request(replace(request, observation=observation), STRATEGY)


def test_a_reset_discards_the_plan_in_flight_and_seeds_the_next(planner: ProcessPlanner) -> None:
    planner.reset(1)
    planner.request(make_request(0, command=2), STRATEGY)
    planner.reset(2)
    planner.request(make_request(0), STRATEGY)
    plans = await_plans(planner)
    assert [plan.chunk.actions[-1, 1] for plan in plans] == [2.0], "the plan of the first attempt never appears"
    time.sleep(0.05)
    assert planner.poll() == []


def test_the_latest_request_wins(planner: ProcessPlanner) -> None:
    planner.reset(0)
    planner.request(make_request(0, command=2), STRATEGY)
    time.sleep(0.1)
    for request_id in range(1, 5):
        planner.request(make_request(request_id), STRATEGY)
    answered = []
    while not answered or answered[-1] != 4:
        answered += [plan.request.request_id for plan in await_plans(planner)]
    assert set(answered) <= {0, 4}, "those between were replaced before they were read"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (1, "bad task 'grüße den Würfel'"),
        (3, "the mailbox holds 20"),
        (4, "actions of shape [16, 1]; this robot takes [H >= 1, 2]"),
        (5, "actions of shape [2]; this robot takes [H >= 1, 2]"),
    ],
)
def test_a_policy_that_raises_gives_no_plan_and_goes_on(planner: ProcessPlanner, command: int, message: str) -> None:
    planner.reset(0)
    planner.request(make_request(0, command), STRATEGY)
    assert [plan.chunk for plan in await_plans(planner)] == [None]
    assert planner.last_error is not None
    assert message in planner.last_error
    planner.request(make_request(1), STRATEGY)
    assert len(await_plans(planner)) == 1


class UnluckyPolicy(ReportingPolicy):
    """Cannot begin with the seed 13 at first, as one that finds no memory left."""

    tries = 0

    def reset(self, seed: int) -> None:
        self.tries += seed == 13
        if self.tries == 1:
            raise MemoryError("out of memory at seed 13")
        super().reset(seed)


def test_a_policy_that_cannot_begin_an_attempt_says_why_and_never_acts_as_in_the_one_before() -> None:
    with ProcessPlanner(UnluckyPolicy, LAYOUT, CONFIG) as planner:
        planner.reset(13)
        planner.request(make_request(0), STRATEGY)
        assert [plan.chunk for plan in await_plans(planner)] == [None]
        assert planner.last_error == "MemoryError: out of memory at seed 13"
        planner.request(make_request(1), STRATEGY)
        (plan,) = await_plans(planner)
        assert plan.chunk.actions[-1, 1] == 13.0


def test_the_world_cannot_be_frozen(planner: ProcessPlanner) -> None:
    with pytest.raises(UserError, match=r"use execution\.sync_pause 'hold'"):
        planner.wait()


def load_nothing() -> ReportingPolicy:
    raise FileNotFoundError("no policy in runs/x")


def test_a_policy_that_cannot_be_loaded_is_one_clear_error() -> None:
    with pytest.raises(UserError, match="could not load the policy: FileNotFoundError: no policy in runs/x"):
        ProcessPlanner(load_nothing, LAYOUT, CONFIG).__enter__()


def test_what_a_policy_said_as_its_process_died_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = ProcessPlanner(load_nothing, LAYOUT, CONFIG)
    take = Mailbox.take

    def take_before_it_died(mailbox: Mailbox) -> Arrays | None:
        message = take(mailbox)
        planner._process.join()  # it writes why, and ends, after this look and before the next
        return message

    monkeypatch.setattr(Mailbox, "take", take_before_it_died)
    with pytest.raises(UserError, match="could not load the policy: FileNotFoundError: no policy in runs/x"):
        planner.__enter__()


def die_while_loading() -> ReportingPolicy:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it was killed")


def test_a_process_that_died_without_a_word_is_named() -> None:
    with pytest.raises(UserError, match=r"died while loading \(exit code -9\)"):
        ProcessPlanner(die_while_loading, LAYOUT, CONFIG).__enter__()


@pytest.mark.parametrize(
    ("images", "state", "message"),
    [
        ({"top": (2, 2, 3)}, 4, "no camera 'front'. Known: top"),
        ({"frnt": (4, 6, 3), "top": (2, 2, 3)}, 4, "no camera 'front'. Did you mean 'frnt'"),
        (
            {"front": (4, 1, 3), "top": (2, 2, 3)},
            4,
            r"camera 'front' gives uint8 \[4, 1, 3\], the policy takes uint8 \[4,",
        ),
        ({"front": (48, 64, 3), "top": (2, 2, 3)}, 4, "set the robot's image size"),
        ({"front": (4, 6, 3), "top": (2, 2, 3)}, 1, r"the robot's state is \[1\], the policy takes \[4\]"),
        ({"front": (4, 6, 3), "top": (2, 2, 3)}, 12, r"the robot's state is \[12\]"),
    ],
)
def test_another_robot_is_refused_before_it_moves(
    planner: ProcessPlanner, images: dict[str, tuple[int, ...]], state: int, message: str
) -> None:
    planner.reset(0)
    request = make_request(0)
    planner.request(request, STRATEGY)
    await_plans(planner)  # what it asked for must not stand in for what the next observation lacks
    pictures = {name: np.zeros(shape, np.uint8) for name, shape in images.items()}
    observation = replace(request.observation, images=pictures, state=np.zeros(state, np.float32))
    with pytest.raises(UserError, match=message):
        planner.request(replace(request, request_id=1, observation=observation), STRATEGY)
    assert await_plans(planner, timeout_s=0.1) == []


def test_a_camera_that_the_policy_does_not_know_stays_here(planner: ProcessPlanner) -> None:
    planner.reset(0)
    request = make_request(0)
    images = {**request.observation.images, "wrist": np.zeros((48, 64, 3), np.uint8)}
    planner.request(replace(request, observation=replace(request.observation, images=images)), STRATEGY)
    assert len(await_plans(planner)) == 1


class JointPolicy:
    """Moves the mock robot's joints slowly."""

    version = 1

    def __init__(self, work_s: float) -> None:
        self._work_s = work_s

    def reset(self, seed: int) -> None: ...

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        time.sleep(self._work_s)
        actions = observation.state + 0.01 * np.arange(16, dtype=np.float32)[:, None]
        return ActionChunk(actions, observation.tick, 0, 1)


def test_a_robot_in_real_time_goes_on_through_inference_and_stops_when_it_is_killed() -> None:
    robot = MockRobot(MockRobotConfig(joints=2, control_hz=100.0, image_size=8, duration_s=0.6), clock=MonotonicClock())
    layout = MessageLayout.of(robot.read(), action_size=2)
    limits = GateConfig(low=(-3.0, -3.0), high=(3.0, 3.0), max_velocity=(2.0, 2.0))
    config = ExecutionConfig(execute_ticks=5, hold_ticks=1000)
    with ProcessPlanner(partial(JointPolicy, 0.03), layout, config) as planner:
        executor = Executor(planner, config)
        with realtime(RealtimeConfig(priority=0)) as granted:
            summary = run_episode(robot, executor, SafetyGate(limits, 100.0), seed=0)
        assert not granted.fifo
        assert not summary.stopped
        assert summary.ticks + summary.missed_ticks >= 60
        assert summary.held_ticks < summary.ticks
        planner._process.kill()
        planner._process.join()
        with pytest.raises(UserError, match="the inference process died"):
            run_episode(robot, executor, SafetyGate(limits, 100.0), seed=1)
        assert robot.stopped_ns is None, "it has not begun to move"


class DyingPolicy(JointPolicy):
    """Kills its own process after some ticks."""

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        if observation.tick > 15:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().infer(observation, committed)


def test_inference_that_dies_while_the_robot_moves_stops_it_in_time() -> None:
    robot = MockRobot(MockRobotConfig(joints=2, control_hz=100.0, image_size=8, duration_s=30), clock=MonotonicClock())
    layout = MessageLayout.of(robot.read(), action_size=2)
    limits = GateConfig(low=(-3.0, -3.0), high=(3.0, 3.0), max_velocity=(2.0, 2.0))
    config = ExecutionConfig(execute_ticks=5, hold_ticks=20)
    with ProcessPlanner(partial(DyingPolicy, 0.01), layout, config) as planner:
        summary = run_episode(robot, Executor(planner, config), SafetyGate(limits, 100.0), seed=0)
    assert summary.stopped
    assert robot.stopped_ns is not None


def test_no_shared_memory_is_left_behind() -> None:
    with ProcessPlanner(ReportingPolicy, LAYOUT, CONFIG) as planner:
        names = [planner._requests.name, planner._answers.name]
    for name in names:
        with pytest.raises(FileNotFoundError):
            SharedMemory(name)


def test_the_control_process_needs_no_torch() -> None:
    code = (
        "import sys, vla_rl.execution.inference_process, vla_rl.execution.loop, vla_rl.execution.realtime, "
        "robot_io.gate, robot_io.recorder, robot_io.takeover; sys.exit('torch' in sys.modules)"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
