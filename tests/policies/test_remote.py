"""Policies on a server: the wire, the same chunks as in process, and every fault of a server as one clear error."""

import contextlib
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from tiny_policy import SPEC, make_model, make_observation

pytest.importorskip("websockets", reason="needs the extra serve")

from benchmarks.any_policy.faults import KINDS, FaultyServer, in_thread
from benchmarks.any_policy.fuzz import MESSAGES
from vla_rl.acting.policy_folder import find_policy, load_policy
from vla_rl.acting.serve import PolicyServer, Session
from vla_rl.core.config import config_to_dict
from vla_rl.core.config_files import to_yaml
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.errors import UserError
from vla_rl.policies.remote import RemoteError, RemoteInterface, RemotePolicy
from vla_rl.policies.remote.interface import Keys
from vla_rl.policies.remote.policy import OURS
from vla_rl.policies.remote.wire import WireError, pack, unpack

INTERFACE = RemoteInterface(SPEC, horizon=8, provides=("guidance", "gradient"))
DECLARED = config_to_dict(INTERFACE)
ARM = ("pan", "lift", "grip")
LOSES_CONNECTION = ("dropped", "silent metadata", "oversized")  # after which the client asks once more


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies") / "tiny"
    make_model(prefix_max=3).save(folder, {"policy_version": 4})
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with in_thread(PolicyServer(find_policy(folder))) as url:
        yield url


@pytest.fixture
def connect() -> Iterator[Callable[[str], Any]]:
    opened: list[Any] = []

    def remote(url: str) -> Any:
        opened.append(load_policy(url))
        return opened[-1]

    yield remote
    for policy in opened:
        policy.close()


class TestWire:
    def test_what_is_packed_is_unpacked(self) -> None:
        sent = {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "b": {"c": np.float32(0.5)}, "d": ["x", 1, None, True]}
        found = unpack(pack(sent))
        np.testing.assert_array_equal(found["a"], sent["a"])
        assert found["a"].dtype == np.int16
        assert (found["b"]["c"], found["d"]) == (np.float32(0.5), sent["d"])

    @pytest.mark.parametrize(
        "array",
        [np.array([{}], object), np.array([1j]), np.zeros(1, [("x", "i4")]), np.array(["text"]), np.array([b"x"])],
    )
    def test_arrays_of_other_things_than_numbers_are_not_sent(self, array: np.ndarray) -> None:
        with pytest.raises(WireError, match="cannot be sent"):
            pack({"array": array})

    @pytest.mark.parametrize(
        "fields",
        [
            {b"dtype": "|O"},
            {b"dtype": "O"},
            {b"dtype": "<c16"},
            {b"dtype": "|V8"},
            {b"dtype": "<f4,<f4"},
            {b"dtype": 7},
            {b"shape": [3]},
            {b"shape": [-1]},
            {b"shape": [2**62, 0, 4]},
            {b"shape": [1] * 9},
            {b"shape": "2"},
            {b"shape": [True, 2]},
            {b"data": "text"},
        ],
    )
    def test_a_lying_array_is_refused(self, fields: dict[bytes, Any]) -> None:
        array = {b"__ndarray__": True, b"data": bytes(8), b"dtype": "<f4", b"shape": [2]}
        assert unpack(msgpack.packb({"a": array}))["a"].shape == (2,)
        with pytest.raises(WireError):
            unpack(msgpack.packb({"a": array | fields}))

    @pytest.mark.parametrize("data", [b"", b"\x93\x01\x02\x03", b"\xdd\xff\xff\xff\xff" * 50, b"\x91" * 5000, b"\xc1"])
    def test_other_bytes_are_refused(self, data: bytes) -> None:
        with pytest.raises(WireError):
            unpack(data)

    @settings(max_examples=300, deadline=None)
    @given(MESSAGES)
    def test_no_bytes_raise_anything_else(self, data: bytes) -> None:
        with contextlib.suppress(UserError):
            INTERFACE.observation(unpack(data), 0)


class TestRemotePolicy:
    def test_a_chunk_is_that_of_the_process_itself(self, folder: Path, connect: Callable[[str], Any], url: str) -> None:
        local, remote = load_policy(folder), connect(url)
        other = connect(url)
        assert (remote.spec, remote.horizon) == (SPEC, 8)
        assert remote.provides >= {"gradient", "guidance", "prefix"}
        for seed, tick in ((3, 0), (3, 5), (4, 5)):
            local.reset(seed)
            remote.reset(seed)
            other.reset(seed + 50)
            seen = make_observation(tick=tick)
            other.infer(seen)  # an episode of its own
            expected, found = local.infer(seen), remote.infer(seen)
            np.testing.assert_array_equal(found.actions, expected.actions)
            assert (found.start_tick, found.policy_version) == (tick, 4)

    def test_committed_actions_and_guidance_reach_our_server(
        self, folder: Path, connect: Callable[[str], Any], url: str
    ) -> None:
        local, remote = load_policy(folder), connect(url)
        seen, given_ = make_observation(tick=2), np.full((3, 2), 0.25, np.float32)
        local.reset(1)
        remote.reset(1)
        np.testing.assert_array_equal(remote.infer(seen, given_).actions, local.infer(seen, given_).actions)
        expected = local.infer_guided(seen, given_, 2, True)  # type: ignore[attr-defined]
        np.testing.assert_array_equal(remote.infer_guided(seen, given_, 2, True).actions, expected.actions)

    def test_sentences_of_clients_do_not_pile_up(self, folder: Path) -> None:
        policy: Any = load_policy(folder)
        for number in range(500):
            policy.twin()._tokens(f"push number {number}")
        assert len(policy._text) <= 100

    def test_latency_is_measured(self, connect: Callable[[str], Any], url: str) -> None:
        remote = connect(url)
        remote.reset(0)
        for tick in range(5):
            remote.infer(make_observation(tick=tick))
        assert len(remote.timings) == 5
        assert all(0 < timing.infer_ms < timing.round_trip_ms for timing in remote.timings)
        assert min(abs(timing.offset_ms) for timing in remote.timings) < 50, "one computer, one clock"
        assert "round trip" in remote.latency()

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_fault_is_one_error_in_time_and_the_next_chunk_is_sound(self, kind: str) -> None:
        faults: list[str | None] = []
        server = FaultyServer(INTERFACE, faults, DECLARED, slow_s=1.0)
        with in_thread(server) as url:
            remote = load_policy(f"{url}?timeout_s=0.4")
            assert isinstance(remote, RemotePolicy)
            seen = make_observation()
            faults += [kind] * (2 if kind in LOSES_CONNECTION else 1)
            began_s = time.monotonic()
            with pytest.raises(UserError, match=r"openpi://|message of a policy server"):
                remote.infer(seen)
            assert time.monotonic() - began_s < 1.3
            faults.clear()
            for attempt in range(3):
                try:
                    chunk = remote.infer(seen)
                    break
                except RemoteError:
                    assert attempt < 2
            np.testing.assert_array_equal(chunk.actions, np.tile(seen.state[:2], (8, 1)))
            remote.close()

    def test_one_answer_too_many_shifts_no_later_one(self, tmp_path: Path, connect: Callable[[str], Any]) -> None:
        """A server that says nothing of requests: its chunks would pass for those of newer observations."""
        file, faults = tmp_path / "robot.yaml", list[str | None]()
        file.write_text(to_yaml(DECLARED))
        with in_thread(FaultyServer(INTERFACE, faults)) as url:
            remote = connect(f"{url}?interface={file}")
            faults.append("one too many")
            remote.infer(make_observation(1))
            time.sleep(0.1)
            with pytest.raises(RemoteError, match="sent more answers than it was asked for; the next chunk"):
                remote.infer(make_observation(2))
            seen = make_observation(3)
            np.testing.assert_array_equal(remote.infer(seen).actions[0], seen.state[:2])

    def test_our_server_says_which_request_it_answers(self, folder: Path) -> None:
        session = Session(load_policy(folder), INTERFACE, 0)
        message = INTERFACE.message(make_observation())
        assert session.answer(pack(message | {OURS: {"request": 7}}))["request"] == 7
        assert "request" not in session.answer(pack(message)), "another client's"

    def test_a_server_that_declares_nothing_needs_an_interface(
        self, tmp_path: Path, connect: Callable[[str], Any]
    ) -> None:
        keys = Keys({"front": "images > a", "top": "images > b"}, {"arm": 2, "gripper": 1}, "text", channels_first=True)
        interface = replace(INTERFACE, keys=keys)
        file = tmp_path / "robot.yaml"
        file.write_text(to_yaml({**config_to_dict(interface), "horizon": 0}))
        with in_thread(FaultyServer(interface)) as url:
            with pytest.raises(RemoteError, match="interface=libero"):
                load_policy(url)
            remote = connect(f"{url}?interface={file}")
            assert remote.horizon == 8, "found by asking"
            seen = make_observation(3)
            np.testing.assert_array_equal(remote.infer(seen).actions[0], seen.state[:2])
            with pytest.raises(RemoteError, match="committed"):
                remote.infer(seen, np.zeros((1, 2), np.float32))

    def test_another_policy_behind_the_same_address_is_refused(self) -> None:
        with in_thread(FaultyServer(INTERFACE, declared=DECLARED)) as url:
            remote: Any = load_policy(url)
            other = replace(INTERFACE, spec=replace(SPEC, control_hz=50.0))
            remote.interface = other
            remote.close()
            for _ in range(2):  # it does not act later either
                with pytest.raises(RemoteError, match="now serves another policy: its control_hz is 20"):
                    remote.infer(make_observation())
            remote.close()

    @pytest.mark.parametrize(
        ("change", "error"),
        [
            ({"spec": SPEC}, r"its state dimensions is undeclared, it was pan \(rad\), lift, grip"),
            ({"spec": replace(SPEC, dimensions=((Dimensions(ARM), Dimensions(ARM[:2])),))}, "it was pan .rad., lift"),
            ({"discrete_dims": (1,)}, r"discrete_dims is \(1,\), it was \(\)"),
            ({"n_obs_steps": 2}, "n_obs_steps is 2, it was 1"),
            ({"prefix_ticks": 3}, "prefix_ticks is 3, it was 0"),
            ({"horizon": 4}, "horizon is 4, it was 8"),
            ({"keys": Keys(prompt="text")}, "keys is .*'text'"),
            ({"keys": Keys(state={"grip": 1, "arm": 2})}, r"keys is .*'grip': 1, 'arm': 2"),
        ],
    )
    def test_after_a_new_connection_all_that_was_matched_is_the_same(self, change: dict[str, Any], error: str) -> None:
        """The chunks of a policy without names would be reordered by the names of the one before it."""
        named = replace(SPEC, dimensions=((Dimensions(ARM, ("rad", "", "")), Dimensions(ARM[:2])),))
        interface = replace(INTERFACE, spec=named, keys=Keys(state={"arm": 2, "grip": 1}))
        server = FaultyServer(interface, declared=config_to_dict(interface))
        with in_thread(server) as url:
            remote: Any = load_policy(url)
            same = replace(interface, version=7, provides=(), spec=replace(named, env_id="another of the same robot"))
            for declared in (same, replace(same, **change)):
                server._metadata = {OURS: config_to_dict(declared)}
                remote.close()
                with contextlib.nullcontext() if declared is same else pytest.raises(RemoteError, match=error):
                    remote.infer(make_observation())

    def test_a_server_that_no_longer_describes_its_policy_is_refused(self) -> None:
        server = FaultyServer(INTERFACE, declared=DECLARED)
        with in_thread(server) as url:
            remote: Any = load_policy(url)
            server._metadata = {}
            remote.close()
            for _ in range(2):
                with pytest.raises(RemoteError, match="no longer describes its policy"):
                    remote.infer(make_observation())

    @pytest.mark.parametrize(
        ("lie", "error"),
        [
            ({"horizon": 5000}, "horizon is 5000"),
            ({"n_obs_steps": 10**9}, "n_obs_steps is 1000000000"),
            ({"version": 2**40}, "version is"),
            ({"discrete_dims": [2]}, "discrete_dims"),
            ({"keys": {"state": {"a": 2, "b": 2}}}, "keys.state has 4 numbers, the policy reads 3"),
            ({"keys": {"cameras": {"frnt": "image"}}}, "Did you mean 'front'"),
            ({"spec": {**DECLARED["spec"], "image_size": [16000, 16000]}}, "bytes"),
            ({"spec": 3}, "describes no policy"),
        ],
    )
    def test_a_server_that_declares_nonsense_is_refused(self, lie: dict[str, Any], error: str) -> None:
        server = FaultyServer(INTERFACE, declared={**DECLARED, **lie})
        with in_thread(server) as url, pytest.raises(UserError, match=error):
            load_policy(url)

    @pytest.mark.parametrize(
        ("url", "error"),
        [
            ("http://gpu:8000", "names no policy server"),
            ("openpi://", "names no policy server"),
            ("openpi://gpu:port", "port"),
            ("groot://gpu", "names no port"),
            ("groot://gpu:", "names no port"),
            ("openpi://gpu:8000?interfase=libero", "Did you mean 'interface'"),
            ("openpi://gpu:8000?timeout_s=-1", "timeout_s is -1"),
            ("openpi://gpu:8000?interface=labero", "Did you mean 'libero'"),
            ("openpi://127.0.0.1:1", "cannot be reached"),
        ],
    )
    def test_a_wrong_address_says_what_to_do(self, url: str, error: str) -> None:
        with pytest.raises(UserError, match=error):
            load_policy(url)

    def test_without_the_extra_the_error_names_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "vla_rl.policies.remote.openpi", raising=False)
        monkeypatch.setitem(sys.modules, "websockets.sync.client", None)
        with pytest.raises(UserError, match=r"install vla-rl\[serve\]"):
            load_policy("openpi://gpu:8000")

    def test_parts_of_a_state_have_their_own_sizes(self) -> None:
        """An arm of 1 and a gripper of 2 numbers are 3 numbers too."""
        interface = replace(INTERFACE, keys=Keys(state={"arm": 2, "gripper": 1}))
        message = interface.message(make_observation())
        swapped = message | {"arm": message["gripper"], "gripper": message["arm"]}
        with pytest.raises(WireError, match="arm is float32 \\[1\\]; expected is \\[2\\]"):
            interface.observation(swapped, 0)

    def test_a_policy_of_several_observations_needs_our_server(self, tmp_path: Path) -> None:
        file = tmp_path / "robot.yaml"
        file.write_text(to_yaml({**DECLARED, "n_obs_steps": 2}))
        with (
            in_thread(FaultyServer(INTERFACE)) as url,
            pytest.raises(RemoteError, match="takes one observation, the interface has n_obs_steps 2"),
        ):
            load_policy(f"{url}?interface={file}")

    def test_a_server_that_reads_no_more_holds_no_longer_than_its_timeout(self) -> None:
        """The first chunk may take a minute, and so may its request; the second one may not."""
        with in_thread(FaultyServer(INTERFACE, declared=DECLARED)) as url:
            remote: Any = load_policy(f"{url}?timeout_s=0.4")
            remote.infer(make_observation())
            option = remote._connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
            seconds, microseconds = struct.unpack("ll", option)
            assert seconds + microseconds / 1e6 == pytest.approx(0.4, abs=0.01)
            remote.close()

    @pytest.mark.parametrize("name", ["libero", "droid", "aloha"])
    def test_the_interfaces_of_openpis_examples_are_theirs(self, name: str) -> None:
        interface = RemoteInterface.read(name)
        spec = interface.spec
        images = {camera: np.full((224, 224, 3), index, np.uint8) for index, camera in enumerate(spec.cameras)}
        seen = replace(make_observation(), images=images, state=np.arange(spec.state_dim, dtype=np.float32))
        message = interface.message(seen)
        if name == "droid":
            assert {key: message[key].shape for key in message if key != "prompt"} == {
                "observation/exterior_image_1_left": (224, 224, 3),
                "observation/wrist_image_left": (224, 224, 3),
                "observation/joint_position": (7,),
                "observation/gripper_position": (1,),
            }
        if name == "aloha":
            assert message["images"]["cam_left_wrist"].shape == (3, 224, 224)
        back = interface.observation(unpack(pack(message)), seen.tick)
        np.testing.assert_array_equal(back.state, seen.state)
        assert all((back.images[camera] == seen.images[camera]).all() for camera in images)
