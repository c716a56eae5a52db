"""`vla-rl serve`: several clients, what it refuses, how it ends; and a robot in real time at a server with faults."""

import contextlib
import http.client
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings

pytest.importorskip("websockets", reason="needs the extra serve")

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

import vla_rl as vla
from benchmarks.any_policy.faults import KINDS, FaultyServer, in_process, in_thread
from benchmarks.any_policy.fuzz import MESSAGES
from vla_rl.acting.policy_folder import find_policy, load_policy
from vla_rl.acting.serve import PolicyServer, Session, serve
from vla_rl.core.config import config_to_dict
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import ActionChunk, Float32Array, Observation, Source
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.remote import RemoteError, RemoteInterface
from vla_rl.policies.remote.policy import OURS, TOKEN
from vla_rl.policies.remote.wire import pack, unpack

SPEC = PolicySpec("toy", ("front", "top"), (16, 16), state_dim=3, action_dim=2)
INTERFACE = RemoteInterface(SPEC, horizon=8)
HERE = "test_serve:Counting"
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Counting:
    """A policy of one's own: its chunks say how often it was asked in the episode, and its seed."""

    spec, horizon, version = SPEC, 8, 6
    wrong: ClassVar[str] = ""

    def reset(self, seed: int) -> None:
        self._asked, self._seed = 0, seed

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        self._asked += 1
        match observation.task:
            case "fail":
                raise RuntimeError("no memory")
            case "not finite":
                return ActionChunk(np.full((8, 2), np.nan, np.float32), observation.tick, 0, self.version)
            case "sleep":
                time.sleep(0.4)
        actions = np.tile(np.array([self._asked, self._seed], np.float32), (8, 1))
        return ActionChunk(actions, observation.tick, 0, self.version)


def observation(task: str = "", tick: int = 0) -> Observation:
    images = {camera: np.zeros((16, 16, 3), np.uint8) for camera in SPEC.cameras}
    return Observation(images, np.zeros(3, np.float32), task, tick)


def message(task: str = "") -> dict[str, Any]:
    return INTERFACE.message(observation(task))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with in_thread(PolicyServer(find_policy(HERE), clients=3)) as url:
        yield url


def frames_of(url: str) -> str:
    return url.replace("openpi", "ws", 1)


def test_a_class_of_ones_own_is_served_to_each_client_apart(server: str) -> None:
    clients: list[Any] = [load_policy(server) for _ in range(3)]
    for client, seed in zip(clients, (5, 6, 7), strict=True):
        client.reset(seed)
    for asked in (1, 2):
        for client, seed in zip(clients, (5, 6, 7), strict=True):
            assert client.infer(observation()).actions[0].tolist() == [asked, seed]
    with pytest.raises(RemoteError, match="503"):
        load_policy(server)
    for client in clients:
        client.close()


def test_a_client_of_openpi_gets_openpis_answers(server: str) -> None:
    """What openpi's own client does, by its source: metadata, a frame each way, no reset, no seed."""
    with connect(frames_of(server), compression=None, max_size=None) as client:
        assert OURS in unpack(client.recv())  # type: ignore[arg-type]
        for asked in (1, 2):
            client.send(pack(message()))
            answer = unpack(client.recv())  # type: ignore[arg-type]
            assert answer["actions"].shape == (8, 2)
            assert answer["actions"][0, 0] == asked, "one connection is one episode"
            assert answer["server_timing"]["infer_ms"] > 0
        assert answer["server_timing"]["prev_total_ms"] > 0


def test_ticks_of_other_clients_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []
    policy = Counting()
    infer = policy.infer
    monkeypatch.setattr(policy, "infer", lambda seen, committed: ticks.append(seen.tick) or infer(seen, committed))
    session = Session(policy, INTERFACE, 0)
    for _ in range(5):
        session.answer(pack(message()))
    assert ticks == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        ("text", "text frame"),
        (b"noise", "no message of a policy server"),
        (pack({}), "no array 'observation/front'"),
        (pack(message() | {"observation/state": np.zeros(4, np.float32)}), "the state is [4]"),
        (pack(message() | {"observation/state": np.full(3, np.nan)}), "finite"),
        (pack(message() | {"observation/state": np.full(3, 1e300)}), "finite"),
        (pack(message() | {"observation/top": np.zeros((16, 16, 3), np.float32)}), "float32 [16, 16, 3]"),
        (pack(message() | {"prompt": 3}), "send a sentence"),
        (pack(message() | {OURS: 1}), "send a mapping"),
        (pack(message() | {OURS: {"seed": -2}}), "seed is -2"),
        (pack(message() | {OURS: {"tick": True}}), "tick is True"),
        (pack(message() | {OURS: {"committed": np.zeros((2, 3), np.float32)}}), "no actions [d, 2]"),
        (pack(message() | {OURS: {"committed": np.full((2, 2), 1e300)}}), "not finite"),
        (pack(message() | {OURS: {"committed": np.zeros((9, 2), np.float32)}}), "at most 8"),
        (pack(message() | {OURS: {"previous": np.zeros((2, 2), np.float32)}}), "cannot be guided"),
        (pack(message("fail")), "RuntimeError: no memory"),
        (pack(message("not finite")), "not finite"),
    ],
)
def test_a_wrong_message_is_answered_in_words_and_others_go_on(server: str, frame: str | bytes, error: str) -> None:
    with connect(frames_of(server)) as other, connect(frames_of(server)) as client:
        other.recv()
        client.recv()
        client.send(frame)
        assert error in client.recv()
        with pytest.raises(ConnectionClosed, match="1011"):
            client.recv()
        other.send(pack(message()))
        assert unpack(other.recv())["actions"].shape == (8, 2)  # type: ignore[arg-type]


def test_a_message_that_is_too_large_is_not_read(server: str) -> None:
    with connect(frames_of(server), compression=None) as client:
        client.recv()
        client.send(bytes(4 * 2**20))
        with pytest.raises(ConnectionClosed, match="1009"):
            client.recv()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01 no http",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 100_000,
        b"GET / HTTP/1.1\r\nHost: a",  # and then nothing
        HANDSHAKE + b"\x82\xff" + b"\xff" * 8 + bytes(20),  # claims 2^64 bytes
        HANDSHAKE + b"\x82\x05abcde",  # not masked
        HANDSHAKE + b"\x82\x85\x00\x00\x00\x00ab",  # cut
        HANDSHAKE + b"\xff\xff\xff\xff",
    ],
)
def test_clients_that_break_the_protocol_disturb_nobody_else(server: str, sent: bytes) -> None:
    host, port = server.removeprefix("openpi://").split(":")
    with connect(frames_of(server)) as other:
        other.recv()
        with socket.create_connection((host, int(port))) as broken:
            broken.sendall(sent)
            other.send(pack(message()))
            assert unpack(other.recv(timeout=5))["actions"].shape == (8, 2)  # type: ignore[arg-type]
    for _ in range(4):  # more than there are places
        again: Any = load_policy(server)
        assert again.infer(observation()).actions.shape == (8, 2)
        again.close()


def test_browsers_are_refused(server: str) -> None:
    with pytest.raises(InvalidStatus, match="403"), connect(frames_of(server), origin="http://elsewhere.example"):  # type: ignore[arg-type]
        pass


def test_health_needs_no_token_and_all_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with in_thread(PolicyServer(find_policy(HERE), token="right")) as url:
        http_client = http.client.HTTPConnection(url.removeprefix("openpi://"), timeout=5)
        http_client.request("GET", "/healthz")
        answer = http_client.getresponse()
        assert (answer.status, answer.read()) == (200, b"OK\n")
        http_client.close()
        for token in ("", "wrong", "rightly"):
            monkeypatch.setenv(TOKEN, token)
            with pytest.raises(RemoteError, match="401; set VLA_RL_TOKEN"):
                load_policy(url)
        monkeypatch.setenv(TOKEN, "right")
        load_policy(url).close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org"])
def test_other_computers_need_a_token(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(UserError, match="set VLA_RL_TOKEN"):
        serve(HERE, host, 0)


@pytest.mark.parametrize(("port", "clients"), [(70_000, 8), (-1, 8), (0, 0), (0, -3)])
def test_a_server_that_nobody_can_reach_is_refused(port: int, clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PolicyServer, "run", lambda *_: pytest.fail("it listens"))
    with pytest.raises(UserError, match="expected"):
        serve(HERE, port=port, clients=clients)


def test_a_caller_that_says_nothing_does_not_delay_the_end() -> None:
    with contextlib.ExitStack() as silent:
        with in_thread(PolicyServer(find_policy(HERE))) as url:
            host, port = url.removeprefix("openpi://").split(":")
            silent.enter_context(socket.create_connection((host, int(port))))
            time.sleep(0.2)
            asked_s = time.monotonic()
        assert time.monotonic() - asked_s < 2


def test_a_policy_that_hangs_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vla_rl.acting.serve._LAST_ANSWERS_S", 0.1)
    answers = threading.Event()
    monkeypatch.setattr(Counting, "infer", lambda *_: answers.wait(10))
    with in_thread(PolicyServer(find_policy(HERE))) as url, connect(frames_of(url)) as client:
        client.recv()
        client.send(pack(message()))
        time.sleep(0.2)
        asked_s = time.monotonic()
    assert time.monotonic() - asked_s < 3
    answers.set()


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}"):
            serve(HERE, port=port)


@settings(max_examples=300, deadline=None)
@given(MESSAGES)
def test_no_message_brings_the_server_down(frame: bytes) -> None:
    with contextlib.suppress(UserError):
        Session(Counting(), INTERFACE, 0).answer(frame)


@pytest.mark.slow
def test_sigterm_ends_it_after_the_answer_that_is_due(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vla_rl.cli.main", "serve", HERE, "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "ws://" in line)
        address = line.split()[2].rstrip(",")
        with connect(address) as client:
            client.recv()
            client.send(pack(message("sleep")))
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            assert unpack(client.recv(timeout=5))["actions"].shape == (8, 2)  # type: ignore[arg-type]
            with pytest.raises(ConnectionClosed, match="1001"):
                client.recv(timeout=5)
        rest = process.stderr.read()
        assert process.wait(5) == 143
        assert "Traceback" not in rest, rest


@pytest.mark.slow
def test_a_robot_in_real_time_never_waits_for_a_server_with_faults(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every second answer is a fault, of every kind. A loop that waited would miss 5 ticks for each slow one."""
    faults: list[str | None] = [None, None, None]
    for kind in KINDS:
        faults += [kind, None]
    interface = replace(INTERFACE, spec=replace(SPEC, control_hz=50.0), horizon=60)
    settings = {"robot.duration_s": 4, "execution.hold_ticks": 500, "execution.execute_ticks": 2}
    with (
        in_process(FaultyServer(interface, faults, config_to_dict(interface), slow_s=0.15)) as url,
        caplog.at_level(logging.INFO),
    ):
        vla.rollout(f"{url}?timeout_s=0.1", "mock", realtime=True, out=tmp_path / "store", settings=settings)
    (episode,) = EpisodeStore(tmp_path / "store")
    assert (episode.source == Source.POLICY).mean() > 0.9
    (line,) = (record.message for record in caplog.records if "missed" in record.message)
    assert int(line.rpartition("missed ")[2]) <= 3, line


def test_a_server_acts_in_an_evaluation(server: str) -> None:
    found = find_policy(server)
    assert (found.spec, found.horizon, found.version, found.name) == (SPEC, 8, 6, server)
    assert vla.rollout(server, "mock", settings={"robot.duration_s": 0.5}) == [None]


@pytest.mark.slow
@pytest.mark.parametrize("realtime", [False, True])
def test_a_class_of_ones_own_acts_on_a_robot(tmp_path: Path, realtime: bool) -> None:
    settings = {"robot.duration_s": 1, "execution.execute_ticks": 4}
    vla.rollout(HERE, "mock", realtime=realtime, out=tmp_path, settings=settings, seed=3)
    (episode,) = EpisodeStore(tmp_path)
    asked = np.unique(episode.action_policy[episode.source == Source.POLICY, 0])
    assert asked.tolist() == [*range(int(asked[0]), int(asked[0]) + len(asked))], "one chunk after the other"
    assert len(asked) >= 3


class NoPolicy:
    """Lacks what a policy has."""


class NeedsWeights(Counting):
    def __init__(self, weights: str) -> None: ...


class NoVersion(Counting):
    version = None  # type: ignore[assignment]


class NoActions(Counting):
    horizon = 0


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("test_serve:NoPolicy", "lacks"),
        ("test_serve:Nothing", "cannot be imported"),
        ("test_serve:NeedsWeights", r"NeedsWeights\(\) raised TypeError: .* 'weights'.* made without arguments"),
        ("test_serve:np", r"np\(\) raised TypeError: 'module' object is not callable"),
        ("test_serve:NoVersion", r"version and horizon \(None, 8\); expected integers"),
        ("test_serve:NoActions", r"version and horizon \(6, 0\); expected integers, and horizon >= 1"),
    ],
)
def test_a_name_that_is_no_policy_says_so(name: str, error: str) -> None:
    for use in (load_policy, find_policy):
        call: Callable[[str], Any] = use
        with pytest.raises(UserError, match=error):
            call(name)
