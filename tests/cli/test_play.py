"""A person at the page of `vla-rl play`: driven by keyboard and mouse, also in a real browser without a screen."""

import http.client
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from robot_io.env_interface import EnvDeclaration
from robot_io.env_robot import EnvRobot
from tests.execution.toys import ReachEnv
from vla_rl.acting import browser
from vla_rl.acting.browser import BrowserConfig, BrowserPage, BrowserSupervisor, Input, serve_browser_page
from vla_rl.acting.task import make_supervisor, open_robot
from vla_rl.acting.world_folder import WorldFolder, collect_near_success
from vla_rl.cli.main import main
from vla_rl.core.config import save_config
from vla_rl.core.json_files import SEAL, write_sealed
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Float32Array, Origin, Source
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.flow_vla.config import ExpertConfig, FlowVLAConfig, VisionConfig
from vla_rl.policies.flow_vla.model import FlowVLA
from vla_rl.training.config import RunConfig, TakeoverConfig, TaskConfig
from vla_rl.training.world_model import train_on_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WITHIN_S = 120.0
FAST = {"pace": 20.0, "size_px": 32}
SMALL = FlowVLAConfig(vision=VisionConfig(widths=(4,), kernels=(4,), strides=(4,)), expert=ExpertConfig(width=16))


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> BrowserPage:
    """A page that needs no page."""
    page = BrowserPage()
    monkeypatch.setattr(browser, "browser_page_at", lambda port: page)
    return page


@pytest.fixture
def robot() -> Iterator[EnvRobot]:
    robot = open_robot(TaskConfig(image_size=32))
    robot.reset(0)
    yield robot
    robot.close()


def begin(person: BrowserSupervisor, page: BrowserPage) -> None:
    """`reset` waits for a key; this presses one."""
    waiting = threading.Thread(target=person.reset, args=(0,), daemon=True)
    waiting.start()
    press_a_key(waiting, page)


def press_a_key(waiting: threading.Thread, page: BrowserPage) -> None:
    """Until it is heard: one that comes before the question is lost."""
    deadline_s = time.monotonic() + WITHIN_S
    while waiting.is_alive() and time.monotonic() < deadline_s:
        if page.newest()[1].get("waiting"):
            page.add(Input(pressed=("Enter",)))
        time.sleep(0.02)
    assert not waiting.is_alive()


def test_nothing_begins_before_a_key_and_then_the_policy_acts(page: BrowserPage, robot: EnvRobot) -> None:
    person = BrowserSupervisor(robot.env, BrowserConfig(**FAST))
    page.add(Input(pressed=("x",)))  # before anybody was asked
    waiting = threading.Thread(target=person.reset, args=(0,), daemon=True)
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    press_a_key(waiting, page)
    assert person.command(0, robot.rest_command()) is None
    pictures, status = page.newest()
    assert (status["waiting"], status["person"]) == (False, False)
    assert pictures["task"].shape == (32, 64, 3)


def test_a_key_takes_over_moves_the_chosen_arm_and_t_gives_back(page: BrowserPage, robot: EnvRobot) -> None:
    person, rest = BrowserSupervisor(robot.env, BrowserConfig(**FAST)), robot.rest_command()
    begin(person, page)
    span = robot.actions.high - robot.actions.low
    page.add(Input(frozenset({"ArrowRight", "w"}), ("ArrowRight", "w")))
    for tick in range(4):
        command = person.command(tick, rest)
    assert command is not None
    a_tick = 0.3 / (20 * FAST["pace"])
    expected = rest.copy()
    expected[[0, 2]] += 4 * a_tick * span[[0, 2]]
    assert command == pytest.approx(expected, abs=1e-5)
    assert page.newest()[1]["person"]
    page.add(Input(pressed=("2", " ", "²")))
    command = person.command(5, rest + 9)
    assert command is not None
    assert command[7] == robot.actions.low[7], "the second gripper closes"
    assert command[:3] == pytest.approx(expected[:3], abs=1e-5), "what is not moved stays where the person left it"
    page.add(Input(axes=(0.0, 0.05, -1.0)))
    raised = person.command(6, rest)
    assert raised is not None
    assert raised[6] < command[6]
    assert raised[5] == pytest.approx(command[5]), "a stick that is hardly moved is at rest"
    page.add(Input(pressed=("t",)))
    assert person.command(7, rest) is None


def test_what_the_policy_would_do_is_shown_beside_what_the_person_does(page: BrowserPage, robot: EnvRobot) -> None:
    person = BrowserSupervisor(robot.env, BrowserConfig(**FAST))
    begin(person, page)
    page.add(Input(drag=(0.1, 0.0)))
    person.command(0, robot.actions.high)
    status = page.newest()[1]
    assert status["policy"] == [1.0] * 8
    assert len(status["command"]) == 8
    assert person.wants_proposals


class Scripted(BrowserSupervisor):
    """Somebody whose keys are known in advance."""

    def __init__(self, env: Any, config: BrowserConfig) -> None:
        super().__init__(env, config)
        self.page = browser.browser_page_at(0)

    def reset(self, seed: int) -> None:
        begin_now = threading.Timer(0.3, self.page.add, [Input(pressed=("Enter",))])
        begin_now.start()
        super().reset(seed)

    def command(self, tick: int, proposed: Float32Array) -> Float32Array | None:
        self.page.add(Input(frozenset({"ArrowLeft"}) if 5 <= tick < 12 else frozenset(), ("t",) if tick == 20 else ()))
        return super().command(tick, proposed)


@pytest.mark.slow
def test_the_world_model_predicts_beside_the_task_what_the_person_does(
    page: BrowserPage, robot: EnvRobot, tmp_path: Path
) -> None:
    """From the same picture, with the same commands, at every attempt anew."""
    task, world = TaskConfig(image_size=32), WorldFolder(tmp_path / "world")
    run = RunFolder.create(tmp_path / "run", RunConfig(task=task))
    for path, seed in ((run.episodes, 10), (run.evaluation, 20)):
        collect_near_success(task, RunConfig().gate, EpisodeStore(path), 2, seed)
    FlowVLA.build(SMALL, *EpisodeStore(run.episodes).summary()).save(run.policy(0), {"policy_version": 0})
    train_on_run(run.path, world.path, ["dynamics.steps=3", "dynamics.members=2", "decoder_steps=20"], near_success=0)
    driven, inner = BrowserConfig(**FAST, alone=True, world=str(world.path)), robot.env.unwrapped

    def shown() -> Any:
        pictures = page.newest()[0]
        assert pictures["imagined"].shape == pictures["task"].shape == (32, 64, 3)
        return pictures["imagined"]

    def off() -> int:
        """Largest difference to what the same world model draws, in levels. The decoder rounds."""
        return int(np.abs(shown().astype(int) - expected.render()).max())

    for surprised in (False, True):  # the second model has disagreed less on what it knows
        config = json.loads((world.model / "config.json").read_text())
        del config[SEAL]
        trust = {"slope": 1.0, "offset": -50.0, "familiar": 1e-6 if surprised else 1e6}
        write_sealed(world.model / "config.json", {**config, "trust": trust})
        person, expected = BrowserSupervisor(robot.env, driven), world.open_env()
        begin(person, page)
        expected.begin_at(inner.set_state(inner.get_state()))
        first = shown().copy()
        assert off() <= 1
        page.add(Input(frozenset({"ArrowRight", "w"}), ("ArrowRight", "w")))
        says = ""
        for tick in range(8):  # past the end of a chunk
            command = person.command(tick, robot.rest_command())
            assert command is not None
            info = expected.step(command)[4]
            says = says or ("success" if info["is_success"] else "nothing certain from here on" * info["is_lost"])
            assert off() <= 1
            assert page.newest()[1]["predicts"] == says
        assert (says != "") == surprised
        assert np.abs(shown().astype(int) - first).max() > 5


@pytest.mark.slow
def test_a_world_model_brings_its_task_and_has_that_of_the_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = WorldFolder(tmp_path / "world")
    world.path.mkdir()
    save_config(TaskConfig(env="vla_rl/LidOnBox-v0"), world.task_file)
    assert main(["play", "--world", str(world.path), "--difficulty", "0.3"]) == 2
    assert "a world model brings its own task" in capsys.readouterr().err
    run = RunFolder.create(tmp_path / "run", RunConfig())
    spec = PolicySpec("vla_rl/PegInsert-v0", ("front", "top"), (32, 32), 8, 8)
    statistics = Statistics.from_arrays(np.zeros((2, 8)), np.zeros((2, 8)))
    FlowVLA.build(SMALL, spec, statistics).save(run.policy(0), {"policy_version": 0})
    assert main(["play", "--run", str(run.path), "--world", str(world.path)]) == 2
    assert "predicts vla_rl/LidOnBox-v0" in capsys.readouterr().err


def test_a_takeover_in_the_browser_is_intervention_data(page: BrowserPage, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ["train", "--config", "tiny", "--out", str(out), "workers=0", "budget.rounds=1"]
    person = [f"takeover.supervisor={__name__}:Scripted", "takeover.options.pace=50", "takeover.options.size_px=32"]
    assert main([*command, *person]) == 0
    store = EpisodeStore(out / "episodes")
    practiced = [store.read(name) for name in store.ids() if name.startswith("round")]
    assert practiced
    for episode in practiced:
        assert episode.origin is Origin.SIM
        assert (episode.source[5 : min(20, len(episode))] == Source.HUMAN).all()
        assert (episode.source[:5] == Source.POLICY).all()
        assert (episode.source[21:] != Source.HUMAN).all()


def test_any_environment_can_be_driven(page: BrowserPage) -> None:
    env = ReachEnv()
    person = BrowserSupervisor(env, BrowserConfig(**FAST, alone=True))
    env.reset(seed=0)
    begin(person, page)
    assert person.command(0, np.zeros(2, np.float32)) is None
    page.add(Input(frozenset({"ArrowUp"})))
    command = person.command(1, np.zeros(2, np.float32))
    assert command is not None
    assert command[1] > 0


class Unbounded(ReachEnv):
    """Names no bounds of its actions."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        (ReachEnv.__name__, EnvDeclaration(action_kind=("delta",))),
        (Unbounded.__name__, EnvDeclaration(action_kind=("delta",), action_low=(-1.0,), action_high=(1.0,))),
    ],
)
def test_a_person_drives_as_the_run_declares(name: str, declared: EnvDeclaration, page: BrowserPage) -> None:
    robot = open_robot(TaskConfig(env=f"{__name__}:{name}", declare=declared))
    person = make_supervisor(name, robot.env, TakeoverConfig(supervisor="browser", options=BrowserConfig(**FAST)))
    robot.reset(0)
    begin(person, page)
    page.add(Input(frozenset({"ArrowRight"}), ("ArrowRight",)))
    assert person.command(0, robot.rest_command()) == pytest.approx([0.3, 0.0])
    page.add(Input())
    assert person.command(1, robot.rest_command()) == pytest.approx([0.0, 0.0]), "no step without a key"


def test_the_page_answers_and_refuses_nonsense() -> None:
    page = BrowserPage()
    page.show({"task": np.zeros((32, 32, 3), np.uint8)}, {"task": "reach"})
    with serve_browser_page(page, 0) as address:
        host, port = address.removeprefix("http://").strip("/").split(":")

        def ask(method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
            connection = http.client.HTTPConnection(host, int(port), timeout=WITHIN_S)
            connection.request(method, path, body)
            answer = connection.getresponse()
            content = answer.read(500) if path.startswith("/stream/") else answer.read()
            connection.close()
            return answer.status, content

        assert b"vla-rl play" in ask("GET", "/")[1]
        assert b"\xff\xd8" in ask("GET", "/stream/task")[1]  # a JPEG begins
        good = json.dumps({"keys": ["w"], "pressed": ["w"], "drag": [0, 0], "axes": [0, 0, 5]}).encode()
        code, content = ask("POST", "/controls", good)
        assert (code, json.loads(content)["task"]) == (200, "reach")
        assert page.take() == Input(frozenset({"w"}), ("w",), (0.0, 0.0), (0.0, 0.0, 1.0))
        for body in (b"{", b"[]", b'{"keys": 3}', good.replace(b"[0, 0]", b"[NaN, 0]"), b"x" * 20_000):
            assert ask("POST", "/controls", body)[0] == 400
        assert ask("GET", "/etc/passwd")[0] == 404
        taken = main(["play", "--port", port])
    assert taken == 2


@contextmanager
def driving(page: BrowserPage, robot: EnvRobot) -> Iterator[None]:
    """Attempts go on in a thread, as fast as a person needs them."""
    person, ended = BrowserSupervisor(robot.env, BrowserConfig(size_px=64)), threading.Event()

    def drive() -> None:
        person.reset(0)
        while not ended.is_set():
            person.command(0, robot.rest_command())

    thread = threading.Thread(target=drive, daemon=True)
    thread.start()
    yield
    ended.set()
    page.add(Input(pressed=("Enter",)))
    thread.join(WITHIN_S)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_a_browser_drives_the_task(page: BrowserPage, robot: EnvRobot, tmp_path: Path) -> None:
    with serve_browser_page(page, 0) as address, Browser(tmp_path) as browser, driving(page, robot):
        browser.open(address)
        assert browser.until("!document.getElementById('begin').hidden")
        assert browser.until("document.getElementById('view').naturalWidth > 0")
        browser.key("keyDown", "ArrowRight")
        assert browser.until("document.getElementById('who').textContent === 'you act'")
        browser.key("keyUp", "ArrowRight")


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
