"""A policy server that goes wrong in a chosen way, and one of ours in a thread."""

import asyncio
import contextlib
import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from vla_rl.acting.serve import PolicyServer
from vla_rl.policies.remote.interface import RemoteInterface
from vla_rl.policies.remote.policy import OURS
from vla_rl.policies.remote.wire import pack, unpack

KINDS = (
    "dropped",
    "slow",
    "half-open",
    "wrong shape",
    "too long",
    "not finite",
    "no actions",
    "oversized",
    "garbage",
    "truncated",
    "text",
    "silent metadata",
    "one too many",
)


class FaultyServer:
    """Answers like openpi's server, with faults.

    Args:
        interface: What it plans for; its chunks repeat the state of the observation.
        faults: One of `KINDS` or None for each observation in turn; it is emptied, and then all answers are sound.
        declared: Whether the metadata holds the interface, as those of our own server do.
        slow_s: Delay of a slow answer.

    Attributes:
        port: On which it listens; 0 before.
        injected: Number of faults so far.
    """

    def __init__(
        self,
        interface: RemoteInterface,
        faults: list[str | None] | None = None,
        declared: dict[str, Any] | None = None,
        slow_s: float = 0.5,
    ) -> None:
        self._interface, self._faults = interface, [] if faults is None else faults
        self._metadata, self._slow_s = {} if declared is None else {OURS: declared}, slow_s
        self._hides_metadata = False
        self._random = random.Random(0)
        self.port = self.injected = 0

    async def run(self, host: str, port: int, stops: Callable[[], bool]) -> None:
        """Serve until `stop`, as `PolicyServer.run` does."""
        async with serve(self._converse, host, port, compression=None, max_size=None, close_timeout=0.05) as server:
            self.port = server.sockets[0].getsockname()[1]
            while not stops():
                await asyncio.sleep(0.02)

    async def _converse(self, connection: ServerConnection) -> None:
        if self._hides_metadata:
            self._hides_metadata = False
            await asyncio.sleep(self._slow_s)
        with contextlib.suppress(ConnectionClosed):  # the client hangs up after a fault
            await connection.send(pack(self._metadata))
            async for frame in connection:
                assert isinstance(frame, bytes)
                fault = self._faults.pop(0) if self._faults else None
                self.injected += fault is not None
                message = unpack(frame)
                request = message.get(OURS, {}).get("request", 0)
                reply = {"actions": self._chunk(message), "server_timing": {"infer_ms": 0.1}, "request": request}
                await self._answer(connection, reply, fault)

    def _chunk(self, message: dict[str, Any]) -> np.ndarray:
        state = self._interface.observation(message, 0).state
        return np.tile(state[: self._interface.spec.action_dim], (self._interface.horizon, 1))

    async def _answer(self, connection: ServerConnection, reply: dict[str, Any], fault: str | None) -> None:
        actions = reply["actions"]
        match fault:
            case "dropped":
                connection.transport.abort()
                return
            case "slow":
                await asyncio.sleep(self._slow_s)
            case "half-open":
                connection.transport.pause_reading()  # nothing is read or answered, and nothing is closed
                await asyncio.sleep(self._slow_s)
                return
            case "silent metadata":
                self._hides_metadata = True
                connection.transport.abort()
                return
            case "wrong shape":
                reply["actions"] = self._random.choice([actions[:, :-1], actions[None], actions[0], actions[:0]])
            case "too long":
                reply["actions"] = np.tile(actions, (2, 1))
            case "not finite":
                reply["actions"] = np.where(self._random.random() < 0.5, np.nan, np.inf) * np.ones_like(actions)
            case "no actions":
                reply = self._random.choice([{}, {"actions": "later"}, {"actions": actions.tolist()}])
            case "oversized":
                reply["actions"] = np.zeros((2**22, 5), np.float32)
            case "garbage":
                await connection.send(self._random.randbytes(self._random.randrange(1, 300)))
                return
            case "truncated":
                await connection.send(pack(reply)[: self._random.randrange(1, 60)])
                return
            case "text":
                await connection.send("Traceback (most recent call last):\n  ...\nRuntimeError: out of memory")
                return
            case "one too many":  # an earlier answer once more, before that of this request
                await connection.send(pack(reply | {"request": reply["request"] - 1}))
        await connection.send(pack(reply))


@contextlib.contextmanager
def in_process(server: FaultyServer) -> Iterator[str]:
    """Run a server in a process of its own, where it takes no time of the caller's; yields its URL."""
    context = multiprocessing.get_context("spawn")
    shared = context.Array("i", 2)
    process = context.Process(target=_serve, args=(server, shared), daemon=True)
    process.start()
    try:
        while not shared[0] and process.is_alive():
            time.sleep(0.01)
        yield f"openpi://127.0.0.1:{shared[0]}"
    finally:
        server.injected = shared[1]
        process.kill()
        process.join()


def _serve(server: FaultyServer, shared: Any) -> None:
    def stops() -> bool:
        shared[:] = server.port, server.injected
        return False

    asyncio.run(server.run("127.0.0.1", 0, stops))


@contextlib.contextmanager
def in_thread(server: FaultyServer | PolicyServer) -> Iterator[str]:
    """Run a server on a free port of this computer; yields its URL."""
    ended = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(server.run("127.0.0.1", 0, ended.is_set)), daemon=True)
    thread.start()
    try:
        for _ in range(500):
            if server.port or not thread.is_alive():
                break
            ended.wait(0.01)
        yield f"openpi://127.0.0.1:{server.port}"
    finally:
        ended.set()
        thread.join(10)
