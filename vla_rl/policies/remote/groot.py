"""Client of GR00T's policy server: ZeroMQ, msgpack, arrays as ``.npy`` bytes.

N1.6 and later (``gr00t/policy/server_client.py``) nest an observation by modality, such as ``video > front``. Its axes
are those of a batch and of time: images [1, 1, H, W, 3], states [1, 1, D], sentences [[text]]. N1.5
(``gr00t/eval/service.py``) has flat keys, such as ``video.front``, and the axis of time alone. The keys of the
interface decide between them.
"""

import io
from collections.abc import Mapping
from typing import Any, override
from urllib.parse import urlsplit

import numpy as np
import zmq

from vla_rl.core.errors import one_line
from vla_rl.core.types import Observation
from vla_rl.policies.remote.interface import RemoteInterface
from vla_rl.policies.remote.policy import FIRST_ANSWER_S, LARGEST_ANSWER, RemoteError, RemotePolicy
from vla_rl.policies.remote.wire import array_of, decode, encode

_ARRAY, _NPY = "__ndarray_class__", "as_npy"


class GrootPolicy(RemotePolicy):
    """Ask a server of GR00T, see `RemotePolicy`. The URL is ``groot://HOST:PORT?interface=FILE``."""

    _socket: "zmq.Socket[bytes] | None" = None
    _begun = 0

    @override
    def close(self) -> None:
        """Close the socket without waiting for the server."""
        if self._socket is not None:
            self._socket.close(linger=0)
        self._socket = None

    @override
    def _open(self, interface: RemoteInterface | None) -> RemoteInterface | None:
        self._ask("ping", None, min(self._timeout_s, FIRST_ANSWER_S))
        return interface

    @override
    def _answer(
        self, observation: Observation, ours: Mapping[str, Any], timeout_s: float
    ) -> tuple[Any, Mapping[str, Any]]:
        if {"committed", "previous"} & ours.keys():
            raise RemoteError(f"{self.url} takes no committed actions; use execution.strategy=naive or sync")
        keys = self.interface.keys
        nested = " > " in keys.prompt
        message = _with_axes(self.interface.message(observation), 1 + nested)
        if nested and ours["episode"] != self._begun:
            self._ask("reset", {"options": None}, timeout_s)
            self._begun = ours["episode"]
        reply = self._ask("get_action", {"observation": message, "options": None} if nested else message, timeout_s)
        if nested:
            reply = reply[0] if isinstance(reply, list) and reply else None
        parts: list[Any] = [reply.get(key) for key in keys.actions] if isinstance(reply, dict) else [None]
        if not all(isinstance(part, np.ndarray) and part.ndim == 2 + nested for part in parts):
            raise RemoteError(f"{self.url} answered without actions [{'1, ' * nested}H, D] of {[*keys.actions]}")
        if len({part.shape[:-1] for part in parts}) > 1 or (nested and len(parts[0]) != 1):
            raise RemoteError(f"{self.url} answered with actions of unequal lengths: {[part.shape for part in parts]}")
        actions = np.concatenate(parts, -1)
        return actions[0] if nested else actions, {}

    def _ask(self, endpoint: str, data: Mapping[str, Any] | None, timeout_s: float) -> Any:
        """Call an endpoint. After a failure the socket is closed: a late answer would be taken for the next one's."""
        request: dict[str, Any] = {"endpoint": endpoint}
        request |= {} if data is None else {"data": data}
        request |= {"api_token": self._token} if self._token else {}
        if self._socket is None:
            self._socket = zmq.Context.instance().socket(zmq.REQ)
            self._socket.setsockopt(zmq.MAXMSGSIZE, LARGEST_ANSWER)
            self._socket.setsockopt(zmq.REQ_CORRELATE, 1)  # an answer to an earlier request is none
            self._socket.connect(f"tcp://{urlsplit(self.url).netloc}")
        self._socket.setsockopt(zmq.RCVTIMEO, max(1, round(timeout_s * 1e3)))
        self._socket.setsockopt(zmq.SNDTIMEO, max(1, round(timeout_s * 1e3)))
        try:
            self._socket.send(encode(request, _packed))
            reply = decode(self._socket.recv(), _unpacked)
        except zmq.Again as error:
            self.close()
            raise RemoteError(f"{self.url} gave no answer within {timeout_s:g} s; is the server running?") from error
        except zmq.ZMQError as error:
            self.close()
            raise RemoteError(f"{self.url} broke off: {one_line(error)}") from error
        except BaseException:
            self.close()
            raise
        if isinstance(reply, dict) and "error" in reply:
            raise RemoteError(f"{self.url} says: {str(reply['error'])[:300]}")
        return reply


def _with_axes(message: Any, count: int) -> Any:
    """Put axes of length 1 in front of everything in a message."""
    if isinstance(message, dict):
        return {key: _with_axes(value, count) for key, value in message.items()}
    for _ in range(count):
        message = message[None] if isinstance(message, np.ndarray) else [message]
    return message


def _packed(array: Any) -> dict[str, Any]:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return {_ARRAY: True, _NPY: file.getvalue()}


def _unpacked(found: dict[Any, Any]) -> Any:
    """Read an array as numpy does, but allocate nothing for what its header only claims."""
    if _ARRAY not in found:
        return found
    file = io.BytesIO(found[_NPY])
    try:
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, is_fortran, dtype = read[np.lib.format.read_magic(file)](file)
    except Exception as error:  # numpy evaluates a header as Python literals, with a dozen ways to fail
        raise ValueError(f"an array has no header of numpy: {one_line(error, 80)}") from error
    array = array_of(file.read(), dtype.str, [*shape[::-1]] if is_fortran else [*shape])
    return array.T if is_fortran else array
