"""The strategies among the baselines: how each uses the policy, and which policies it needs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.driven import RecordingPolicy, check_committed_prefix, drive
from tests.fakes.faulty_attempts import TickPolicy
from vla_rl.acting.capability import best_strategy, check_strategy
from vla_rl.acting.policy_folder import PolicyFolder
from vla_rl.core.capabilities import of_training
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.execution.strategies import execution_config
from vla_rl.execution.virtual import LatencyConfig

SPEC = PolicySpec("arm", ("front",), (8, 8), 3, 3, 20.0)


def folder(path: Path, **trained: Any) -> PolicyFolder:
    provides = of_training(trained) | {"guidance", "gradient"}
    return PolicyFolder(path, SPEC, 16, (), 0, {}, provides, trained.get("prefix_max", 0))


def test_the_committed_prefix_is_what_is_executed_meanwhile() -> None:
    check_committed_prefix("training_time_prefix", 3)


def test_vlash_plans_from_the_state_at_the_time_of_execution() -> None:
    policy = RecordingPolicy()
    config = execution_config("vlash", expected_delay_ticks=3)
    actions = drive(policy, config, LatencyConfig(typical=3.0), 60)
    for observation, committed in policy.calls[2:]:
        assert committed is None
        # The request was made 3 ticks earlier, when the state was 0; its targets moved by one unit a tick since.
        assert observation.state[0] == pytest.approx(3.0)
    np.testing.assert_array_equal([action.action[0] for action in actions[11:]], range(11, 60))


def test_vlash_does_not_close_a_gripper_beyond_what_it_holds() -> None:
    """The state of a discrete dimension stays as it was observed: its target is never reached with something in it."""
    policy = RecordingPolicy()
    config = execution_config("vlash", expected_delay_ticks=3, discrete_dims=(0,))
    drive(policy, config, LatencyConfig(typical=3.0), 60)
    assert {float(observation.state[0]) for observation, _ in policy.calls[2:]} == {0.0}


def test_vlash_refuses_steps() -> None:
    config = execution_config("vlash", expected_delay_ticks=3, delta_dims=(0,))
    with pytest.raises(UserError, match=r"dimensions \[0\] are steps"):
        drive(RecordingPolicy(), config, LatencyConfig(typical=3.0), 60)


def test_guidance_gets_what_is_scheduled_and_no_gradient() -> None:
    seen = set()

    class Guided(TickPolicy):
        def infer_guided(
            self, observation: Observation, previous: Float32Array, delay_ticks: int, exact_gradient: bool
        ) -> ActionChunk:
            seen.add((exact_gradient, len(previous), delay_ticks))
            return self.infer(observation)

    drive(Guided(), execution_config("rtc_identity", expected_delay_ticks=2), LatencyConfig(typical=2.0), 50)
    assert not any(exact for exact, _, _ in seen)
    assert (False, 8, 2) in seen


def test_a_prefix_is_preferred_to_guidance(tmp_path: Path) -> None:
    best = best_strategy(folder(tmp_path, prefix_max=5, prefix_law="linear"))
    assert best == ("execution.strategy=training_time_prefix", "execution.max_prefix_ticks=5")
    check_strategy(execution_config("rtc_identity"), folder(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("training_time_prefix", "train the policy with policy.prefix_max=6"),
        ("vlash", "train the policy with policy.future_state_max=8"),
    ],
)
def test_a_capability_that_is_missing_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_strategy(execution_config(name), folder(tmp_path))


def test_vlash_refuses_a_policy_of_steps(tmp_path: Path) -> None:
    policy = folder(tmp_path, future_state_max=8)
    check_strategy(execution_config("vlash"), policy)
    steps = replace(policy, spec=replace(SPEC, delta_dims=(0, 2)))
    with pytest.raises(ConfigError, match="vlash requires target_actions"):
        check_strategy(execution_config("vlash"), steps)
    state, action = Dimensions(("a", "b", "c")), Dimensions(("b", "a", "c"))
    named = replace(policy, spec=replace(SPEC, dimensions=((state, state),)))
    check_strategy(execution_config("vlash"), named)
    other = replace(policy, spec=replace(SPEC, dimensions=((state, action),)))
    with pytest.raises(ConfigError, match="vlash requires state_of_targets"):
        check_strategy(execution_config("vlash"), other)
