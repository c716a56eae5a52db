"""An environment behaves like a robot."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from robot_io.env_robot import EnvRobot
from vla_rl.core.clock import VirtualClock
from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Robot


class CountingEnv(gymnasium.Env[dict[str, Any], Any]):
    """Counts its steps, in pixels and state; ends at the fifth."""

    metadata = {"render_fps": 25}  # noqa: RUF012
    task_description = "count to five"

    def __init__(self, state_size: int = 3, success: bool = True) -> None:
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.state_size, self.success = state_size, success

    def observe(self) -> dict[str, Any]:
        return {
            "pixels": {"top": np.full((2, 2, 3), self.count, np.uint8)},
            "agent_pos": np.full(self.state_size, self.count, np.float32),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.count, self.seed = 0, seed
        return self.observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.count += 1
        ended = self.count == 5
        terminated = ended and self.success
        return self.observe(), 0.0, terminated, ended and not terminated, {"is_success": terminated}


ACTION = np.zeros(2, np.float32)


def test_reading_and_writing() -> None:
    clock = VirtualClock(1000)
    robot = EnvRobot(CountingEnv(), clock)
    assert isinstance(robot, Robot)
    assert robot.control_hz == 25.0
    robot.reset(8)
    assert robot.env.seed == 8
    first = robot.read()
    assert (first.tick, first.task) == (0, "count to five")
    assert dict(first.captured_ns) == {"top": 1000, "state": 1000}
    assert robot.write(ACTION) is ACTION
    clock.sleep_until_ns(2000)
    second = robot.read()
    assert (second.tick, second.images["top"][0, 0, 0], second.captured_ns["top"]) == (1, 1, 2000)
    assert first.images["top"][0, 0, 0] == 0, "an earlier observation does not change"


@pytest.mark.parametrize("success", [True, False])
def test_the_end_of_an_episode(success: bool) -> None:
    robot = EnvRobot(CountingEnv(success=success))
    robot.reset(0)
    for _ in range(5):
        assert robot.success is None
        robot.write(ACTION)
    assert (robot.terminated, robot.truncated, robot.success) == (success, not success, success)
    with pytest.raises(UserError, match="reset before the next command"):
        robot.write(ACTION)
    robot.stop()
    assert robot.success == success
    robot.reset(1)
    assert (robot.terminated, robot.truncated, robot.success) == (False, False, None)


def test_a_stopped_attempt_has_failed() -> None:
    robot = EnvRobot(CountingEnv())
    robot.reset(0)
    robot.write(ACTION)
    robot.stop()
    assert robot.success is False
    with pytest.raises(UserError, match="has ended"):
        robot.write(ACTION)


def test_the_rest_command_is_the_state_or_what_the_environment_says() -> None:
    robot = EnvRobot(CountingEnv())
    robot.reset(0)
    robot.write(ACTION)
    np.testing.assert_array_equal(robot.rest_command(), [1, 1])
    env = CountingEnv(state_size=1)
    short = EnvRobot(env)
    short.reset(0)
    with pytest.raises(UserError, match="1 state numbers for 2 action dimensions"):
        short.rest_command()
    env.rest_action = lambda state: np.array([0.5, state[0]])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(short.rest_command(), np.array([0.5, 0], np.float32))


def test_the_kind_of_every_action_dimension_is_what_the_environment_says() -> None:
    env = CountingEnv()
    assert EnvRobot(env).action_kind == ("absolute", "absolute")
    for kinds in (("delta", "absolute"), ["delta", "delta"]):
        env.action_kind = kinds  # type: ignore[attr-defined]
        assert EnvRobot(env).action_kind == tuple(kinds)
    for kinds in (("delta",), ("delta", "relative")):
        env.action_kind = kinds  # type: ignore[attr-defined]
        with pytest.raises(UserError, match="action_kind"):
            EnvRobot(env)


def test_environments_that_do_not_fit_are_refused() -> None:
    env = CountingEnv()
    env.metadata = {}
    with pytest.raises(UserError, match="does not say its rate"):
        EnvRobot(env)
    assert EnvRobot(env, control_hz=10).control_hz == 10
    env = CountingEnv()
    env.action_space = gymnasium.spaces.Discrete(3)  # type: ignore[assignment]
    with pytest.raises(UserError, match="expected a Box"):
        EnvRobot(env)
    env = CountingEnv()
    env.observe = lambda: np.zeros(3)  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(UserError, match="'pixels' and 'agent_pos'"):
        EnvRobot(env).reset(0)
