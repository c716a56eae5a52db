"""Keys and motions become commands of any environment."""

from pathlib import Path

import numpy as np
import pytest

from robot_io.env_interface import ActionInterface
from robot_io.keyboard import Keyboard, KeyboardConfig
from robot_io.motion import MotionSteps
from robot_io.spacemouse import SpaceMouse, SpaceMouseDriver

A, D = "absolute", "delta"


def actions(kinds: str, grippers: tuple[int, ...] = ()) -> ActionInterface:
    size = len(kinds)
    low, high = np.full(size, -1, np.float32), np.full(size, 3, np.float32)
    return ActionInterface(low, high, tuple({"a": A, "d": D}[kind] for kind in kinds), grippers, None, ())


def test_groups_are_arms() -> None:
    assert MotionSteps(actions("a" * 8, (3, 7)), 10, 0.5).groups == [((0, 1, 2), 3), ((4, 5, 6), 7)]
    assert MotionSteps(actions("a" * 7, (6,)), 10, 0.5).groups == [((0, 1, 2), None), ((3, 4, 5), 6)]
    assert MotionSteps(actions("aa"), 10, 0.5).groups == [((0, 1), None)]


def test_targets_move_and_steps_are_steps() -> None:
    steps = MotionSteps(actions("aada", (3,)), control_hz=10, speed=0.5)
    still = np.array([0, 2.95, 0, 0], np.float32)
    np.testing.assert_allclose(steps(still, np.array([-1, 1, 1], np.float32), 1), [-0.2, 3, 1.5, 3], rtol=1e-6)
    np.testing.assert_allclose(steps(still, np.array([0, 0, -1], np.float32), -1), [0, 2.95, -0.5, -1], rtol=1e-6)
    np.testing.assert_allclose(still, [0, 2.95, 0, 0], rtol=1e-6)


def test_a_key_is_held_while_the_terminal_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [10.0]
    monkeypatch.setattr("robot_io.keyboard.time.monotonic", lambda: now_s[0])
    keyboard = Keyboard(MotionSteps(actions("aaa"), 10, 0.5), KeyboardConfig(hold_s=0.2))
    keyboard.reset(0)
    still = np.zeros(3, np.float32)
    assert keyboard.command(0, still) is None
    keyboard.press("left")
    keyboard.press("i")
    moved = keyboard.command(0, still)
    assert moved is not None
    np.testing.assert_allclose(moved, [-0.2, 0, 0.2], rtol=1e-6)
    now_s[0] += 0.25
    assert keyboard.command(1, still) is None


def test_digits_choose_the_arm_and_g_its_gripper() -> None:
    keyboard = Keyboard(MotionSteps(actions("a" * 8, (3, 7)), 10, 0.5), KeyboardConfig())
    keyboard.reset(0)
    still = np.zeros(8, np.float32)
    for key in "92g":
        keyboard.press(key)
    closed = keyboard.command(0, still)
    assert closed is not None
    assert np.flatnonzero(closed).tolist() == [7]
    assert closed[7] == -1
    keyboard.press("g")
    opened = keyboard.command(1, closed)
    assert opened is not None
    assert opened[7] == 3
    assert keyboard.command(2, opened) is None


def test_a_gripper_that_is_pressed_twice_between_ticks_stays() -> None:
    keyboard = Keyboard(MotionSteps(actions("aaa", (2,)), 10, 0.5), KeyboardConfig())
    keyboard.reset(0)
    keyboard.press("g")
    keyboard.press("g")
    assert keyboard.command(0, np.zeros(3, np.float32)) is None


@pytest.mark.parametrize("bad", [{"speed": 0.0}, {"hold_s": -1.0}])
def test_senseless_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(Exception, match="both must be positive"):
        KeyboardConfig(**bad)


def test_a_spacemouse_moves_the_tool_and_both_buttons_give_up(tmp_path: Path) -> None:
    device = tmp_path / "hidraw0"
    device.write_bytes(b"")
    mouse, ended = SpaceMouse(device), list[bool | None]()
    mouse.connect()
    driver = SpaceMouseDriver(mouse, MotionSteps(actions("aaaa", (3,)), 10, 0.5), ended.append)
    driver.reset(0)
    still = np.zeros(4, np.float32)
    assert driver.command(0, still) is None
    forwards_and_left = b"".join(axis.to_bytes(2, "little", signed=True) for axis in (-175, -350, 3))
    with device.open("ab") as stream:
        stream.write((b"\x01" + forwards_and_left).ljust(64, b"\x00"))
        stream.write(b"\x03\x01".ljust(64, b"\x00"))
    np.testing.assert_allclose(driver.command(1, still), [0.2, 0.1, 0, -1], rtol=1e-6)
    assert not ended
    with device.open("ab") as stream:
        stream.write(b"\x03\x03".ljust(64, b"\x00"))
    np.testing.assert_allclose(driver.command(2, still), [0.2, 0.1, 0, 0], rtol=1e-6)
    assert ended == [False]
    mouse.disconnect()
