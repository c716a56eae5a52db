"""What is missing, what brings it, and what fits instead, in one sentence."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from vla_rl.core.capabilities import of_interface, of_training, require
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.errors import ConfigError
from vla_rl.core.policy_spec import PolicySpec

SPEC = PolicySpec("arm", ("front",), (8, 8), 3, 3, 20.0)


def words(*each: str) -> frozenset[str]:
    return frozenset(each)


def test_a_refusal_says_what_is_missing_what_brings_it_and_what_fits() -> None:
    others = [("algorithm=a", words()), ("algorithm=b", words("features")), ("algorithm=c", words("x-ray"))]
    with pytest.raises(ConfigError) as caught:
        require("algorithm=mine", words("features", "x-ray", "prefix"), words("prefix"), others)
    said = str(caught.value)
    assert said.startswith("algorithm=mine requires features (policy.kind=flow_vla")
    assert said.endswith("; x-ray. What fits: algorithm=a")


def test_alternatives_are_looked_for_only_if_a_part_is_refused() -> None:
    def never() -> Iterator[tuple[str, frozenset[str]]]:
        raise AssertionError
        yield

    require("algorithm=mine", words("features"), words("features", "prefix"), never())


def test_options_and_the_interface_bring_capabilities() -> None:
    assert of_training({}) == words()
    assert of_training({"prefix_max": 4, "future_state_max": 2}) == words("prefix", "future_state")
    assert of_training({"prefix_max": 4, "prefix_law": "xiaomi"}) == words("prefix", "xiaomi_prefix")
    assert of_training({"prefix_law": "xiaomi", "indicator": True}) == words("indicator")
    assert of_interface(SPEC) == words("target_actions", "state_of_targets")
    assert of_interface(replace(SPEC, delta_dims=(1,))) == words("state_of_targets")
    state, action = Dimensions(("a", "b", "c")), Dimensions(("b", "a", "c"))
    assert of_interface(replace(SPEC, dimensions=((state, action),))) == words("target_actions")
