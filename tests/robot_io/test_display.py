"""The live panel: what it counts, and that it neither waits for a terminal nor leaves one in a mess."""

import contextlib
import io
import logging
import os

import numpy as np
import pytest

from robot_io.display import LiveDisplay, LoopStatistics, panel
from robot_io.gate import Reason
from vla_rl.core.types import Observation, Source, Step

MS = 1_000_000


def make_step(tick: int, source: Source = Source.POLICY, **extras: float) -> Step:
    known = {"chunk_id": 0, "chunk_index": tick, "policy_version": 3, "observation_age_ms": 2.0}
    known |= {"action_age_ms": 40.0, "gate_reasons": 0}
    action = np.zeros(2, np.float32)
    return Step(Observation({}, action, "", tick), action, action, source, extras=known | extras)


def count(steps: list[Step], times_ms: list[float]) -> LoopStatistics:
    times = iter(times_ms)
    statistics = LoopStatistics(lambda: round(next(times) * MS))
    for step in steps:
        statistics.on_step(step)
    return statistics


def test_periods_are_between_the_steps_of_an_attempt() -> None:
    statistics = count([make_step(tick) for tick in (0, 1, 3, 0, 1)], [0, 20, 61, 500, 520])
    np.testing.assert_allclose(statistics.periods_ms(), [20, 41, 20])
    assert (statistics.ticks, statistics.missed) == (5, 1)


def test_takeovers_and_holds_are_counted() -> None:
    kinds = [Source.POLICY, Source.HUMAN, Source.HUMAN, Source.HOLD, Source.HUMAN]
    statistics = count([make_step(tick, kind) for tick, kind in enumerate(kinds)], list(range(5)))
    assert (statistics.takeovers, statistics.held) == (2, 1)


def test_the_delay_of_a_chunk_is_the_index_at_which_it_was_entered() -> None:
    entries = [(0, 0), (0, 1), (1, 4), (1, 5), (2, 3)]
    steps = [make_step(tick, chunk_id=c, chunk_index=i) for tick, (c, i) in enumerate(entries)]
    assert count(steps, list(range(5))).delays(last=2).tolist() == [4, 3]


def test_every_reason_is_counted_by_itself() -> None:
    both = int(Reason.RATE | Reason.JOINT_LIMIT)
    flags = [0, both, both, int(Reason.RATE)]
    statistics = count([make_step(tick, gate_reasons=flag) for tick, flag in enumerate(flags)], list(range(4)))
    assert statistics.reason_counts() == {Reason.RATE: 3, Reason.JOINT_LIMIT: 2}


def test_the_panel_says_it_all() -> None:
    steps = [make_step(tick, chunk_id=tick // 4, chunk_index=2, gate_reasons=int(Reason.SMOOTHED)) for tick in range(9)]
    lines = "\n".join(panel(count(steps, [20 * tick for tick in range(9)]), "mock", 50))
    for words in (
        "mock",
        "tick 8",
        "POLICY",
        "policy version 3",
        "50.0 of 50 Hz",
        "p99 20.00",
        "SMOOTHED 9",
        "2 ticks",
    ):
        assert words in lines
    assert panel(LoopStatistics(), "mock", 50) == ["mock: no step yet"]


def test_more_steps_than_the_window_keep_the_newest() -> None:
    steps = [make_step(tick, observation_age_ms=float(tick)) for tick in range(1000)]
    statistics = count(steps, list(range(1000)))
    assert len(statistics.ages_ms()) == 512
    assert statistics.ages_ms().min() == 488


def test_frames_overwrite_each_other_and_messages_stand_above() -> None:
    stream = io.StringIO()
    before = list(logging.getLogger().handlers)
    with LiveDisplay("mock", 50, stream, columns=60) as display:
        display.on_step(make_step(0))
        logging.getLogger("test").warning("mind the %s", "gap")
    written = stream.getvalue()
    assert logging.getLogger().handlers == before
    assert "mind the gap" in written
    assert written.startswith("\x1b[?25l")
    assert written.endswith("\x1b[?25h")
    assert written.count("tick 0") == 1 or "\x1b[6A" in written, "a second frame goes over the first one's lines"


@pytest.mark.slow
def test_a_terminal_that_blocks_does_not_hold_the_loop() -> None:
    """Nobody reads the other end of a full pipe; steps go on, and leaving takes a second at most."""
    reader, writer = os.pipe()
    os.set_blocking(writer, True)
    stream = os.fdopen(writer, "w")
    display = LiveDisplay("x" * 100_000, 50, stream, columns=200_000)
    display.__enter__()
    for tick in range(2000):
        display._drawn_ns = 0
        display.on_step(make_step(tick))
    assert display.statistics.ticks == 2000
    display.__exit__(None, None, None)
    os.close(reader)  # the blocked write fails, and the writer ends
    display._writer.join(timeout=60)
    assert not display._writer.is_alive()
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def test_a_reason_that_toggles_with_the_ticks_is_told_as_one_until_it_stays_away() -> None:
    now_ms = [0]
    statistics = LoopStatistics(lambda: now_ms[0] * MS)
    told = []
    for tick in range(40):
        now_ms[0] = 50 * tick
        statistics.on_step(make_step(tick, gate_reasons=int(Reason.JOINT_LIMIT) if tick % 3 == 0 else 0))
        told.append(statistics.recent_reasons(2.0))
    assert set(told) == {Reason.JOINT_LIMIT}
    now_ms[0] += 2500
    assert statistics.recent_reasons(2.0) == Reason(0)
