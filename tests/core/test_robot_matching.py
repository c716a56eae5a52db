"""Interfaces of policies and robots, compared by name: what is mapped, what is refused, what is said once."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from vla_rl.core.dimensions import UNDECLARED, Dimensions
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.policy_spec import PolicySpec, spec_difference, successor_difference
from vla_rl.core.robot_matching import declared, match_robot, renamed

ARM = Dimensions(("pan", "lift", "grip"), ("rad", "rad", ""))
TURNED = ARM.take([2, 0, 1])
SPEC = PolicySpec("arm", ("front",), (8, 8), 3, 3, delta_dims=(0, 1), dimensions=((ARM, ARM),))


def test_kinds_of_dimensions_are_those_of_the_robots_order() -> None:
    found = match_robot(SPEC, 3, (TURNED, TURNED))
    assert found.robot.delta_dims == (1, 2)
    assert found.on_robot((2, 0)) == (0, 1)
    assert found.robot.dimensions == ((TURNED, TURNED),)
    assert found.policy == SPEC
    told = "by name, grip, pan (rad), lift (rad) on the robot, pan (rad), lift (rad), grip in the policy"
    assert found.words() == f"state {told}; action {told}"


def test_the_robots_of_a_shared_policy_are_matched_each_with_its_own_names() -> None:
    two = Dimensions(("x", "y"))
    shared = replace(SPEC, sizes=((2, 2), (3, 3)), dimensions=((two, two), (ARM, ARM)), delta_dims=(1,))
    small = match_robot(shared, 2, (Dimensions(("y", "x")), UNDECLARED))
    assert (small.state.by_name, small.action.by_name) == (True, False)
    assert small.state.index.tolist() == [1, 0]
    assert small.robot.dimensions == ((Dimensions(("y", "x")), UNDECLARED),)
    assert match_robot(shared, 3, (TURNED, TURNED)).on_robot((1, 2)) == (2, 0)


@pytest.mark.parametrize("silent", ["policy", "robot", "policy and robot"])
def test_without_names_on_one_side_the_position_counts_and_is_told(silent: str) -> None:
    spec = replace(SPEC, dimensions=()) if "policy" in silent else SPEC
    robot = (UNDECLARED, UNDECLARED) if "robot" in silent else (TURNED, TURNED)
    found = match_robot(spec, 3, robot)
    assert not found.changes
    assert found.on_robot((0, 2, 7)) == (0, 2)
    assert (
        found.words()
        == f"state by position (no names from the {silent}); action by position (no names from the {silent})"
    )


def test_a_robot_of_another_size_is_refused_with_both_lists() -> None:
    more = Dimensions((*ARM.names, "wrist"))
    with pytest.raises(UserError, match=r"4 numbers of action.*\['pan', 'lift', 'grip'\].*'grip', 'wrist'\]"):
        match_robot(SPEC, 4, (more, more))


def test_a_robot_that_declares_something_else_is_refused() -> None:
    assert declared(object()) == (UNDECLARED, UNDECLARED)
    with pytest.raises(UserError, match="declares its dimensions as list; expected"):
        declared(SimpleNamespace(state_dimensions=["pan"]))


def test_names_that_mean_the_same_are_renamed() -> None:
    assert match_robot(renamed(SPEC, {"grip": "hand"}), 3, (Dimensions(("hand", "pan", "lift")),) * 2).changes
    with pytest.raises(ConfigError, match=r"no dimension 'gripp'.*Did you mean 'grip'"):
        renamed(SPEC, {"gripp": "hand"})
    with pytest.raises(UserError, match="stands twice"):
        renamed(SPEC, {"grip": "pan"})


def test_interfaces_differ_in_the_order_of_their_names_and_in_their_units() -> None:
    assert spec_difference(SPEC, SPEC) is None
    turned = spec_difference(replace(SPEC, dimensions=((TURNED, ARM),)), SPEC)
    assert turned is not None
    assert turned == ("state dimensions", "grip, pan (rad), lift (rad)", "pan (rad), lift (rad), grip")
    degrees = Dimensions(ARM.names, ("deg", "rad", ""))
    assert spec_difference(replace(SPEC, dimensions=((ARM, degrees),)), SPEC) is not None
    silent = Dimensions(ARM.names, ("rad", "", ""))
    assert spec_difference(replace(SPEC, dimensions=((silent, ARM),)), SPEC) is None
    assert spec_difference(replace(SPEC, env_id="other"), SPEC, but=("env_id",)) is None
    assert spec_difference(replace(SPEC, control_hz=5.0), SPEC) == ("control_hz", 5.0, 20.0)


def test_a_policy_that_takes_the_place_of_another_declares_the_same_names_and_units() -> None:
    assert successor_difference(replace(SPEC, env_id="other"), SPEC) is None
    assert successor_difference(replace(SPEC, control_hz=5.0), SPEC) == ("control_hz", 5.0, 20.0)
    silent = Dimensions(ARM.names, ("rad", "", ""))
    for one, other in ((SPEC, replace(SPEC, dimensions=())), (replace(SPEC, dimensions=((silent, ARM),)), SPEC)):
        for found, expected in ((one, other), (other, one)):
            differs = successor_difference(found, expected)
            assert differs is not None
            assert differs.name == "state dimensions"


def test_a_policy_from_before_names_differs_in_nothing_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    spec = replace(SPEC, env_id="an arm of this test alone")
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert spec_difference(replace(spec, dimensions=()), spec) is None
    told = [record.message for record in caplog.records]
    assert len(told) == 2
    assert "only one of two policies of an arm of this test alone names its state: matched by position" in told
