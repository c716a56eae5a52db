"""Which strategy acts on a robot, what is refused before anything starts, and steps on a robot of targets."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_io.gate import GateConfig, SafetyGate
from robot_io.mock_robot import MockRobot, MockRobotConfig
from robot_io.recorder import Recorder
from tests.fakes.ros2_scripts import ros_or_skip, said_by
from vla_rl.acting.action_kinds import recorded_as_steps
from vla_rl.acting.capability import added_steps, check_strategy
from vla_rl.acting.policy_folder import PolicyFolder
from vla_rl.acting.robots import check_rate
from vla_rl.acting.rollout import resolve_config
from vla_rl.core.capabilities import of_training
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import ActionChunk, Float32Array, Observation, Origin, Source
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import run_episode
from vla_rl.execution.plan import InlinePlanner
from vla_rl.execution.strategies import ExecutionConfig, execution_config

SPEC = PolicySpec("arm", ("front",), (8, 8), 3, 3, 20.0)
FLOW = frozenset({"guidance", "gradient"})
SYNC = {"execution": {"strategy": "sync", "execute_ticks": 6}}


def folder(path: Path, run: Any = None, head: bool = False, **trained: Any) -> PolicyFolder:
    """A policy's folder as far as the control process reads it."""
    provides = of_training(trained) | FLOW | ({"corrector"} if head else set())
    return PolicyFolder(path, SPEC, 16, (), 0, run or {}, provides, trained.get("prefix_max", 0))


@pytest.mark.parametrize(
    ("trained", "head", "expected"),
    [
        ({}, False, "rtc"),
        ({"prefix_max": 5, "prefix_law": "xiaomi"}, False, "xiaomi"),
        ({"prefix_max": 5, "prefix_law": "linear"}, True, "a2c2"),
    ],
)
def test_in_real_time_the_best_strategy_that_the_policy_supports_acts(
    tmp_path: Path, trained: dict[str, Any], head: bool, expected: str
) -> None:
    for run in (SYNC, {}):
        config = resolve_config(folder(tmp_path / f"{bool(run)}", run, head, **trained), realtime=True)
        assert config.execution.strategy == expected
        check_strategy(config.execution, folder(tmp_path / f"{bool(run)}", run, head, **trained))
        assert getattr(config.execution, "max_prefix_ticks", 5) == 5, "as long as it was trained with"
    assert config.execution.execute_ticks == 8
    assert resolve_config(folder(tmp_path / "a", SYNC), realtime=True).execution.execute_ticks == 6


def test_a_choice_of_ones_own_always_wins_and_a_simulator_keeps_its_setting(tmp_path: Path) -> None:
    policy = folder(tmp_path, SYNC)
    assert resolve_config(policy).execution.strategy == "sync"
    assert resolve_config(policy, strategy="sync", realtime=True).execution.strategy == "sync"
    assert resolve_config(policy, overrides=["execution.strategy=naive"], realtime=True).execution.strategy == "naive"
    practiced = folder(tmp_path, {"execution": {"strategy": "temporal_ensembling"}})
    assert resolve_config(practiced, realtime=True).execution.strategy == "temporal_ensembling"
    expert = PolicyFolder(tmp_path / "nowhere", SPEC, 16, (), 0)
    assert resolve_config(expert, realtime=True).execution.strategy == "naive"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a2c2", r"^execution.strategy=a2c2 requires corrector \(.*vla-rl corrector RUN.* What fits: .*strategy=rtc"),
        ("xiaomi", "policy.prefix_law=xiaomi"),
    ],
)
def test_a_capability_that_is_missing_is_refused_in_one_line(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_strategy(execution_config(name), folder(tmp_path))


def test_a_policy_that_cannot_be_guided_acts_without(tmp_path: Path) -> None:
    policy = replace(folder(tmp_path), provides=frozenset())
    assert resolve_config(policy, realtime=True).execution.strategy == "naive"
    with pytest.raises(ConfigError, match=r"rtc requires gradient \(a flow policy in torch.*What fits: .*naive"):
        check_strategy(execution_config("rtc"), policy)


def test_a_head_is_not_for_policies_that_come_later(tmp_path: Path) -> None:
    check_strategy(execution_config("a2c2"), folder(tmp_path, head=True))
    with pytest.raises(ConfigError, match="watched folders bring new versions"):
        check_strategy(execution_config("a2c2"), folder(tmp_path / "w", head=True), watched=True)


def test_another_rate_than_the_policys_is_refused_unless_it_is_wanted() -> None:
    with pytest.raises(UserError, match=r"control_hz is 50, .* 20 Hz. The robot would move 2\.5 times as fast"):
        check_rate(SPEC, 50.0, any_rate=False)
    check_rate(SPEC, 50.0, any_rate=True)
    check_rate(SPEC, 20.0, any_rate=False)


def test_limits_of_another_number_of_joints_are_refused() -> None:
    limits = GateConfig(low=(-1.0,) * 2, high=(1.0,) * 2, max_velocity=(1.0,) * 2)
    with pytest.raises(ConfigError, match=r"limits are those of 2 dimensions, the robot takes 3 \(a, b, c\)"):
        SafetyGate(limits, 20.0, names=("a", "b", "c"))


class Steps:
    """Plans the same small step again and again in the third dimension, and a place in the others."""

    version = 0

    def reset(self, seed: int) -> None: ...

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        return ActionChunk(np.tile(np.float32([0.1, 0.0, 0.014]), (8, 1)), observation.tick, 0, 0)


def test_steps_of_a_policy_are_added_up_on_a_robot_of_targets() -> None:
    limits = GateConfig(low=(-1.0, -1.0, -0.5), high=(1.0, 1.0, 0.5), max_velocity=(4.0, 4.0, 1.0))
    robot = MockRobot(MockRobotConfig(joints=3, control_hz=20.0, cameras=(), duration_s=3.0))
    gate, recorder = SafetyGate(limits, 20.0), Recorder(Origin.REAL, "arm", 20.0)
    recorder.begin("attempt", 0, 0)
    added = added_steps(replace(SPEC, delta_dims=(2,)), limits.delta_dims)
    assert added == (2,)
    executor = Executor(InlinePlanner(Steps()), ExecutionConfig(), added_steps=added)
    run_episode(robot, executor, gate, seed=0, subscribers=[recorder])
    episode = recorder.episode
    assert episode is not None
    sent = episode.action_sent[:, 2]
    start = gate.rest[2]
    np.testing.assert_allclose(sent[:10], start + 0.014 * np.arange(1, 11), atol=1e-5)
    assert sent.max() == pytest.approx(0.5), "clipped by the limits of the place"
    kept = recorded_as_steps(episode, added, gate.rest)
    np.testing.assert_allclose(kept.action_sent[:10, 2], 0.014, atol=1e-5, err_msg="stored as the policy means them")
    np.testing.assert_allclose(kept.action_policy[:, 2], 0.014, atol=1e-5)
    np.testing.assert_array_equal(kept.action_sent[:, :2], episode.action_sent[:, :2])


def test_a_hold_between_added_steps_stays_where_it_is() -> None:
    class Short(Steps):
        def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
            if observation.tick:
                return ActionChunk(np.full((1, 3), np.nan, np.float32), observation.tick, 0, 0)
            return super().infer(observation)

    executor = Executor(InlinePlanner(Short()), ExecutionConfig(execute_ticks=8), added_steps=(2,))
    rest = np.float32([0.0, 0.0, 0.3])
    executor.reset(0, rest)
    actions = []
    for tick in range(8):
        proposal = executor.propose(Observation({}, rest, "", tick), 0)
        actions.append(proposal.action[2])
        executor.sent(proposal.action)
    np.testing.assert_allclose(actions, 0.3 + 0.014 * np.arange(1, 9), atol=1e-5)
    held = executor.hold(8, 0)
    assert held.source is Source.HOLD
    assert held.action[2] == pytest.approx(actions[-1])


def test_a_robot_of_steps_refuses_a_policy_of_targets() -> None:
    with pytest.raises(ConfigError, match=r"the robot takes steps in dimensions \[1\]"):
        added_steps(SPEC, (1,))


SESSION = """
import json, sys
from contextlib import nullcontext
from pathlib import Path
from robot_io.ros2.operator import OperatorRequests
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.acting.policy_folder import PolicyFolder
from vla_rl.acting.robots.ros2 import settings_from
from vla_rl.acting import ros2_node

folder, limits, cases = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])


def session(options):
    steps, sizes, layouts = options.pop("steps", []), options.pop("sizes", []), []
    run = {"execution": {"strategy": "sync", "execute_ticks": 6}}
    largest = max([[3, 3], *sizes])
    spec = PolicySpec("arm", ("front",), (8, 8), *largest, 20.0, delta_dims=tuple(steps), sizes=tuple(sizes))
    ros2_node.ProcessPlanner = lambda load, layout, config: layouts.append(layout) or nullcontext()
    settings = settings_from({"joints": ["a", "b", "c"], "cameras": ["front"], "limits": limits, **options})
    try:
        provides = frozenset({"guidance", "gradient"})
        policy = PolicyFolder(folder, spec, 16, tuple(range(2, largest[1])), 0, run, provides)
        made = ros2_node.PolicySession(settings, OperatorRequests(), policy, None)
        made._start_inference()
    except UserError as error:
        return str(error)
    shown = [layouts[0].state_size, layouts[0].action_size, *made._execution.discrete_dims]
    return [made._execution.strategy, list(made._added), list(made._gate.config.delta_dims), shown]


print(json.dumps([session(case) for case in cases]))
"""


def test_the_node_chooses_and_refuses_by_the_same_code(tmp_path: Path) -> None:
    environment = ros_or_skip()
    limits = tmp_path / "limits.yaml"
    limits.write_text("{low: [-1, -1, -1], high: [1, 1, 1], max_velocity: [1, 1, 1]}")
    short = tmp_path / "short.yaml"
    short.write_text("{low: [-1, -1], high: [1, 1], max_velocity: [1, 1]}")
    cases: list[dict[str, Any]] = [
        {},
        {"strategy": "naive"},
        {"overrides": ["execution.strategy=sync"]},
        {"strategy": "a2c2"},
        {"steps": [2]},
        {"control_hz": 50.0},
        {"control_hz": 50.0, "any_rate": True},
        {"limits": str(short)},
        {"sizes": [[3, 3], [5, 5]], "steps": [1, 4]},
    ]
    arguments = [str(tmp_path / "policy"), str(limits), json.dumps(cases)]
    answers = said_by(SESSION, *arguments, environment=environment)
    default, named, overridden, headless, steps, fast, wanted, small, shared = answers
    assert default == ["rtc", [], [], [3, 3, 2]]
    assert (named[0], overridden[0], wanted[0]) == ("naive", "sync", "rtc")
    assert "requires corrector" in headless
    assert steps[:3] == ["rtc", [2], []], "the gate's limits are those of places, never of steps"
    assert "2.5 times as fast" in fast
    assert "limits are those of 2 dimensions, the robot takes 3" in small
    assert shared == ["rtc", [1], [], [3, 3, 2]], "of a shared policy what this robot has"
