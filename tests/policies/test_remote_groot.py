"""The client of GR00T's policy server, against a server that speaks as `gr00t/policy/server_client.py` does."""

import contextlib
import io
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_policy import SPEC, make_observation

pytest.importorskip("zmq", reason="needs the extra serve")

import zmq

from vla_rl.acting.policy_folder import load_policy
from vla_rl.core.config import config_to_dict
from vla_rl.core.config_files import to_yaml
from vla_rl.core.errors import UserError
from vla_rl.policies.remote import RemoteError, RemoteInterface
from vla_rl.policies.remote.groot import _unpacked
from vla_rl.policies.remote.interface import Keys
from vla_rl.policies.remote.policy import TOKEN
from vla_rl.policies.remote.wire import decode

KEYS = Keys(
    {"front": "video > front", "top": "video > wrist.view"},
    {"state > arm": 2, "state > gripper": 1},
    "language > annotation.human.task_description",
    actions=("arm", "gripper"),
)


def to_bytes(value: Any) -> bytes:
    def encoded(array: np.ndarray) -> dict[str, Any]:
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        return {"__ndarray_class__": True, "as_npy": file.getvalue()}

    return msgpack.packb(value, default=encoded)


def from_bytes(data: bytes) -> Any:
    def decoded(found: dict[str, Any]) -> Any:
        return np.load(io.BytesIO(found["as_npy"])) if "__ndarray_class__" in found else found

    return msgpack.unpackb(data, object_hook=decoded)


class Server:
    """Answers with the state as the actions; ``wrong`` replaces an answer, None is silence. If it
    ``repeats``, the answer before is sent again, before and behind each.
    """

    def __init__(self, token: str = "") -> None:
        self.asked: list[dict[str, Any]] = []
        self.wrong: list[bytes | None] = []
        self.repeats, self.again = False, list[bytes]()
        self._token, self._ended = token, False
        self._socket = zmq.Context.instance().socket(zmq.ROUTER)  # as REP, but it may stay silent
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended = True
        self._thread.join()
        self._socket.close(linger=0)

    def _run(self) -> None:
        while not self._ended:
            if self._socket.poll(20):
                *envelope, data = self._socket.recv_multipart()
                answer = self._answer(from_bytes(data))
                if answer is not None:
                    sent, late = [*envelope, answer], self.again
                    for each in (late, sent, late) if late else (sent,):
                        self._socket.send_multipart(each)
                    self.again = sent if self.repeats else []

    def _answer(self, request: dict[str, Any]) -> bytes | None:
        self.asked.append(request)
        if self._token and request.get("api_token") != self._token:
            return to_bytes({"error": "Unauthorized: Invalid API token"})
        match request["endpoint"]:
            case "ping":
                return to_bytes({"status": "ok", "message": "Server is running"})
            case "reset":
                return to_bytes({})
        if self.wrong:
            return self.wrong.pop(0)
        if "observation" not in request["data"]:  # N1.5
            arm = np.repeat(request["data"]["state.arm"], 8, 0)
            return to_bytes({"action.gripper": arm[:, :1], "action.arm": arm[:, 1:2]})
        state = request["data"]["observation"]["state"]
        parts = {"gripper": state["gripper"][..., :1], "arm": state["arm"][..., :1]}
        return to_bytes([{name: np.repeat(part, 16, 1) for name, part in parts.items()}, {}])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[Server, Any]]]:
    opened: list[Any] = []
    file = tmp_path / "robot.yaml"

    def started(keys: Keys = KEYS, **options: Any) -> tuple[Server, Any]:
        file.write_text(to_yaml(config_to_dict(RemoteInterface(SPEC, keys))))
        opened.append(Server(**options))
        opened.append(load_policy(f"groot://127.0.0.1:{opened[-1].port}?interface={file}&timeout_s=0.3"))
        return opened[-2], opened[-1]

    yield started
    for each in reversed(opened):
        each.close()


def test_it_asks_as_groots_own_client_does(start: Callable[..., tuple[Server, Any]]) -> None:
    server, policy = start()
    assert policy.horizon == 16
    policy.reset(0)
    seen = make_observation(3)
    chunk = policy.infer(seen)
    np.testing.assert_array_equal(chunk.actions, np.tile(seen.state[[0, 2]], (16, 1)))
    policy.infer(seen)
    assert "2 chunks, round trip" in policy.latency()
    assert [request["endpoint"] for request in server.asked] == [
        "ping",
        "get_action",
        "reset",
        "get_action",
        "get_action",
    ]
    observation = server.asked[-1]["data"]["observation"]
    assert server.asked[-1]["data"]["options"] is None
    assert observation["video"]["wrist.view"].shape == (1, 1, 16, 16, 3)
    assert observation["video"]["wrist.view"].dtype == np.uint8
    np.testing.assert_array_equal(observation["state"]["arm"], seen.state[None, None, :2])
    assert observation["state"]["arm"].dtype == np.float32
    assert observation["language"] == {"annotation.human.task_description": [["push the block"]]}


def test_flat_keys_are_those_of_n1_5(start: Callable[..., tuple[Server, Any]]) -> None:
    cameras = {"front": "video.front", "top": "video.top"}
    prompt = "annotation.human.task_description"
    server, policy = start(Keys(cameras, {"state.arm": 3}, prompt, ("action.arm", "action.gripper")))
    policy.reset(0)
    seen = make_observation(3)
    np.testing.assert_array_equal(policy.infer(seen).actions, np.tile(seen.state[[1, 0]], (8, 1)))
    assert [request["endpoint"] for request in server.asked] == ["ping", "get_action", "get_action"]
    data = server.asked[-1]["data"]
    assert (data["video.top"].shape, data["state.arm"].shape) == ((1, 16, 16, 3), (1, 3))
    assert data[prompt] == ["push the block"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, "no answer within 0.3 s"),
        (b"ERROR", "no message of a policy server"),
        (b"", "no message of a policy server"),
        (to_bytes({"error": "CUDA out of memory"}), "says: CUDA out of memory"),
        (to_bytes([{"arm": np.zeros((1, 16, 1), np.float32)}, {}]), "without actions"),
        (to_bytes([]), "without actions"),
        (to_bytes([{"arm": np.zeros((1, 16, 2)), "gripper": np.zeros((1, 16, 1))}, {}]), r"float64 \[16, 3\]"),
        (to_bytes([{"arm": np.zeros((1, 16, 1)), "gripper": np.zeros((1, 15, 1))}, {}]), "unequal lengths"),
        (to_bytes([{"arm": np.zeros((2, 16, 1)), "gripper": np.zeros((2, 16, 1))}, {}]), "unequal lengths"),
        (to_bytes([{"arm": np.full((1, 16, 1), np.nan), "gripper": np.zeros((1, 16, 1))}, {}]), "not finite"),
        (msgpack.packb([{"arm": {"__ndarray_class__": True, "as_npy": b"\x93NUMPY\x01\x00v\x00{("}}, {}]), "header"),
    ],
)
def test_a_fault_is_one_error_and_the_next_chunk_is_sound(
    start: Callable[..., tuple[Server, Any]], answer: bytes | None, error: str
) -> None:
    server, policy = start()
    server.wrong.append(answer)
    began_s = time.monotonic()
    with pytest.raises(UserError, match=error):
        policy.infer(make_observation(1))
    assert time.monotonic() - began_s < 1
    seen = make_observation(2)
    np.testing.assert_array_equal(policy.infer(seen).actions[0], seen.state[[0, 2]])


def test_answers_too_many_shift_no_later_one(start: Callable[..., tuple[Server, Any]]) -> None:
    server, policy = start()
    server.repeats = True
    for seed in range(5):
        seen = make_observation(seed)
        np.testing.assert_array_equal(policy.infer(seen).actions[0], seen.state[[0, 2]])


def test_an_array_of_objects_is_not_unpickled() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match=r"arrays of '\|O' are not allowed"):
        decode(msgpack.packb({"__ndarray_class__": True, "as_npy": file.getvalue()}), _unpacked)


@pytest.mark.parametrize("order", ["C", "F"])
def test_both_orders_of_an_array_are_read(order: Any) -> None:
    array = np.asarray(np.arange(12, dtype=np.int16).reshape(3, 4), order=order)
    np.testing.assert_array_equal(decode(to_bytes(array), _unpacked), array)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=160), st.integers(0, 128), st.integers(0, 160))
def test_no_bytes_raise_anything_else(noise: bytes, place: int, end: int) -> None:
    sound = bytearray(to_bytes({"arm": np.zeros((2, 3), np.float32)}))
    sound[place : place + len(noise) // 8] = noise[: len(noise) // 8]
    for data in (noise, bytes(sound), bytes(sound[:end])):
        with contextlib.suppress(UserError):
            decode(data, _unpacked)


def test_a_token_and_an_interface_are_needed(
    start: Callable[..., tuple[Server, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RemoteError, match="Unauthorized"):
        start(token="right")
    monkeypatch.setenv(TOKEN, "right")
    server, policy = start(token="right")
    assert policy.infer(make_observation(1)).actions.shape == (16, 2)
    with pytest.raises(RemoteError, match="name its interface"):
        load_policy(f"groot://127.0.0.1:{server.port}")
    with pytest.raises(RemoteError, match="committed"):
        policy.infer(make_observation(1), np.zeros((1, 2), np.float32))
    with pytest.raises(UserError, match="camera 'front' gives"):
        policy.infer(
            replace(make_observation(1), images={name: np.zeros((8, 8, 3), np.uint8) for name in SPEC.cameras})
        )
