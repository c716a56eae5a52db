"""A policy on a robot with the same joints in another order and unit: states go in, chunks come out."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from robot_io.gate import GateConfig, SafetyGate
from robot_io.mock_robot import MockRobot, MockRobotConfig
from robot_io.recorder import Recorder
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.robot_matching import match_robot
from vla_rl.core.types import ActionChunk, Float32Array, Observation, Origin
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import run_episode
from vla_rl.execution.matched import matched_corrector, matched_loader
from vla_rl.execution.plan import InlinePlanner
from vla_rl.execution.strategies import execution_config
from vla_rl.execution.strategies.rtc import GuidedPolicy

POLICY = Dimensions(("a", "b", "c"), ("rad", "rad", "m"))
ROBOT = Dimensions(("c", "a", "b"), ("mm", "deg", "rad"))
TO_ROBOT = np.array([1000.0, 180 / np.pi, 1.0])
SPEC = PolicySpec("arm", (), (8, 8), 3, 3, dimensions=((POLICY, POLICY),))
FOUND = match_robot(SPEC, 3, (ROBOT, ROBOT))


class Follower:
    """Plans the state that it is shown, a little further each tick; remembers what it is given."""

    def __init__(self) -> None:
        self.version, self.seed = 4, -1
        self.given: list[Any] = []

    def reset(self, seed: int) -> None:
        self.seed = seed

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        self.given.append(committed)
        steps = np.arange(4, dtype=np.float32)[:, None] * np.array([0.01, 0.02, 0.03], np.float32)
        return ActionChunk(observation.state + steps, observation.tick, 0, self.version)


class Guided(Follower):
    def infer_guided(
        self, observation: Observation, previous: Float32Array, delay_ticks: int, exact_gradient: bool
    ) -> ActionChunk:
        self.given.append((previous, delay_ticks, exact_gradient))
        return self.infer(observation)


def robots(policys: Sequence[float]) -> Float32Array:
    """The policy's numbers in the robot's order and units."""
    return (np.asarray(policys)[[2, 0, 1]] * TO_ROBOT).astype(np.float32)


def loaded(make: Callable[[], Any]) -> tuple[Any, Any]:
    inner = make()
    return inner, matched_loader(lambda: inner, FOUND)()


def test_states_and_chunks_are_reordered_and_converted() -> None:
    inner, policy = loaded(Follower)
    policy.reset(7)
    chunk = policy.infer(Observation({}, robots([0.1, 0.2, 0.3]), "", 5), robots([0.4, 0.5, 0.6])[None])
    np.testing.assert_allclose(chunk.actions[0], robots([0.1, 0.2, 0.3]), rtol=1e-6)
    np.testing.assert_allclose(chunk.actions[2], robots([0.12, 0.24, 0.36]), rtol=1e-6)
    np.testing.assert_allclose(inner.given[0], [[0.4, 0.5, 0.6]], rtol=1e-6)
    assert (chunk.actions.dtype, chunk.start_tick, chunk.policy_version) == (np.float32, 5, 4)
    assert (policy.version, inner.seed) == (4, 7)
    assert policy.spec.dimensions == ((ROBOT, ROBOT),)
    inner.version = 5
    assert policy.version == 5, "a watched policy counts on"


def test_only_a_policy_that_can_be_guided_is() -> None:
    assert not isinstance(loaded(Follower)[1], GuidedPolicy)
    inner, policy = loaded(Guided)
    assert isinstance(policy, GuidedPolicy)
    seen = Observation({}, robots([0.0, 0.0, 0.0]), "", 0)
    chunk = policy.infer_guided(seen, np.stack([robots([0.1, 0.2, 0.3])] * 2), 1, True)
    previous, delay_ticks, exact = inner.given[0]
    np.testing.assert_allclose(previous, [[0.1, 0.2, 0.3]] * 2, rtol=1e-6)
    assert (delay_ticks, exact) == (1, True)
    np.testing.assert_allclose(chunk.actions[1], robots([0.01, 0.02, 0.03]), rtol=1e-6)


class Shutter:
    """A residual head that adds what the state says, and shuts the gripper c, which is discrete."""

    def correct(
        self, observation: Observation, action: Float32Array, chunk_index: int, discrete_dims: Sequence[int]
    ) -> Float32Array:
        corrected = action + observation.state * chunk_index
        corrected[list(discrete_dims)] = 0.0
        return corrected


def test_a_residual_head_works_in_the_policys_order() -> None:
    corrector = matched_corrector(Shutter(), FOUND)
    assert corrector is not None
    seen = Observation({}, robots([0.1, 0.2, 0.3]), "", 0)
    corrected = corrector.correct(seen, robots([1.0, 1.0, 1.0]), 2, (0,))  # the robot's dimension 0 is c
    np.testing.assert_allclose(corrected, robots([1.2, 1.4, 0.0]), rtol=1e-6)
    assert matched_corrector(None, FOUND) is None


def test_nothing_stands_between_a_policy_and_a_robot_of_its_own_order() -> None:
    same = match_robot(SPEC, 3, (POLICY, POLICY))
    load, head = Follower, Shutter()
    assert matched_loader(load, same) is load
    assert matched_corrector(head, same) is head


def test_the_match_travels_to_the_inference_process() -> None:
    policy = pickle.loads(pickle.dumps(matched_loader(Follower, FOUND)))()  # noqa: S301 - as multiprocessing does
    chunk = policy.infer(Observation({}, robots([0.1, 0.2, 0.3]), "", 0))
    np.testing.assert_allclose(chunk.actions[0], robots([0.1, 0.2, 0.3]), rtol=1e-6)


@pytest.mark.parametrize("strategy", ["naive", "xiaomi", "rtc", "temporal_ensembling"])
def test_gate_and_recorder_work_in_the_robots_order(strategy: str) -> None:
    """The robot's joint c alone may move fast: a gate in another order would cut its motion."""
    config = MockRobotConfig(joints=3, cameras=(), image_size=8, state_dimensions=ROBOT, action_dimensions=ROBOT)
    robot = MockRobot(config)
    limits = GateConfig(low=(-900.0, -20.0, -0.4), high=(900.0, 20.0, 0.4), max_velocity=(900.0, 40.0, 1.0))
    recorder = Recorder(Origin.SIM, "arm", robot.control_hz, dimensions=(ROBOT, ROBOT))
    recorder.begin("attempt", 0, 0)
    policy = matched_loader(Guided, FOUND)()
    source = Executor(InlinePlanner(policy), execution_config(strategy, execute_ticks=2))
    run_episode(robot, source, SafetyGate(limits, robot.control_hz), seed=0, subscribers=[recorder], max_ticks=20)
    episode = recorder.episode
    assert episode is not None
    assert episode.validate().action_dimensions == ROBOT
    assert (np.abs(episode.action_sent) <= np.array(limits.high)).all()
    assert np.abs(np.diff(episode.action_sent[:, 0])).max() > 5, "c moves in millimeters"
    assert np.abs(np.diff(episode.action_sent[:, 2])).max() < 0.1, "b moves in radians"


class Refined(Follower):
    """Its residual is a hundredth of the state that it sees, times the index."""

    refines = True

    def plan(self, observation: Observation) -> ActionChunk:
        return self.infer(observation)

    def refine(self, chunk: ActionChunk, observation: Observation, index: int) -> ActionChunk:
        self.given.append(chunk.actions)
        return replace(chunk, actions=chunk.actions + observation.state * np.float32(0.01 * index))


def test_a_plan_is_refined_in_the_policys_order() -> None:
    inner, policy = loaded(Refined)
    assert policy.refines
    assert not loaded(Follower)[1].refines
    planned = policy.plan(Observation({}, robots([0.1, 0.2, 0.3]), "", 5))
    refined = policy.refine(planned, Observation({}, robots([1.0, 2.0, 3.0]), "", 8), 3)
    np.testing.assert_allclose(inner.given[-1][0], [0.1, 0.2, 0.3], rtol=1e-6)
    np.testing.assert_allclose(refined.actions[0], robots([0.13, 0.26, 0.39]), rtol=1e-6)
    assert refined.start_tick == 5
