"""A policy on a server, behind the loop's `Policy` protocol. In real time it belongs into the inference process
(`vla_rl.execution.inference_process`), where no fault of the server reaches the control loop.
"""

import logging
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import Difference, PolicySpec, successor_difference
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.policies.remote.interface import MOST_ACTIONS, RemoteInterface

logger = logging.getLogger(__name__)

TOKEN = "VLA_RL_TOKEN"
"""Environment variable with the token of the server: command lines are read by other users of a computer."""
FIRST_ANSWER_S = 60.0
"""Time for the connection and for the first chunk, which a server may compile for."""
OURS = "vla_rl"
"""Key of what our clients and our server add to openpi's messages."""
LARGEST_ANSWER = 16 * 2**20
"""Largest message of a server, bytes."""
_REMEMBERED = 1000


class RemoteError(UserError):
    """A server that cannot be reached, does not answer in time, or answers with something else than a chunk.

    Example:
        >>> from vla_rl.policies.remote import connect
        >>> connect("openpi://127.0.0.1:1")
        Traceback (most recent call last):
            ...
        vla_rl.policies.remote.policy.RemoteError: ...
    """


class Timing(NamedTuple):
    """One exchange with the server, in ms. The offset of the server's clock is NaN where the server sends no stamps."""

    round_trip_ms: float
    infer_ms: float
    offset_ms: float


class RemotePolicy(ABC):
    """Plans chunks by asking a server. Subclasses speak its wire.

    Our own server gets seed, tick and committed actions, so a policy plans there what it would plan here. Other
    servers get the observation alone.

    Args:
        url: Of the server, as the caller wrote it.
        interface: What is known of the policy; None: the server declares it.
        timeout_s: Time for a chunk, from the second one on.

    Attributes:
        interface: What the policy reads and plans.
        timings: The latest exchanges.

    Example:
        >>> from vla_rl.policies.remote import connect
        >>> served = connect(address)  # of `vla-rl serve runs/dot`, such as openpi://127.0.0.1:8000
        >>> served.infer(env.observe()).actions.shape == (served.horizon, 2)
        True
    """

    def __init__(self, url: str, interface: RemoteInterface | None = None, timeout_s: float = 2.0) -> None:
        self.url, self._timeout_s = url, timeout_s
        self._token = os.environ.get(TOKEN, "")
        self.timings: deque[Timing] = deque(maxlen=_REMEMBERED)
        self._answered = False
        self._seed = self._episode = self._chunk_id = 0
        try:
            found = self._open(interface)
            if found is None:
                raise RemoteError(
                    f"{url} does not describe its policy; name its interface: {url}?interface=libero, or a YAML file"
                )
            if found is interface and found.n_obs_steps > 1:
                raise RemoteError(
                    f"{url} takes one observation, the interface has n_obs_steps {found.n_obs_steps}; "
                    "serve the policy with `vla-rl serve`"
                )
        except BaseException:
            self.close()
            raise
        self.interface = found
        self.version = found.version

    @property
    def spec(self) -> PolicySpec:
        """Interface of the policy with the robot."""
        return self.interface.spec

    @property
    def horizon(self) -> int:
        """H, number of actions in a chunk; 0 before the first chunk of a server that does not declare it."""
        return self.interface.horizon

    @property
    def provides(self) -> frozenset[str]:
        """Capabilities, see `vla_rl.core.capabilities`."""
        return frozenset(self.interface.provides)

    @property
    def discrete_dims(self) -> tuple[int, ...]:
        """Action dimensions that are discrete (grippers)."""
        return self.interface.discrete_dims

    @property
    def prefix_ticks(self) -> int:
        """Longest committed prefix seen in training; 0: none."""
        return self.interface.prefix_ticks

    @property
    def n_obs_steps(self) -> int:
        """Number of observations, of consecutive ticks, that the policy reads."""
        return self.interface.n_obs_steps

    def reset(self, seed: int) -> None:
        """Begin an episode, and log how the server kept up in the last one."""
        if self.timings:
            logger.info("%s: %s", self.url, self.latency())
        self._seed, self._chunk_id = seed, 0
        self._episode += 1

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan a chunk that starts at the observation's tick.

        Only our server goes on from committed actions, float32 [d, A].

        Raises:
            RemoteError: If the server gives no chunk in time, or one that does not fit.
        """
        return self._plan(observation, {} if committed is None else {"committed": committed})

    def infer_guided(
        self, observation: Observation, previous: Float32Array, delay_ticks: int, exact_gradient: bool = True
    ) -> ActionChunk:
        """Plan a chunk that goes on from an earlier one, on our server, as `GuidedPolicy` says."""
        options = {"previous": previous, "delay_ticks": delay_ticks, "exact_gradient": exact_gradient}
        return self._plan(observation, options)

    def latency(self) -> str:
        """Describe the latest exchanges: their number, round trip, the server's share, and the offset of its clock."""
        if not self.timings:
            return "no chunk yet"
        trips, shares, _ = np.array(self.timings).T
        best = min(self.timings, key=lambda timing: timing.round_trip_ms)
        share = "" if np.isnan(shares).all() else f", of it {np.nanmedian(shares):.1f} ms inference"
        clock = "" if np.isnan(best.offset_ms) else f", its clock {best.offset_ms:+.1f} ms"
        median, tail = np.percentile(trips, (50, 95))
        return f"{len(trips)} chunks, round trip {median:.1f} ms (95 %: {tail:.1f}){share}{clock}"

    @abstractmethod
    def close(self) -> None:
        """Close the connection. The next chunk opens another one."""

    @abstractmethod
    def _open(self, interface: RemoteInterface | None) -> RemoteInterface | None:
        """Connect. Returns the interface that the server declares, else the given one. The caller closes on errors."""

    @abstractmethod
    def _answer(
        self, observation: Observation, ours: Mapping[str, Any], timeout_s: float
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return the actions that the server answers, and what it says of the exchange."""

    def _plan(self, observation: Observation, options: Mapping[str, Any]) -> ActionChunk:
        ours = {"seed": self._seed, "tick": observation.tick, "episode": self._episode, **options}
        sent_ns = time.time_ns()
        start_s = time.monotonic()
        timeout_s = self._timeout_s if self._answered else max(FIRST_ANSWER_S, self._timeout_s)
        actions, told = self._answer(observation, ours, timeout_s)
        round_trip_ms = (time.monotonic() - start_s) * 1e3
        chunk = self._chunk(observation, actions)
        self._answered = True
        self.timings.append(_timing(round_trip_ms, sent_ns, told))
        return chunk

    def _chunk(self, observation: Observation, actions: Any) -> ActionChunk:
        size, horizon = self.spec.action_sizes[observation.state.size], self.horizon or MOST_ACTIONS
        fits = isinstance(actions, np.ndarray) and actions.ndim == 2 and actions.dtype.kind in "fiu"
        if not fits or actions.shape[1] != size or not 1 <= len(actions) <= horizon:
            found = f"{actions.dtype} {[*actions.shape]}" if isinstance(actions, np.ndarray) else type(actions).__name__
            raise RemoteError(
                f"{self.url} answered with actions of {found}; expected are [1 to {horizon}, {size}]. "
                "Is it the policy of this robot?"
            )
        plain = np.ascontiguousarray(actions, np.float32)
        if not np.isfinite(plain).all():
            raise RemoteError(f"{self.url} answered with actions that are not finite numbers")
        self._chunk_id += 1
        return ActionChunk(plain, observation.tick, self._chunk_id - 1, self.version)

    def _check_same(self, found: RemoteInterface) -> None:
        """Refuse another policy behind the same address after a new connection."""
        if differs := _successor_difference(found, self.interface):
            raise RemoteError(
                f"{self.url} now serves another policy: its {differs.name} is {differs.found}, it was "
                f"{differs.expected}; start the rollout again"
            )


def _successor_difference(found: RemoteInterface, known: RemoteInterface) -> Difference | None:
    """As `successor_difference`, for what a server declares. Its version and capabilities may differ."""
    if differs := successor_difference(found.spec, known.spec):
        return differs
    found = replace(found, horizon=found.horizon or known.horizon)
    for name in ("keys", "horizon", "discrete_dims", "prefix_ticks", "n_obs_steps"):
        one, other = getattr(found, name), getattr(known, name)
        if str(one) != str(other):  # as text, because the order of keys counts
            return Difference(name, one, other)
    return None


def _timing(round_trip_ms: float, sent_ns: int, told: Mapping[str, Any]) -> Timing:
    """The exchange in numbers; the clock's offset as of NTP, from the stamps of both sides."""
    numbers = {name: float(value) for name, value in told.items() if type(value) in (int, float)}
    received, answered = numbers.get("received_ns", np.nan), numbers.get("sent_ns", np.nan)
    back_ns = sent_ns + round_trip_ms * 1e6
    offset_ms = ((received - sent_ns) + (answered - back_ns)) / 2e6
    return Timing(round_trip_ms, numbers.get("infer_ms", np.nan), offset_ms)
