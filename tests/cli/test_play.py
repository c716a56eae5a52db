"""The page of `vla-rl play`: driven by keyboard and mouse, also in a real browser without a screen."""

import http.client
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vla_rl.cli.main import main
from vla_rl.cli.play import serve
from vla_rl.runs.config import TaskConfig
from vla_rl.runs.play_session import PlayConfig, PlaySession
from vla_rl.runs.task import open_robot

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WITHIN_S = 120.0


@pytest.fixture
def session() -> Iterator[PlaySession]:
    robot = open_robot(TaskConfig(image_size=32))
    yield PlaySession(robot, None, PlayConfig())
    robot.close()


def test_keys_and_mouse_move_the_chosen_arm(session: PlaySession) -> None:
    rest = np.array(session.newest()[1]["action"])
    session.controls.update(["ArrowRight", "w"], ["ArrowRight", "w"], (0, 0))
    for _ in range(4):
        session.step()
    moved = np.array(session.newest()[1]["action"]) - rest
    assert moved[0] == pytest.approx(4 * 0.25 / 20, abs=1e-3)
    assert moved[2] == pytest.approx(4 * 0.25 / 20, abs=1e-3)
    session.controls.update([], ["2", " "], (0.1, 0.0))
    session.step()
    status = session.newest()[1]
    moved = np.array(status["action"]) - rest
    assert status["arm"] == 2
    assert moved[4] == pytest.approx(0.035, abs=1e-3)
    assert status["action"][7] == 0.0  # the gripper was open
    assert status["tick"] == 5
    session.controls.update([], ["r"], (0, 0))
    session.step()
    assert session.newest()[1]["tick"] == 0


def test_imagination_gets_the_same_actions(session: PlaySession) -> None:
    class Imagined:
        """Notes what it is given."""

        def __init__(self) -> None:
            self.actions: list[np.ndarray] = []

        def begin_at(self, observation: dict[str, Any], seed: int) -> dict[str, Any]:
            return observation

        def step(self, action: np.ndarray) -> tuple[Any, ...]:
            self.actions.append(action)
            pixels = {name: np.zeros((32, 32, 3), np.uint8) for name in ("front", "top")}
            return {"pixels": pixels}, 0.0, False, False, {"is_success": True}

    imagined = Imagined()
    both = PlaySession(session._real, imagined, PlayConfig(scale=1))
    both.controls.update(["ArrowUp"], [], (0, 0))
    both.step()
    picture, status = both.newest()
    assert imagined.actions[0].tolist() == pytest.approx(status["action"], abs=1e-4)
    assert status["success"] == {"real": False, "imagined": True}
    assert picture.shape == (64, 64, 3)
    assert picture[:32].any()
    assert not picture[32:].any()


def test_the_server_answers_and_refuses_nonsense(session: PlaySession) -> None:
    with serve(session, False, 0) as address:
        host, port = address.removeprefix("http://").strip("/").split(":")

        def ask(method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
            connection = http.client.HTTPConnection(host, int(port), timeout=WITHIN_S)
            connection.request(method, path, body)
            answer = connection.getresponse()
            content = answer.read() if path != "/stream" else answer.read(2000)
            connection.close()
            return answer.status, content

        assert b"vla-rl play" in ask("GET", "/")[1]
        assert b"\xff\xd8" in ask("GET", "/stream")[1]  # a JPEG begins
        good = json.dumps({"keys": ["w"], "pressed": ["w"], "drag": [0, 0]}).encode()
        code, content = ask("POST", "/controls", good)
        assert (code, json.loads(content)["imagined"]) == (200, False)
        for body in (b"{", b"[]", b'{"keys": 3}', good.replace(b"[0, 0]", b"[NaN, 0]"), b"x" * 20_000):
            assert ask("POST", "/controls", body)[0] == 400
        assert ask("GET", "/etc/passwd")[0] == 404
        taken = main(["play", "--port", port])
    assert taken == 2


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_a_browser_drives_the_task(session: PlaySession, tmp_path: Path) -> None:
    player = threading.Thread(target=session.run)
    with serve(session, False, 0) as address, Browser(tmp_path) as browser:
        player.start()
        try:
            browser.open(address)
            browser.until("document.getElementById('status').textContent.startsWith('tick')")
            assert browser.until("document.getElementById('view').naturalWidth > 0")
            before = session.newest()[1]["action"][0]
            browser.key("keyDown", "ArrowRight")
            deadline_s = time.monotonic() + WITHIN_S
            while session.newest()[1]["action"][0] < before + 0.02 and time.monotonic() < deadline_s:
                time.sleep(0.05)
            browser.key("keyUp", "ArrowRight")
            assert session.newest()[1]["action"][0] >= before + 0.02
        finally:
            session.stop()
            player.join()


class Browser:
    """Chromium without a screen, driven through its debugging pipe (one JSON message, then a zero byte)."""

    def __init__(self, profile: Path) -> None:
        from_us, self._out = os.pipe()
        self._in, to_us = os.pipe()

        options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        # The browser reads descriptor 3 and writes 4.
        place = f'exec "$0" "$@" 3<&{from_us} 4>&{to_us}'
        self._process = subprocess.Popen(
            ["bash", "-c", place, str(CHROMIUM), *options, "--remote-debugging-pipe", "about:blank"],
            pass_fds=(from_us, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        self._buffer, self._count = b"", 0
        self._page: dict[str, str] = {}

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def open(self, address: str) -> None:
        target = self._ask("Target.createTarget", url=address)["targetId"]
        self._page = {"sessionId": self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}

    def until(self, condition: str) -> bool:
        deadline_s = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline_s:
            if self._ask("Runtime.evaluate", expression=condition)["result"].get("value") is True:
                return True
            time.sleep(0.1)
        return False

    def key(self, kind: str, key: str) -> None:
        self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=39)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters, **self._page}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                self._buffer += os.read(self._in, 65536)
            answer, _, self._buffer = self._buffer.partition(b"\0")
            content = json.loads(answer)
            if content.get("id") == self._count:
                return content["result"]
