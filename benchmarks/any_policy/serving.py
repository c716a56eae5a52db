"""Figures of remote policies: faults of a server, fuzz of both parsers, openpi's own packages, latency, load."""

import contextlib
import logging
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, seed, settings

import vla_rl as vla
from benchmarks.any_policy.faults import KINDS, FaultyServer, in_process, in_thread
from benchmarks.any_policy.fuzz import MESSAGES
from benchmarks.any_policy.openpi_programs import CLIENT, SERVER
from vla_rl.acting.policy_folder import PolicyFolder
from vla_rl.acting.serve import PolicyServer, Session
from vla_rl.core.config import config_to_dict
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.policies.remote import RemoteInterface, RemotePolicy
from vla_rl.policies.remote.policy import OURS
from vla_rl.policies.remote.wire import unpack

_HZ = 100.0
_SPEC = PolicySpec("arm", ("front", "top"), (16, 16), state_dim=8, action_dim=7, control_hz=_HZ)
_FUZZED = RemoteInterface(PolicySpec("toy", ("front", "top"), (16, 16), state_dim=3, action_dim=2), horizon=8)


class Repeating:
    """A policy that costs nothing: its chunks repeat the state."""

    spec, horizon, version = replace(_SPEC, image_size=(224, 224)), 50, 0

    def reset(self, seed: int) -> None:
        """Nothing to begin."""

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan the state."""
        del committed
        actions = np.tile(observation.state[: self.spec.action_dim], (self.horizon, 1))
        return ActionChunk(actions, observation.tick, 0, self.version)


def faults(count: int, duration_s: float = 15.0, ticks: int = 1) -> dict[str, int]:
    """Let a robot act in real time while every second answer of its server is a fault, of every kind in turn.

    Args:
        count: Least number of faults; 0: the server is sound.
        duration_s: Of an attempt.
        ticks: Least number of control ticks.

    Returns:
        Injected faults, ticks, ticks without a command, and ticks that were held, over all attempts.
    """
    interface = RemoteInterface(_SPEC, horizon=100)
    order = random.Random(0)
    totals = dict.fromkeys(("faults", "ticks", "lost_ticks", "held_ticks"), 0)
    options = {"robot.duration_s": duration_s, "execution.execute_ticks": 2, "execution.hold_ticks": 1000}
    while totals["faults"] < count or totals["ticks"] < ticks:
        kinds = order.sample(KINDS, len(KINDS)) * 40 if count else []
        planned = [None, None, None, *(fault for kind in kinds for fault in (kind, None))]
        server = FaultyServer(interface, planned, config_to_dict(interface), slow_s=0.08)
        with in_process(server) as url:
            acted = acted_ticks(f"{url}?timeout_s=0.05", options)
        totals["faults"] += server.injected
        for name, count_of_attempt in acted.items():
            totals[name] += count_of_attempt
    return totals


def acted_ticks(policy: str | Path, settings: dict[str, Any], out: Path | None = None) -> dict[str, int]:
    """Let a policy act once on the mock robot in real time.

    Args:
        policy: Its folder or name.
        settings: Of the rollout.
        out: Episode store to add to; None: the episode is not kept.

    Returns:
        Ticks with a command, deadlines that passed without one (``lost_ticks``), and ticks in which the last command
        was held.

    Raises:
        RuntimeError: If the attempt was stopped.
    """
    lines = _logged(lambda: vla.rollout(policy, "mock", realtime=True, settings=settings, out=out))
    line = next(line for line in lines if "missed" in line)
    if "stopped" in line:
        raise RuntimeError(f"an attempt was stopped: {line}")
    ticks, held, missed = (int(found) for found in re.findall(r"(?:after|held|missed) (\d+)", line))
    return {"ticks": ticks, "lost_ticks": missed, "held_ticks": held}


def fuzz(count: int) -> dict[str, int]:
    """Give messages that are almost right to both parsers.

    Returns:
        Number of messages, of those that were refused in words, and of crashes: any other exception.
    """
    found = {"messages": 0, "refused": 0, "crashes": 0}

    def asked(parse: Any, data: bytes) -> None:
        found["messages"] += 1
        try:
            parse(data)
        except UserError:
            found["refused"] += 1
        except Exception:
            found["crashes"] += 1
            logging.exception("a parser crashed at %r", data)

    client = _Parsing("openpi://nowhere", _FUZZED)
    session = Session(_Answering(), _FUZZED, 0)
    many = settings(max_examples=count // 2, deadline=None, database=None, suppress_health_check=list(HealthCheck))

    @seed(0)
    @many
    @given(MESSAGES)
    def both(data: bytes) -> None:
        asked(session.answer, data)
        asked(client.parse, data)

    both()
    return found


class _Answering:
    """The served policy of the fuzz."""

    version = 0

    def reset(self, seed: int) -> None:
        """Nothing to begin."""

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan the state."""
        del committed
        return ActionChunk(np.tile(observation.state[:2], (8, 1)), observation.tick, 0, 0)


class _Parsing(RemotePolicy):
    """A client that is given its answers."""

    def close(self) -> None:
        """There is no connection."""

    def parse(self, data: bytes) -> None:
        """Read an answer, and the same bytes as metadata."""
        message = unpack(data)
        if OURS in message:
            with contextlib.suppress(UserError):
                RemoteInterface.declared(message[OURS], self.url)
        self._reply = message
        spec = self.spec
        images = {camera: np.zeros((*spec.image_size, 3), np.uint8) for camera in spec.cameras}
        self.infer(Observation(images, np.zeros(spec.state_dim, np.float32), "", 0))

    def _open(self, interface: RemoteInterface | None) -> RemoteInterface | None:
        return interface

    def _answer(self, observation: Observation, ours: Any, timeout_s: float) -> tuple[Any, Any]:
        del observation, ours, timeout_s
        told = self._reply.get("server_timing")
        return self._reply.get("actions"), told if isinstance(told, dict) else {}


def latency(chunks: int = 300) -> dict[str, float]:
    """Measure what the wire costs for two cameras of 224 x 224 pixels, and eight clients at a time."""
    spec = Repeating.spec
    images = {camera: np.zeros((*spec.image_size, 3), np.uint8) for camera in spec.cameras}
    with served_policy(f"{__name__}:Repeating") as url:
        clients: list[Any] = [vla.load_policy(url) for _ in range(8)]

        def ask(client: Any) -> None:
            for tick in range(chunks):
                client.infer(Observation(images, np.zeros(spec.state_dim, np.float32), "", tick))

        ask(clients[0])
        trips = np.array([timing.round_trip_ms for timing in clients[0].timings])
        offset = min(abs(timing.offset_ms) for timing in clients[0].timings)
        start_s = time.monotonic()
        threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rate = 8 * chunks / (time.monotonic() - start_s)
        answered = sum(len(client.timings) for client in clients[1:])
        for client in clients:
            client.close()
    if answered != 7 * chunks:
        raise RuntimeError(f"{answered} of {7 * chunks} chunks of the load test arrived")
    return {
        "wire_ms": float(np.median(trips)),
        "wire_95_ms": float(np.percentile(trips, 95)),
        "clock_offset_ms": float(offset),
        "load_chunks_per_s": rate,
    }


@contextlib.contextmanager
def served_policy(source: str | Path, port: int = 0) -> Iterator[str]:
    """Run ``vla-rl serve`` in a process of its own; yields its URL. Port 0: a free one."""
    command = [sys.executable, "-m", "vla_rl.cli.main", "serve", str(source), "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = next((line for line in process.stderr if "ws://" in line), "")
            found = re.search(r"ws://[^ ]*:(\d+)", line)
            if found is None:
                raise RuntimeError(f"vla-rl serve {source} has not begun")
            yield f"openpi://127.0.0.1:{found[1]}"
        finally:
            process.terminate()
            process.wait(10)


def openpi_client(python: Path) -> int:
    """Let openpi's own client ask our server; returns 1 if all of its chunks were right."""
    spec = _FUZZED.spec
    sizes = (*spec.image_size, spec.state_dim, 8, spec.action_dim)
    folder = PolicyFolder(Path(), spec, 8, (), 0, name=f"{__name__}:Small")
    with in_thread(PolicyServer(folder)) as url:
        port = url.rpartition(":")[2]
        command = [str(python), "-c", CLIENT, port, *map(str, sizes)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={}, check=False)
    if done.stdout != "ok\n":
        logging.error("openpi's client: %s", done.stderr)
    return int(done.stdout == "ok\n")


class Small(_Answering):
    """What openpi's client asks."""

    spec, horizon = _FUZZED.spec, 8


def openpi_server(python: Path) -> int:
    """Ask openpi's own server with our client; returns 1 if all of its chunks were right."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([str(python), "-c", SERVER, str(port)], env={}, stderr=subprocess.DEVNULL) as process:
        try:
            policy = _when_ready(f"openpi://127.0.0.1:{port}?interface=libero", process)
            spec = policy.spec
            images = {camera: np.zeros((*spec.image_size, 3), np.uint8) for camera in spec.cameras}
            for tick in range(20):
                state = np.random.default_rng(tick).random(8, np.float32)
                chunk = policy.infer(Observation(images, state, "put it there", tick))
                if chunk.actions.shape != (10, 7) or not (chunk.actions == state[:7]).all():
                    return 0
            policy.close()
            return 1
        finally:
            process.kill()


def _when_ready(url: str, process: subprocess.Popen[bytes]) -> Any:
    for _ in range(100):
        try:
            return vla.load_policy(url)
        except UserError:
            if process.poll() is not None:
                raise
            time.sleep(0.1)
    return vla.load_policy(url)


def same_episodes(episodes: int = 4) -> float:
    """Let a policy act on the default task here and behind a server; returns the largest difference of its actions."""
    env = vla.make_env("vla_rl/PegInsert-v0", difficulty=0.4)
    demonstrations = vla.collect_demonstrations(env, episodes=1)
    policy = vla.FlowVLA.from_data(demonstrations)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "policy")
        policy.save(folder)
        here = vla.evaluate(folder, env, episodes, settings={"execution.strategy": "naive"})
        with served_policy(folder) as url:
            there = vla.evaluate(url, env, episodes, settings={"execution.strategy": "naive"})
        pairs = [*zip(here.store, there.store, strict=True)]
    return max(float(np.abs(one.action_sent - other.action_sent).max()) for one, other in pairs)


def _logged(action: Any) -> list[str]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        action()
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    return lines
