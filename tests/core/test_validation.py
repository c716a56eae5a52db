"""Options outside their range are refused with option, value and range."""

import math
from types import SimpleNamespace

import pytest

from vla_rl.algorithms.actor import ActorConfig
from vla_rl.core.config import load_config
from vla_rl.core.errors import ConfigError
from vla_rl.core.validation import check_ranges
from vla_rl.training.config import RunConfig


@pytest.mark.parametrize(
    ("value", "expected", "is_within"),
    [
        (0, ">= 0", True),
        (-1, ">= 0", False),
        (0, "> 0", False),
        (math.nan, ">= 0", False),
        (math.inf, "> 0", False),
        (0, "[0, 1)", True),
        (1, "[0, 1)", False),
        (1, "(0, 1]", True),
        (math.nan, "[0, 1]", False),
        ((4, 8), ">= 1", True),
        ((4, 0), ">= 1", False),
        ((), ">= 1", False),
    ],
)
def test_range(value: object, expected: str, is_within: bool) -> None:
    section = SimpleNamespace(option=value)
    if is_within:
        check_ranges(section, "section", option=expected)
        return
    with pytest.raises(ConfigError, match=r"section\.option is .*; expected"):
        check_ranges(section, "section", option=expected)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learning.actor.learning_rate=-1", "actor.learning_rate is -1.0; expected > 0"),
        ("learning.actor.batch_size=0", "actor.batch_size is 0; expected >= 1"),
        (
            "learning.critic_training.steps_per_actor_step=-1",
            "critic_training.steps_per_actor_step is -1.0; expected > 0",
        ),
        ("workers=-1", "workers is -1; expected >= 0"),
    ],
)
def test_a_wrong_setting_names_key_and_value(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(RunConfig, overrides=[override])
    assert message in str(raised.value)


def test_a_sound_section_is_accepted() -> None:
    assert ActorConfig(batch_size=1, warmup_steps=0).batch_size == 1
