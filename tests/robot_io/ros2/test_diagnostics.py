"""/diagnostics is quiet: what comes and goes is told once, and what is latched is told as it is."""

import itertools
from types import SimpleNamespace

import pytest

from robot_io.ros2.diagnostics import ERROR, OK, WARN, StatusDebouncer


@pytest.mark.parametrize(("part", "changes"), [("streams", 2), ("stop inputs", 2), ("gate", 20)])
def test_a_fault_that_comes_and_goes_is_one_fault(part: str, changes: int) -> None:
    steady, told = StatusDebouncer(for_s=2.0), []
    for half_second in range(60):
        late = 10 <= half_second < 30 and half_second % 2 == 0
        status = SimpleNamespace(name=f"/arm/policy_node: {part}", level=ERROR if late else OK, message=str(late))
        steady([status], half_second * 0.5)
        told.append((status.level, status.message))
    levels = [level for level, _ in told]
    assert sum(before != after for before, after in itertools.pairwise(levels)) == changes
    assert levels[9] == OK
    assert levels[10] == ERROR, "a fault is told at once"
    assert told[-1] == (OK, "False")


def test_what_is_worse_is_told_at_once_and_parts_are_apart() -> None:
    steady = StatusDebouncer(for_s=2.0)

    def say(part: str, level: bytes, now_s: float) -> bytes:
        status = SimpleNamespace(name=f"n: {part}", level=level, message="")
        steady([status], now_s)
        told: bytes = status.level
        return told

    assert say("streams", WARN, 0.0) == WARN
    assert say("streams", ERROR, 0.1) == ERROR
    assert say("streams", WARN, 0.2) == ERROR
    assert say("commands", OK, 0.3) == OK
    assert say("streams", WARN, 2.2) == WARN
    assert say("streams", OK, 2.3) == WARN
    assert say("streams", OK, 4.3) == OK
