"""Vectors are matched by name and unit; known answers and properties."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_rl.core.dimensions import UNDECLARED, Dimensions, match
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.policy_spec import PolicySpec, shared_spec

ARM = Dimensions(("shoulder", "elbow", "grip"), ("rad", "rad", ""))


def matched(expected: Dimensions, found: Dimensions, size: int = 3):
    return match(expected, found, size, "the policy", "the data", "action")


def test_reversed_names_are_put_back_in_order() -> None:
    found = Dimensions(("grip", "elbow", "shoulder"))
    values = np.array([[3.0, 2.0, 1.0]], np.float32)
    assert matched(ARM, found).apply(values).tolist() == [[1.0, 2.0, 3.0]]
    assert matched(ARM, found).apply(values).dtype == np.float32


def test_degrees_become_radians_and_come_back() -> None:
    found = Dimensions(("shoulder", "elbow", "grip"), ("degrees", "°", "mm"))
    found_in_radians = matched(ARM, found)
    np.testing.assert_allclose(found_in_radians.apply(np.array([180.0, 90.0, 5.0])), [math.pi, math.pi / 2, 5.0])
    np.testing.assert_allclose(found_in_radians.inverse().apply(np.array([math.pi, math.pi / 2, 5.0])), [180, 90, 5])


@pytest.mark.parametrize(
    ("unit", "other", "factor"), [("m", "mm", 1e-3), ("cm", "mm", 0.1), ("rad/s", "deg/s", math.pi / 180)]
)
def test_factor(unit: str, other: str, factor: float) -> None:
    found = match(Dimensions(("x",), (unit,)), Dimensions(("x",), (other,)), 1, "a", "b", "state")
    assert found.factor[0] == pytest.approx(factor)


def test_units_without_a_conversion_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"the data: the unit of action 'elbow' is normalized. Expected by the policy: rad"
    ):
        matched(ARM, Dimensions(ARM.names, ("rad", "normalized", "")))


def test_a_missing_name_is_refused_with_both_lists() -> None:
    with pytest.raises(UserError, match=r"no dimension 'grip'.*'a', 'elbow', 'shoulder'.*'shoulder', 'elbow', 'grip'"):
        matched(ARM, Dimensions(("a", "elbow", "shoulder")))


@pytest.mark.parametrize("names", [("a", "a"), ("a", "")])
def test_repeated_and_empty_names_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"twice|empty"):
        Dimensions(names)


def test_undeclared_names_match_by_position() -> None:
    found = matched(ARM, UNDECLARED)
    assert not found.by_name
    assert not found.changes


@given(st.permutations(range(6)), st.lists(st.sampled_from(["rad", "deg", ""]), min_size=6, max_size=6))
def test_a_match_is_undone_by_its_inverse(order: list[int], units: list[str]) -> None:
    names = tuple(f"joint_{number}" for number in range(6))
    expected = Dimensions(names, ("rad",) * 6)
    found = Dimensions(tuple(names[i] for i in order), tuple(units))
    to_expected = match(expected, found, 6, "a", "b", "state")
    values = np.arange(6.0)
    np.testing.assert_allclose(to_expected.inverse().apply(to_expected.apply(values)), values)
    assert [found.names[i] for i in to_expected.index] == list(names)


def _spec(name: str, size: int, dimensions: Dimensions) -> PolicySpec:
    pair = ((dimensions, dimensions),) if dimensions else ()
    return PolicySpec(name, ("front",), (8, 8), size, size, dimensions=pair)


def test_a_shared_policy_refuses_the_same_joints_in_another_order() -> None:
    with pytest.raises(ConfigError, match=r"cannot share a policy: their state and action dimensions are .*'grip'"):
        shared_spec([_spec("a", 3, ARM), _spec("b", 3, ARM.take([2, 1, 0]))])


def test_a_shared_policy_knows_the_names_of_each_size() -> None:
    other = Dimensions(("x", "y"))
    shared = shared_spec([_spec("a", 3, ARM), _spec("b", 2, other)])
    assert shared.dimensions_of(2) == (other, other)
    assert shared.of_robot(3).dimensions == ((ARM, ARM),)


def test_as_many_names_as_numbers() -> None:
    with pytest.raises(UserError, match="has 2 numbers, but 3 names"):
        _spec("a", 2, ARM)
