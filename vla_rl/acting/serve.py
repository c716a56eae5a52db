"""A policy server: openpi's wire for our policies, several clients at a time, each with an episode of its own."""

import asyncio
import contextlib
import functools
import hmac
import http
import ipaddress
import itertools
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.server import Request, Response, ServerConnection
from websockets.asyncio.server import serve as listen
from websockets.exceptions import ConnectionClosed

from vla_rl.acting.policy_folder import AnyPolicy, PolicyFolder, find_policy, on_disk
from vla_rl.core.config import config_to_dict
from vla_rl.core.errors import UserError, one_line
from vla_rl.core.processes import learner_threads
from vla_rl.core.protocols import Policy
from vla_rl.core.signals import deferred_signals
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.core.validation import check_chunk
from vla_rl.policies.remote.interface import PASSED_ON, Keys, RemoteInterface
from vla_rl.policies.remote.policy import OURS, TOKEN
from vla_rl.policies.remote.wire import WireError, pack, unpack

logger = logging.getLogger(__name__)

_ROOM = 2**20  # bytes of a message beside its images
_LAST_ANSWERS_S = 3.0  # the watchdog ends the process 5 s after a signal
_OPENING_S = 1.0  # a caller that says nothing delays the end by so much
_LARGEST_NUMBER = 2**63


def serve(
    policy: AnyPolicy,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    version: int | None = None,
    clients: int = 8,
    device: str = "cpu",
    interface: str | None = None,
) -> None:
    """Serve a policy, with its critic and residual, until the process is asked to stop.

    Args:
        policy: A trained policy, its folder, a run folder or a deployment.
        host: Address to listen on. Any address but this computer's own needs a token in ``VLA_RL_TOKEN``.
        port: Port to listen on; 0: a free one.
        version: Version of the policy in a run folder. Default: the newest.
        clients: Number of clients at a time.
        device: Where a policy in torch runs.
        interface: Name or YAML file of the keys under which clients send observations. Default: our own.

    Raises:
        UserError: If the policy cannot be loaded, the address is taken, or the token is missing.
    """
    with on_disk(policy) as path, deferred_signals() as asked:
        source = policy if isinstance(policy, str | Path) else path
        if source is None:
            raise UserError(f"a {type(policy).__name__} has no folder; give a folder, or name its class (module:Name)")
        token = os.environ.get(TOKEN, "")
        _check_address(host, token)
        if not 0 <= port <= 65535 or clients < 1:
            raise UserError(f"port is {port} and clients {clients}; expected a port of 0 to 65535 and clients >= 1")
        server = PolicyServer(find_policy(source, version), clients, device, interface, token)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(learner_threads(0))  # a robot's inference process has one
        asyncio.run(server.run(host, port, lambda: asked() is not None))
        if stop := asked():
            raise stop


class PolicyServer:
    """Answer the clients of one policy. Arguments as of `serve`, which listens on ``port`` (0 before).

    Clients have to send the token; empty: nothing.
    """

    def __init__(
        self,
        policy: PolicyFolder,
        clients: int = 8,
        device: str = "cpu",
        interface: str | None = None,
        token: str = "",
    ) -> None:
        self._folder, self._clients, self._token = policy, clients, token
        self._load = functools.partial(policy.load, device)
        self.interface = RemoteInterface(
            policy.spec,
            RemoteInterface.read(interface).keys if interface else Keys(),
            policy.horizon,
            policy.discrete_dims,
            tuple(sorted(policy.provides & PASSED_ON)),
            policy.prefix_ticks,
            policy.version,
            policy.n_obs_steps,
        )
        self._metadata = pack({OURS: config_to_dict(self.interface)})
        self._policy = self._load()
        # One thread: a policy belongs to one, and two inferences at a time are slower than one after the other.
        self._inference = ThreadPoolExecutor(1, thread_name_prefix="inference")
        self._seeds = itertools.count()
        self._connected = self._busy = self.port = 0

    async def run(self, host: str, port: int, stops: Callable[[], bool]) -> None:
        """Serve until ``stops``; begun answers are still sent. UserError if the address cannot be listened on."""
        options: dict[str, Any] = {"compression": None, "server_header": None, "close_timeout": 0.5, "max_queue": 1}
        try:
            server = await listen(
                self._converse,
                host,
                port,
                process_request=self._admit,
                open_timeout=_OPENING_S,
                max_size=8 * self.interface.image_bytes + _ROOM,  # images of floats are answered in words
                origins=[None],  # no browser: a page of another site could reach this computer's own address
                **options,
            )
        except OSError as error:
            raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}; use another port") from error
        self.port = server.sockets[0].getsockname()[1]
        logger.info("%s on ws://%s:%d, at most %d clients", self._folder.spec.env_id, host, self.port, self._clients)
        while not stops():
            await asyncio.sleep(0.05)
        end_s = time.monotonic() + _LAST_ANSWERS_S
        while self._busy and time.monotonic() < end_s:
            await asyncio.sleep(0.01)
        server.close()
        with contextlib.suppress(TimeoutError):  # a policy may never answer
            await asyncio.wait_for(server.wait_closed(), 1.5 * _OPENING_S)
        self._inference.shutdown(wait=False, cancel_futures=True)

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path.partition("?")[0] == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        sent = request.headers.get("Authorization", "")
        if self._token and not hmac.compare_digest(sent.encode(), f"Api-Key {self._token}".encode()):
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "this server needs a token\n")
        if self._connected >= self._clients:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{self._clients} clients are here\n")
        return None

    async def _converse(self, connection: ServerConnection) -> None:
        """Answer one client until it leaves."""
        if self._connected >= self._clients:  # several came at the same moment
            await connection.close(1013, f"{self._clients} clients are here")
            return
        with self._counted("_connected"), contextlib.suppress(ConnectionClosed):
            await connection.send(self._metadata)
            try:
                session = await self._in_thread(self._session)
                previous_ms = None
                async for frame in connection:
                    with self._counted("_busy"):
                        received_ns, start_s = time.time_ns(), time.monotonic()
                        reply = await self._in_thread(functools.partial(session.answer, frame))
                        reply["server_timing"] |= {"received_ns": received_ns, "sent_ns": time.time_ns()}
                        if previous_ms is not None:
                            reply["server_timing"]["prev_total_ms"] = previous_ms
                        await connection.send(pack(reply))
                        previous_ms = (time.monotonic() - start_s) * 1e3
            except UserError as error:
                await self._refuse(connection, one_line(error))
            except ConnectionClosed:
                raise
            except Exception as error:
                logger.exception("a policy or a message failed")
                await self._refuse(connection, f"{type(error).__name__}: {one_line(error)}")

    async def _refuse(self, connection: ServerConnection, reason: str) -> None:
        """Answer with an error as openpi does: a text frame, then the end."""
        await connection.send(reason)
        await connection.close(1011, "the text frame before says why")

    def _in_thread[Result](self, work: Callable[[], Result]) -> Awaitable[Result]:
        return asyncio.get_running_loop().run_in_executor(self._inference, work)

    @contextlib.contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        setattr(self, name, getattr(self, name) + 1)
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) - 1)

    def _session(self) -> "Session":
        """Everything of one client. Policies that cannot share their weights are loaded once more."""
        twin = getattr(self._policy, "twin", None)
        return Session(self._load() if twin is None else twin(), self.interface, next(self._seeds))


class Session:
    """The episode of one client.

    Our clients send seed and tick, and number their requests, which the answers repeat. Other clients send neither, so
    each of their connections is an episode with ``seed``. Its tick follows from the time and grows with each chunk, so
    no noise is drawn twice.
    """

    def __init__(self, policy: Policy, interface: RemoteInterface, seed: int) -> None:
        self._policy, self._interface = policy, interface
        self._began_s, self._tick = time.monotonic(), -1
        self._episode: tuple[int, int] = (-1, seed)
        policy.reset(seed)

    def answer(self, frame: str | bytes) -> dict[str, Any]:
        """Plan for one message; UserError if it does not fit, or the policy plans no numbers."""
        if isinstance(frame, str):
            raise WireError("a text frame is no observation; send msgpack")
        message = unpack(frame)
        ours = message.pop(OURS, {})
        if not isinstance(ours, dict):
            raise WireError(f"{OURS} is a {type(ours).__name__}; send a mapping")
        start_s = time.perf_counter()
        chunk = self._plan(message, ours)
        infer_ms = (time.perf_counter() - start_s) * 1e3
        if not np.isfinite(chunk.actions).all():
            raise UserError("the policy planned actions that are not finite numbers")
        timing: dict[str, Any] = {"infer_ms": infer_ms}
        reply = {"actions": chunk.actions, "policy_version": chunk.policy_version, "server_timing": timing}
        return reply | ({"request": _integer(ours, "request", 0)} if "request" in ours else {})

    def _plan(self, message: Mapping[str, Any], ours: Mapping[str, Any]) -> ActionChunk:
        passed = round((time.monotonic() - self._began_s) * self._interface.spec.control_hz)
        self._tick = _integer(ours, "tick", max(passed, self._tick + 1))
        observation = self._interface.observation(message, self._tick)
        if self._interface.n_obs_steps > 1:
            observation = replace(observation, past=self._past(ours))
        episode = _integer(ours, "episode", self._episode[0]), _integer(ours, "seed", self._episode[1])
        if episode != self._episode:
            self._episode = episode
            self._policy.reset(episode[1])
        size = self._interface.spec.action_sizes[observation.state.size]
        given = {name: self._actions(ours, name, size) for name in ("previous", "committed") if name in ours}
        if "previous" in ours:
            if not hasattr(self._policy, "infer_guided"):
                raise UserError("this policy cannot be guided; use execution.strategy=naive")
            previous, delay_ticks = given["previous"], _integer(ours, "delay_ticks", 0)
            if delay_ticks > len(previous):
                raise WireError(f"delay_ticks is {delay_ticks} of {len(previous)} previous actions")
            exact = ours.get("exact_gradient") is True
            return check_chunk(self._policy.infer_guided(observation, previous, delay_ticks, exact), size)
        return check_chunk(self._policy.infer(observation, given.get("committed")), size)

    def _actions(self, ours: Mapping[str, Any], name: str, size: int) -> Float32Array:
        """Given actions of a message, float32 [at most H, A]."""
        found, horizon = ours[name], self._interface.horizon
        is_array = isinstance(found, np.ndarray) and found.ndim == 2 and found.dtype.kind == "f"
        if not is_array or found.shape[1] != size or len(found) > horizon:
            raise WireError(f"{name} are no actions [d, {size}] with d at most {horizon}")
        with np.errstate(over="ignore"):
            actions: Float32Array = found.astype(np.float32)
        if not np.isfinite(actions).all():
            raise WireError(f"{name} holds numbers that are not finite")
        return actions

    def _past(self, ours: Mapping[str, Any]) -> tuple[Observation, ...]:
        """The observations of the ticks before: of requests before they would be too far apart."""
        past, count = ours.get("past", []), self._interface.n_obs_steps
        if not isinstance(past, list) or len(past) != count - 1 or not all(isinstance(each, dict) for each in past):
            raise UserError(f"this policy reads {count} observations; send those of the ticks before as {OURS}.past")
        first = self._tick - len(past)
        return tuple(self._interface.observation(each, first + index) for index, each in enumerate(past))


def _check_address(host: str, token: str) -> None:
    """Refuse to listen to other computers without a token."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host != "localhost" and not token:
        raise UserError(f"host {host} is open to other computers; set {TOKEN} to a token, or use 127.0.0.1")


def _integer(ours: Mapping[str, Any], name: str, default: int) -> int:
    value = ours.get(name, default)
    if name in ours and (type(value) is not int or not 0 <= value < _LARGEST_NUMBER):
        raise WireError(f"{name} is {str(value)[:40]}; send an integer of at least 0")
    return int(value)
