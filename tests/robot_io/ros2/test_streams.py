"""Streams matched in time, joints that freeze, ROS time that jumps, a person on a topic: all without ROS."""

import threading

import numpy as np
import pytest

from robot_io.ros2.clock import ClockStoppedError, RosTime
from robot_io.ros2.operator import OperatorRequests, TopicTakeover
from robot_io.ros2.streams import Streams
from robot_io.takeover import Clutch
from vla_rl.core.clock import machine_ns
from vla_rl.core.types import Float32Array

MS = 1_000_000


def test_streams_are_matched_to_the_newest_moment_that_all_have_reached() -> None:
    streams = Streams(["front", "state"])
    streams.add("state", 0, "s0")
    assert streams.take() == {}, "not before every stream has spoken"
    streams.add("front", 33 * MS, "f33")
    for moment in range(2, 60, 2):
        streams.add("state", moment * MS, f"s{moment}")
    assert streams.take() == {"front": (33 * MS, "f33"), "state": (34 * MS, "s34")}
    assert streams.newest_ns() == {"front": 33 * MS, "state": 58 * MS}
    loose = Streams(["front", "state"], synchronize=False)
    loose.add("front", 33 * MS, "f33")
    loose.add("state", 58 * MS, "s58")
    assert loose.take()["state"] == (58 * MS, "s58")


def test_a_stream_keeps_a_second_whatever_its_rate() -> None:
    streams = Streams(["front", "state"])
    history = streams._histories["state"]
    for moment in range(5000):
        streams.add("state", moment * MS, moment)
    assert [value for _, value in history] == list(range(3999, 5000))
    streams.add("front", 4200 * MS, "f4200")
    assert streams.take()["state"] == (4200 * MS, 4200)
    for repeated in range(100):
        streams.add("state", 5000 * MS, repeated)
    assert len(history) == 1001, "readings whose time stands still do not pile up"
    assert history[-1] == (5000 * MS, 99), "the last word counts"
    streams.add("state", 4500 * MS, "frozen since")
    assert streams.newest_ns()["state"] == 4500 * MS, "and so it does when it takes younger ones back"
    assert [moment for moment, _ in history] == sorted(moment for moment, _ in history)


def position(*values: float) -> Float32Array:
    return np.array(values, np.float32)


def test_stamps_of_the_machine_become_loop_time_and_a_jump_is_noticed() -> None:
    offset_ns = 10**18
    clock = RosTime(simulated=False, system_ns=lambda: machine_ns() + offset_ns)
    now_ns = clock.now_ns()
    loop_ns = clock.loop_ns(now_ns + offset_ns - 30 * MS)
    assert loop_ns is not None
    assert abs(loop_ns - (now_ns - 30 * MS)) < 5 * MS
    assert clock.loop_ns(now_ns + offset_ns + 500 * MS) is None, "a stamp from the future is not believed"
    assert clock.jump_s is None
    offset_ns -= 3 * 10**9
    clock.watch()
    assert clock.jump_s == pytest.approx(-3.0, abs=0.01)
    clock.begin()
    assert clock.jump_s is None


@pytest.mark.parametrize("jump_ns", [-2 * 10**9, 7 * 10**9])
def test_simulated_time_never_goes_back(jump_ns: int) -> None:
    clock = RosTime(simulated=True, max_jump_ms=500.0)
    for tick in range(5):
        clock.on_clock(10**9 + tick * 50 * MS)
    before_ns = clock.now_ns()
    clock.on_clock(10**9 + 200 * MS + jump_ns)
    assert clock.now_ns() == before_ns, "the loop's time stands still over the jump"
    assert clock.jump_s == pytest.approx(jump_ns * 1e-9)
    clock.on_clock(10**9 + 250 * MS + jump_ns)
    assert clock.now_ns() == before_ns + 50 * MS
    assert clock.loop_ns(10**9 + 240 * MS + jump_ns) == before_ns + 40 * MS


def test_on_a_simulation_a_stamp_may_be_a_step_ahead_of_the_clock_and_no_further() -> None:
    clock = RosTime(simulated=True, max_jump_ms=500.0)
    assert clock.loop_ns(3_000 * MS) is not None, "there is no clock yet"
    clock.on_clock(1_000 * MS)
    assert clock.loop_ns(1_400 * MS) == 1_400 * MS
    assert clock.loop_ns(11_000 * MS) is None


def test_waiting_for_simulated_time() -> None:
    clock = RosTime(simulated=True, timeout_s=0.05)
    clock.on_clock(10**9)
    with pytest.raises(ClockStoppedError, match="silent"):
        clock.sleep_until_ns(2 * 10**9)
    patient = RosTime(simulated=True, timeout_s=30.0)
    patient.on_clock(10**9)
    threading.Timer(0.02, patient.on_clock, [1_200_000_000]).start()
    patient.sleep_until_ns(1_150_000_000)
    threading.Timer(0.02, patient.interrupt).start()
    patient.sleep_until_ns(9 * 10**9)


def takeover(relative: bool = True, step_dims: tuple[int, ...] = ()) -> tuple[TopicTakeover, list[int]]:
    now = [0]
    last = position(1.0, 2.0, 0.5)
    return TopicTakeover(lambda: last, lambda: now[0], relative, Clutch([2], step_dims), timeout_ms=100.0), now


def test_a_person_takes_over_from_the_tick_that_was_promised() -> None:
    person, now = takeover()
    proposed = position(9.0, 9.0, 9.0)
    person.reset(0)
    assert person.command(0, proposed) is None
    assert person.engage(True) == 1
    held = person.command(1, proposed)
    np.testing.assert_array_equal(held, [1.0, 2.0, 0.5], "without commands the robot holds, whatever the policy wants")
    person.move(position(5.0, 5.0, 0.7))
    np.testing.assert_allclose(person.command(2, proposed), [1.0, 2.0, 0.7], err_msg="relative; grippers are not")
    person.move(position(5.1, 5.0, 0.7))
    np.testing.assert_allclose(person.command(3, proposed), [1.1, 2.0, 0.7], atol=1e-6)
    now[0] = 200 * MS
    np.testing.assert_array_equal(person.command(4, proposed), [1.0, 2.0, 0.5], "a device that fell silent")
    assert person.engage(False) == 5
    assert person.command(5, proposed) is None


@pytest.mark.parametrize("relative", [True, False])
def test_a_person_who_says_nothing_does_not_repeat_the_last_step(relative: bool) -> None:
    """Of a robot with a dimension of steps, a velocity: what was sent last would move it on, at every tick."""
    person, now = takeover(relative, step_dims=(0,))
    proposed = position(9.0, 9.0, 9.0)
    person.engage(True)
    held = [0.0, 2.0, 0.5]
    np.testing.assert_array_equal(person.command(0, proposed), held, "nothing was said yet")
    person.move(position(0.3, 2.0, 0.5))
    np.testing.assert_allclose(person.command(1, proposed), [0.3, 2.0, 0.5], err_msg="steps follow the device itself")
    person.move(position(0.0, 2.0, 0.5))
    np.testing.assert_allclose(person.command(2, proposed), [0.0, 2.0, 0.5], err_msg="a device that lies still")
    person.move(position(np.nan, 2.0, 0.5))
    np.testing.assert_array_equal(person.command(3, proposed), held)
    now[0] = 200 * MS
    np.testing.assert_array_equal(person.command(4, proposed), held, "a device that fell silent")


@pytest.mark.parametrize("bad", [position(np.nan, 0.0, 0.0), position(0.0)])
def test_commands_that_are_none_are_not_followed(bad: Float32Array) -> None:
    person, _ = takeover(relative=False)
    person.engage(True)
    person.move(bad)
    np.testing.assert_array_equal(person.command(0, position(9.0, 9.0, 9.0)), [1.0, 2.0, 0.5])
    person.move(position(4.0, 4.0, 4.0))
    np.testing.assert_array_equal(person.command(1, position(9.0, 9.0, 9.0)), [4.0, 4.0, 4.0])


def test_whoever_waits_at_the_desk_goes_on_when_the_node_is_deactivated() -> None:
    operator = OperatorRequests()
    operator.open()
    threading.Timer(0.02, operator.start).start()
    assert operator.wait_for_start()
    threading.Timer(0.02, operator.close).start()
    assert not operator.wait_for_start()
    operator.wait_for_label(30.0)
    operator.open()
    operator.begin()
    threading.Timer(0.02, operator.label, [True]).start()
    operator.wait_for_label(30.0)
    assert operator.outcome is True
    operator.begin()
    assert operator.outcome is None
