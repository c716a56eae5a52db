"""Attempts that run in turns get the answers to their own questions, however many run at once."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_rl.execution.turns import Turns


@given(lengths=st.lists(st.integers(0, 6), max_size=12), at_once=st.integers(1, 5))
def test_each_attempt_gets_its_own_answers(lengths: list[int], at_once: int) -> None:
    asked_together: list[int] = []

    def answer(questions: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        asked_together.append(len(questions))
        return [(number, 10 * step) for number, step in questions]

    turns = Turns(answer)

    def attempt(number: int, length: int) -> Callable[[], tuple[int, list[tuple[int, int]]]]:
        return lambda: (number, [turns.ask((number, step)) for step in range(length)])

    found = dict(turns.run([attempt(*item) for item in enumerate(lengths)], at_once))
    assert found == {number: [(number, 10 * step) for step in range(length)] for number, length in enumerate(lengths)}
    assert max(asked_together, default=0) <= at_once
    assert sum(asked_together) == sum(lengths)
    if lengths.count(0) == 0 and len(lengths) >= at_once:
        assert asked_together[0] == at_once


def test_an_attempt_begins_only_when_there_is_room_for_it() -> None:
    turns, running, most = Turns(list), set(), 0

    def attempt(number: int) -> None:
        nonlocal most
        running.add(number)
        most = max(most, len(running))
        for _ in range(number % 3 + 1):
            turns.ask(number)
        running.remove(number)

    list(turns.run(((lambda number=number: attempt(number)) for number in range(10)), 3))  # type: ignore[misc]
    assert most == 3


def test_an_error_is_raised_as_it_was_and_the_others_are_broken_off() -> None:
    turns, left = Turns(list), []

    def attempt(number: int) -> None:
        try:
            turns.ask(number)
            if number == 1:
                raise ValueError("one failed")
            turns.ask(number)
        finally:
            left.append(number)

    with pytest.raises(ValueError, match="one failed"):
        list(turns.run([lambda number=number: attempt(number) for number in range(3)], 3))  # type: ignore[misc]
    assert sorted(left) == [0, 1, 2]


def test_an_error_of_who_answers_breaks_all_off() -> None:
    left = []

    def refuse(questions: Sequence[int]) -> list[int]:
        raise ValueError(f"no answer to {len(questions)}")

    turns = Turns(refuse)

    def attempt() -> None:
        try:
            turns.ask(0)
        finally:
            left.append(True)

    with pytest.raises(ValueError, match="no answer to 2"):
        list(turns.run([attempt, attempt], 2))
    assert len(left) == 2


def test_who_stops_listening_breaks_all_off() -> None:
    turns, left = Turns(list), []

    def attempt(questions: int) -> int:
        try:
            return sum(turns.ask(1) for _ in range(questions))
        finally:
            left.append(questions)

    results = turns.run([lambda n=n: attempt(n) for n in (1, 5, 5)], 3)  # type: ignore[misc]
    assert next(results) == 1
    results.close()
    assert sorted(left) == [1, 5, 5]


def test_only_an_attempt_may_ask() -> None:
    with pytest.raises(RuntimeError, match="only an attempt"):
        Turns(list).ask(0)
