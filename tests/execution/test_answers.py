"""What policies of other people answer, and what they do to what they are given."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from robot_io.env_robot import EnvRobot
from robot_io.gate import GateConfig
from tests.execution.toys import ReachEnv, ReachPolicy
from vla_rl.acting.attempt import Attempts
from vla_rl.acting.task import make_gate
from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Policy
from vla_rl.core.types import ActionChunk, Episode, Float32Array, Observation, Origin
from vla_rl.execution.executor import Executor
from vla_rl.execution.strategies import execution_config
from vla_rl.execution.virtual import LatencyConfig, make_planner


class Changed(ReachPolicy):
    """Answers with what ``change`` makes of the chunk and the observation."""

    def __init__(self, change: Callable[[ActionChunk, Observation], Any]) -> None:
        super().__init__()
        self._change = change

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        answer: ActionChunk = self._change(super().infer(observation, committed), observation)
        return answer


def play(policy: Policy, strategy: str = "temporal_ensembling", ticks: int = 2) -> Episode:
    robot = EnvRobot(ReachEnv())
    execution = execution_config(strategy, execute_ticks=4)
    planner = make_planner(policy, robot.clock, robot.control_hz, LatencyConfig(typical=ticks))
    attempts = Attempts(robot, make_gate(robot, GateConfig(max_velocity=(4.0, 4.0))), Origin.SIM, "reach")
    return attempts.run(Executor(planner, execution), "own", 5, 3).episode


BUFFER = np.zeros((16, 2), np.float32)


def into_buffer(chunk: ActionChunk, _: Observation) -> ActionChunk:
    BUFFER[:] = chunk.actions
    return ActionChunk(BUFFER, chunk.start_tick, 0, 3)


def into_observation(chunk: ActionChunk, observation: Observation) -> ActionChunk:
    observation.state[:] = 9
    observation.images["front"][:] = 9
    assert (observation.images["front"] == 9).all()
    return chunk


@pytest.mark.parametrize(
    "change",
    [
        into_buffer,
        into_observation,
        lambda chunk, _: ActionChunk(chunk.actions.tolist(), chunk.start_tick, 0, 3),
        lambda chunk, _: ActionChunk(torch.from_numpy(chunk.actions), chunk.start_tick, 0, 3),  # type: ignore[arg-type]
        lambda chunk, _: ActionChunk(chunk.actions.astype(np.float64), chunk.start_tick, 0, 3),  # type: ignore[arg-type]
    ],
    ids=["array used again", "observation written to", "list", "tensor", "float64"],
)
def test_an_episode_is_that_of_an_array_of_its_own(change: Callable[[ActionChunk, Observation], Any]) -> None:
    expected, found = play(ReachPolicy()), play(Changed(change))
    assert expected.success
    np.testing.assert_array_equal(found.action_sent, expected.action_sent)
    np.testing.assert_array_equal(found.action_policy, expected.action_policy)
    np.testing.assert_array_equal(found.state, expected.state)
    np.testing.assert_array_equal(found.images["front"], expected.images["front"])


def test_committed_actions_are_not_those_of_the_executed_chunk() -> None:
    class Greedy(ReachPolicy):
        def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
            chunk = super().infer(observation)
            if committed is not None:
                committed[:] = 9
            return chunk

    expected, found = play(ReachPolicy(), "naive"), play(Greedy(), "xiaomi")
    np.testing.assert_array_equal(found.action_sent, expected.action_sent)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda chunk, _: None, "answered with a NoneType; expected an ActionChunk"),
        (lambda chunk, _: chunk.actions, "answered with a ndarray; expected an ActionChunk"),
        (lambda chunk, _: replace(chunk, actions=chunk.actions[None]), r"shape \[1, 16, 2\]"),
        (lambda chunk, _: replace(chunk, actions=[[0, 1], [2]]), "are a list that is no array of numbers"),
        (lambda chunk, _: replace(chunk, actions=torch.zeros(4, 2, requires_grad=True)), "use tensor.detach"),
        (lambda chunk, _: replace(chunk, start_tick=0), "starts at tick 0, its observation is of tick 4"),
    ],
)
def test_what_is_no_chunk_is_refused(change: Callable[[ActionChunk, Observation], Any], error: str) -> None:
    with pytest.raises(UserError, match=f"(?i){error}"):
        play(Changed(change), ticks=1)
