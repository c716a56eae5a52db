"""A policy whose newer versions come through a folder: learned elsewhere, copied there, acting here at the next chunk.

Lives where the policy lives (the inference process). A `VersionWatcher` loads a new version and tries it on the newest
observation; `infer` swaps between two chunks, never inside one. A version that does not load, or whose actions are not
finite numbers, is put aside, and the one before it goes on acting.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec, successor_difference
from vla_rl.core.protocols import Policy
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.core.version_watcher import VersionWatcher

_log = logging.getLogger(__name__)


class WatchedPolicy:
    """The newest good version in a folder of ``version_NNNN`` folders. A `vla_rl.core.protocols.Policy`.

    ``load`` loads the policy in a version folder; it raises UserError for one that is damaged or half copied. The
    folder is looked at every ``poll_s``.

    Raises:
        UserError: If no version in the folder can be loaded.
    """

    def __init__(self, folder: Path, load: Callable[[Path], Policy], poll_s: float = 1.0) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._waiting: tuple[Path, Policy] | None = None
        self._observation: Observation | None = None
        self._previous: tuple[Path, Policy] | None = None
        self._seed = 0
        self._spec: PolicySpec | None = None
        self._watcher = VersionWatcher(folder, self._take, period_s=poll_s)
        self._acting = self._first(folder)
        self._watcher.__enter__()

    def _first(self, folder: Path) -> tuple[Path, Policy]:
        self.look()
        first, self._waiting = self._waiting, None
        if first is None:
            raise UserError(f"no policy in {folder} can be loaded; see the warnings above")
        return first

    def look(self) -> None:
        """Load the newest version that is newer than the acting one and not known to be bad, and try it."""
        self._watcher.look()

    @property
    def version(self) -> int:
        """Of the weights that planned last."""
        return self._acting[1].version

    def reset(self, seed: int) -> None:
        """Begin an attempt (`vla_rl.core.protocols.Policy.reset`)."""
        self._seed = seed
        self._acting[1].reset(seed)

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan a chunk (`vla_rl.core.protocols.Policy.infer`). Swap versions, and roll back if the new version cannot
        act."""
        return self._plan(observation, lambda policy: policy.infer(observation, committed))

    def infer_guided(
        self, observation: Observation, previous: Float32Array, delay_ticks: int, exact_gradient: bool
    ) -> ActionChunk:
        """Watch the versions of a policy that can be guided (`vla_rl.execution.strategies.rtc.GuidedPolicy`)."""
        return self._plan(
            observation, lambda policy: policy.infer_guided(observation, previous, delay_ticks, exact_gradient)
        )

    @property
    def refines(self) -> bool:
        """Whether the acting version refines its chunks as they enter (`vla_rl.core.protocols.RefiningPolicy`)."""
        return _refines(self._acting[1])

    def plan(self, observation: Observation) -> ActionChunk:
        """Plan a chunk that is not refined yet. Swap versions, and roll back, as `infer` does."""
        return self._plan(
            observation, lambda policy: policy.plan(observation) if _refines(policy) else policy.infer(observation)
        )

    def refine(self, chunk: ActionChunk, observation: Observation, index: int) -> ActionChunk:
        """Refine a chunk of the acting version; it has not been swapped since it planned."""
        return self._tried(lambda policy: policy.refine(chunk, observation, index) if _refines(policy) else chunk)

    def _plan(self, observation: Observation, ask: Callable[[Any], ActionChunk]) -> ActionChunk:
        with self._lock:
            waiting, self._waiting = self._waiting, None
            self._observation = observation
        if waiting is not None:
            self._previous, self._acting = self._acting, waiting
            self._acting[1].reset(self._seed)
            _log.info("policy version %d acts", self.version)
        return self._tried(ask)

    def _tried(self, ask: Callable[[Any], ActionChunk]) -> ActionChunk:
        """Ask the acting version, or go back to the one before it if it cannot act."""
        if self._previous is None:
            return ask(self._acting[1])
        try:
            chunk = ask(self._acting[1])
            trouble = "" if np.isfinite(chunk.actions).all() else "its actions are not finite"
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        if not trouble:
            return chunk
        self._watcher.refuse(self._acting[0], trouble)
        self._acting, self._previous = self._previous, None
        self._watcher.newest = int(self._acting[0].name.removeprefix("version_"))
        self._acting[1].reset(self._seed)
        return ask(self._acting[1])

    def close(self) -> None:
        """Stop looking into the folder."""
        self._watcher.__exit__()

    def _take(self, folder: Path) -> None:
        """Load a version, try it, and let it wait for the next chunk."""
        policy = self._load(folder)
        spec = getattr(policy, "spec", None)
        if isinstance(spec, PolicySpec):
            self._spec = self._spec or spec
            if differs := successor_difference(spec, self._spec):
                raise UserError(
                    "it is of another robot or kind of action than the one that acts: "
                    f"{differs.name} {differs.found}, expected {differs.expected}"
                )
        if self._observation is not None:
            policy.reset(self._seed)
            if not np.isfinite(policy.infer(self._observation).actions).all():
                raise UserError("its actions are not finite")
        with self._lock:
            self._waiting = (folder, policy)


def _refines(policy: Policy) -> bool:
    return getattr(policy, "refines", False)
