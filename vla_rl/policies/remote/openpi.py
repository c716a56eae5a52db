"""Client of openpi's policy server (``scripts/serve_policy.py``), and of ``vla-rl serve``.

One websocket: the first frame holds the server's metadata, then one binary frame each way. A text frame is an error.
"""

import contextlib
import socket
import struct
from collections.abc import Mapping
from typing import Any, override

from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from vla_rl.core.errors import one_line
from vla_rl.core.types import Observation
from vla_rl.policies.remote.interface import RemoteInterface
from vla_rl.policies.remote.policy import FIRST_ANSWER_S, LARGEST_ANSWER, OURS, RemoteError, RemotePolicy
from vla_rl.policies.remote.wire import pack, unpack

_CLOSING_S = 0.2


class OpenpiPolicy(RemotePolicy):
    """Ask a server over openpi's wire, see `RemotePolicy`. The URL is ``openpi://HOST:PORT``; ``openpis://`` is TLS."""

    _connection: ClientConnection | None = None
    _is_ours = False
    _request = 0  # number of the last one

    @override
    def close(self) -> None:
        """Close the connection without waiting for the server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):  # it may have gone
                connection.socket.shutdown(socket.SHUT_RDWR)
            connection.recv_events_thread.join(_CLOSING_S)

    @override
    def _open(self, interface: RemoteInterface | None) -> RemoteInterface | None:
        address = self.url.partition("?")[0].replace("openpi", "ws", 1)
        headers = {"Authorization": f"Api-Key {self._token}"} if self._token else None
        waits = min(self._timeout_s, FIRST_ANSWER_S) if self._answered else FIRST_ANSWER_S
        limits: dict[str, Any] = {"max_size": LARGEST_ANSWER, "compression": None, "proxy": None}
        try:
            opened = connect(
                address, open_timeout=waits, close_timeout=_CLOSING_S, additional_headers=headers, **limits
            )
            self._connection = connection = opened.__enter__()  # `close` leaves it without a closing handshake
            metadata = unpack(self._binary(connection.recv(timeout=waits)))
            if self._is_ours and OURS not in metadata:
                raise RemoteError(f"{self.url} no longer describes its policy; start the rollout again")
            self._is_ours = OURS in metadata
            return RemoteInterface.declared(metadata[OURS], self.url) if self._is_ours else interface
        except InvalidStatus as error:
            code = error.response.status_code
            hint = "; set VLA_RL_TOKEN to the server's token" if code in (401, 403) else ""
            raise RemoteError(f"{self.url} refuses this client: HTTP status {code}{hint}") from error
        except (OSError, EOFError, WebSocketException, ValueError) as error:
            raise RemoteError(
                f"{self.url} cannot be reached: {one_line(error)}; is the server running there?"
            ) from error

    @override
    def _answer(
        self, observation: Observation, ours: Mapping[str, Any], timeout_s: float
    ) -> tuple[Any, Mapping[str, Any]]:
        message = self.interface.message(observation)
        if self._is_ours:
            past = [self.interface.message(each) for each in observation.past]
            self._request += 1
            message[OURS] = {**ours, "request": self._request} | ({"past": past} if past else {})
        elif {"committed", "previous"} & ours.keys():
            raise RemoteError(f"{self.url} takes no committed actions; use execution.strategy=naive or sync")
        reply = unpack(self._exchange(pack(message), timeout_s))
        answered = reply.get("request", self._request) if self._is_ours else self._request
        if type(answered) is not int or answered != self._request:
            self.close()
            raise self._too_many()
        if type(version := reply.get("policy_version")) is int and 0 <= version < 10**9:
            self.version = version
        told = reply.get("server_timing")
        return reply.get("actions"), told if isinstance(told, dict) else {}

    def _exchange(self, data: bytes, timeout_s: float) -> bytes:
        """Send a frame and return the answer. After a failure the connection is closed: a late answer would be taken
        for that of the next request.
        """
        for attempt in range(2):
            fresh = self._connection is None
            try:
                if fresh and (found := self._open(self.interface)) is not None:
                    self._check_same(found)
                assert self._connection is not None
                with contextlib.suppress(TimeoutError):  # nothing has come yet
                    self._binary(self._connection.recv(timeout=0))
                    raise self._too_many()
                # A server that does not read must not hold this process in `send`.
                seconds = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
                self._connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
                self._connection.send(data)
                return self._binary(self._connection.recv(timeout=timeout_s))
            except TimeoutError as error:
                self.close()
                raise RemoteError(f"{self.url} gave no answer within {timeout_s:g} s") from error
            except (OSError, EOFError, WebSocketException) as error:
                self.close()
                if fresh or attempt:  # an older connection may have ended while nothing was asked
                    raise RemoteError(f"{self.url} broke off: {one_line(error)}") from error
            except BaseException:
                self.close()
                raise
        raise AssertionError("unreachable")

    def _too_many(self) -> RemoteError:
        """Answers have no times of their own: one too many would shift all later ones by a request."""
        return RemoteError(
            f"{self.url} sent more answers than it was asked for; the next chunk opens another connection. Look for "
            "what sends answers twice, there or in between"
        )

    def _binary(self, frame: str | bytes) -> bytes:
        if isinstance(frame, str):
            last = frame.strip().rpartition("\n")[2]  # openpi sends a traceback
            raise RemoteError(f"{self.url} says: {one_line(ValueError(last))}")
        return frame
