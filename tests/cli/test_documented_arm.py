"""The commands that the pages give for a real arm run on lerobot's SO-101 with a bus in memory and a person's keys."""

import os
import pty
import shutil
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks.docs_commands import ROOT, Command, commands, run_command
from robot_io.terminal_keys import TerminalKeys, wait_for_enter
from tests.fakes.lerobot_bus import put_arm_in_memory
from vla_rl.data.store import EpisodeStore

KEYS = b"\n s"  # begin an attempt, take over, end it as a success


@pytest.fixture
def arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory beside an arm, and a person who presses keys."""
    put_arm_in_memory(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lerobot.robots.robot.HF_LEROBOT_CALIBRATION", tmp_path / "calibration")
    monkeypatch.setattr("lerobot.teleoperators.teleoperator.HF_LEROBOT_CALIBRATION", tmp_path / "calibration")
    monkeypatch.setattr("builtins.input", lambda prompt="": "")
    shutil.copytree(ROOT / "configs", "configs")
    shutil.copy("configs/robots/so101.yaml", "my_limits.yaml")
    person, terminal = pty.openpty()
    monkeypatch.setattr("vla_rl_lerobot.TerminalKeys", partial(TerminalKeys, terminal=terminal))
    monkeypatch.setattr("robot_io.terminal_keys.wait_for_enter", partial(wait_for_enter, terminal))
    over = threading.Event()

    def press() -> None:
        number = 0
        while not over.wait(0.4):
            os.write(person, KEYS[number % len(KEYS) :][:1])
            number += 1

    presses = threading.Thread(target=press)
    presses.start()
    monkeypatch.setattr(sys, "stdin", os.fdopen(terminal, closefd=False))  # a person is at the terminal
    yield tmp_path
    over.set()
    presses.join()


def documented(page: str, *words: str) -> list[Command]:
    found = [command for command in commands(ROOT / page) if all(word in command.text for word in words)]
    assert found, f"{page} has no command with {words}"
    return found


@pytest.mark.slow
def test_the_pages_for_an_arm_run_from_calibration_to_practice(arm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lerobot.scripts import lerobot_calibrate

    page = "docs/learn/real_arm.md"
    for command in documented(page, "lerobot-calibrate"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", command.text.split())
            lerobot_calibrate.main()
    assert {file.name for file in (arm / "calibration").rglob("*.json")} == {"right.json", "leader.json"}

    for text in ("vla-rl record", "vla-rl finetune --data runs/arm/demonstrations --algorithm"):
        (command,) = documented(page, text)
        assert run_command(command, {}) == 0, command.text
    recorded = EpisodeStore(Path("runs/arm/demonstrations"), create=False)
    assert recorded.read(recorded.ids()[0]).state_dimensions.names[0] == "shoulder_pan.pos"
    for copy in ("runs/demo", "RUN"):
        shutil.copytree("runs/arm-1", copy)

    checks = documented("docs/before_it_moves.md", "robot check", "--robot lerobot")
    checks += documented("docs/execution.md", "robot check", "--robot lerobot")
    rollouts = documented(page, "rollout runs/arm-1", "--robot lerobot")
    rollouts += documented("docs/execution.md", "rollout RUN", "--robot lerobot")
    for command in [*checks, *rollouts]:
        assert run_command(command, {}) == 0, command.text
    practiced = EpisodeStore(Path("runs/arm/practice"), create=False)
    assert practiced.read_header(practiced.ids()[0]).success is True
