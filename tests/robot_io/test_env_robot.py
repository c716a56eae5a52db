"""An environment behaves like a robot."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest

from robot_io.env_interface import EnvDeclaration
from robot_io.env_robot import EnvRobot
from vla_rl.core.clock import VirtualClock
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.protocols import Robot


class CountingEnv(gymnasium.Env[dict[str, Any], Any]):
    """Counts its steps, in pixels and state; ends at the fifth."""

    metadata = {"render_fps": 25}  # noqa: RUF012
    task_description = "count to five"

    def __init__(self, state_size: int = 3, success: bool = True) -> None:
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.state_size, self.success = state_size, success
        pixels = gymnasium.spaces.Dict({"top": gymnasium.spaces.Box(0, 255, (2, 2, 3), np.uint8)})
        position = gymnasium.spaces.Box(-9, 9, (state_size,), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"pixels": pixels, "agent_pos": position})

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


def test_the_rest_command_is_declared_or_said_or_assumed() -> None:
    env = CountingEnv()
    env.action_space = gymnasium.spaces.Box(np.float32([-1, 0]), np.float32([1, 4]))

    def rest(declared: EnvDeclaration | None = None, after: Sequence[float] = ()) -> list[float]:
        robot = EnvRobot(env, declared=declared)
        robot.reset(0)
        if after:
            robot.write(np.array(after, np.float32))
        return robot.rest_command().tolist()

    assert rest() == [0, 0], "the posture, where the state holds one within the bounds"
    assert rest(after=[1, 2]) == [1, 2], "then the last targets"
    assert rest(EnvDeclaration(action_kind=("absolute", "delta")), after=[1, 2]) == [1, 0]
    assert rest(EnvDeclaration(rest_action=(0.25, 3))) == [0.25, 3]
    env.state_size, env.observation_space = 1, CountingEnv(state_size=1).observation_space
    assert rest() == [0, 2], "the middle, where nothing says more"
    env.rest_action = lambda state: np.array([0.5, state[0]])  # type: ignore[attr-defined]
    assert rest() == [0.5, 0]


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


def test_what_is_sent_at_a_bound_is_within_the_environments_own() -> None:
    """Whose numbers may lie between two of single precision: .1 rounds up, .7 down."""
    env = CountingEnv()
    env.action_space = gymnasium.spaces.Box(np.array([-0.1, 0.7]), np.array([0.1, 0.9]), dtype=np.float64)
    actions = EnvRobot(env).actions
    for bound in (actions.low, actions.high):
        assert bound.dtype == np.float32
        assert env.action_space.contains(bound)
    np.testing.assert_allclose(actions.low, env.action_space.low, rtol=1e-6)
    np.testing.assert_allclose(actions.high, env.action_space.high, rtol=1e-6)


def test_environments_that_do_not_fit_are_refused() -> None:
    env = CountingEnv()
    env.metadata = {}
    robot = EnvRobot(env)
    assert robot.control_hz == 20
    assert "20 steps a second are assumed" in robot.notes[0]
    assert EnvRobot(env, declared=EnvDeclaration(control_hz=10)).control_hz == 10
    for space, complaint in (
        (gymnasium.spaces.Discrete(3), "expected a Box"),
        (gymnasium.spaces.Box(-1, 1, (2, 2)), r"expected a Box of float numbers, shape \[A\]"),
        (gymnasium.spaces.Box(-np.inf, 1, (2,)), "declare action_low and action_high, 2 numbers each"),
    ):
        env = CountingEnv()
        env.action_space = space  # type: ignore[assignment]
        with pytest.raises(UserError, match=complaint):
            EnvRobot(env)
    bounded = EnvRobot(env, declared=EnvDeclaration(action_low=(-2.0,), action_high=(2.0, 3.0)))
    assert (bounded.actions.low.tolist(), bounded.actions.high.tolist()) == ([-2, -2], [2, 3])
    with pytest.raises(ConfigError, match="action_low has 3 numbers"):
        EnvRobot(env, declared=EnvDeclaration(action_low=(-2.0, -2.0, -2.0)))
    env = CountingEnv()
    env.observe = lambda: {"pixels": {"top": np.zeros((2, 3, 3), np.uint8)}}  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"'?pixels.top is uint8 .2, 3, 3., its space says uint8 .2, 2, 3."):
        EnvRobot(env).reset(0)


class Ending(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An episode that ends at its first step in a given way."""

    ending: tuple[float, bool, dict[str, Any]] = (0.0, False, {})

    def step(self, action: Any) -> Any:
        reward, terminated, info = self.ending
        return self.env.step(action)[0], reward, terminated, not terminated, info


@pytest.mark.parametrize(
    ("declared", "ending", "success", "judged"),
    [
        ("auto", (0.0, True, {"is_success": True, "success": 1}), True, True),
        ("auto", (1.0, True, {"success": np.bool_(False)}), False, True),
        ("auto", (0.5, True, {}), True, True),
        ("auto", (0.5, False, {}), False, False),
        ("auto", (-1.0, True, {}), False, False),
        ("reward", (1.0, True, {"is_success": False}), True, True),
        ("reward", (-1.0, True, {"is_success": True}), False, True),
        ("solved", (0.0, False, {"solved": 1.0}), True, True),
        ("auto", (0.0, True, {"is_success": None, "success": np.array([True])}), True, True),
        ("coverage>=0.95", (0.0, False, {"coverage": np.float32(0.96)}), True, True),
        ("metrics.coverage > .95", (0.0, True, {"metrics": {"coverage": 0.95}}), False, True),
        ("stages==4", (0.0, True, {"stages": np.array([4])}), True, True),
        ("solved.1", (0.0, True, {"solved": np.array([0, 1])}), True, True),
        ("reward>=10", (10.0, False, {}), True, True),
        ("terminated", (-1.0, True, {}), True, True),
        ("auto", (0.0, False, {"final_info": np.array([{"success": True}])}), True, True),
    ],
)
def test_who_judges_an_episode(
    declared: str, ending: tuple[float, bool, dict[str, Any]], success: bool, judged: bool
) -> None:
    env = Ending(CountingEnv())
    env.ending = ending
    robot = EnvRobot(env, declared=EnvDeclaration(success=declared))
    robot.reset(0)
    robot.write(ACTION)
    assert (robot.success, robot.judged) == (success, judged)


def test_a_judge_who_says_nothing_is_told_of() -> None:
    env = Ending(CountingEnv())
    env.ending = (0.0, True, {"done": True})
    robot = EnvRobot(env, declared=EnvDeclaration(success="solved"))
    robot.reset(0)
    with pytest.raises(UserError, match="no 'solved' to judge by; it has done"):
        robot.write(ACTION)


@pytest.mark.parametrize(
    "said", ["no", float("nan"), [True, False], {"a": False}, [], [[1], [1, 2]], 0.27, -1], ids=str
)
def test_a_success_that_is_neither_yes_nor_no_is_refused(said: object) -> None:
    env = Ending(CountingEnv())
    env.ending = (1.0, True, {"is_success": said})
    robot = EnvRobot(env)
    robot.reset(0)
    with pytest.raises(
        UserError, match=r"info\['is_success'\] of the last step is .*; expected .*task\.declare\.success="
    ):
        robot.write(ACTION)


def test_a_sentence_may_differ_from_start_to_start() -> None:
    class Drawn(CountingEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
            self.task_description = f"count to {seed}"
            return super().reset(seed=seed)

    robot = EnvRobot(Drawn())
    for seed in (7, 9):
        robot.reset(seed)
        assert robot.read().task == f"count to {seed}"
    declared = EnvRobot(Drawn(), declared=EnvDeclaration(sentence="count"))
    declared.reset(7)
    assert declared.read().task == "count"


def test_what_an_environment_raises_is_told_with_place_seed_and_step() -> None:
    class Bursting(CountingEnv):
        def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
            if self.count == 2:
                raise RuntimeError("it blew up")
            return super().step(action)

    robot = EnvRobot(Bursting())
    robot.reset(31)
    robot.write(ACTION)
    robot.write(ACTION)
    with pytest.raises(
        UserError, match=r"raised RuntimeError: it blew up, at .*test_env_robot\.py:\d+, in step 2 of seed 31"
    ):
        robot.write(ACTION)


@pytest.mark.parametrize(
    ("part", "value", "told"),
    [
        ("pixels", {"top": np.full((2, 2, 3), 0.5)}, r"pixels\.top is float64 \[2, 2, 3\], its space says uint8"),
        ("pixels", {"top": np.zeros((1, 2, 3), np.uint8)}, r"pixels\.top is uint8 \[1, 2, 3\], its space says uint8"),
        ("agent_pos", np.zeros(4, np.float32), r"agent_pos is float32 \[4\], its space says float32 \[3\]"),
    ],
)
def test_an_observation_that_becomes_something_else_is_refused(part: str, value: Any, told: str) -> None:
    class Changing(CountingEnv):
        def observe(self) -> dict[str, Any]:
            return super().observe() | ({part: value} if self.count == 2 else {})

    robot = EnvRobot(Changing())
    robot.reset(0)
    robot.write(ACTION)
    robot.read()
    robot.write(ACTION)
    with pytest.raises(UserError, match=told):
        robot.read()


def test_what_an_environment_does_to_its_action_does_not_change_what_was_sent() -> None:
    class Halving(CountingEnv):
        def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
            action *= 0.5
            return super().step(action)

    robot, action = EnvRobot(Halving()), np.ones(2, np.float32)
    robot.reset(0)
    assert robot.write(action).tolist() == [1, 1]
    assert robot.last_command().tolist() == [1, 1]


@pytest.mark.parametrize("called", [True, False, None])
def test_a_person_ends_an_attempt_with_the_next_command(called: bool | None) -> None:
    robot = EnvRobot(CountingEnv())
    robot.reset(0)
    robot.end(called)
    assert not (robot.terminated)
    assert not (robot.truncated)
    robot.write(ACTION)
    assert (robot.terminated, robot.truncated) == (called is not None, called is None)
    assert (robot.success, robot.judged) == (called, True)
    robot.reset(1)
    robot.write(ACTION)
    assert (robot.terminated, robot.truncated) == (False, False), "the next attempt knows nothing of it"
