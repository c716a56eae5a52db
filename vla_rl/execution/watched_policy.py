"""A policy whose newer versions come through a folder: learnt elsewhere, copied there, acting here at the next chunk.

Lives where the policy lives (the inference process). A thread of its own looks into the folder, loads a new version and
tries it on the newest observation; `infer` swaps between two chunks, never inside one. A version that does not load, or
whose actions are not finite numbers, is put aside, and the one before it goes on acting.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.core.errors import UserError
from vla_rl.core.files import Stamp, stamp_of
from vla_rl.core.matching import spec_difference
from vla_rl.core.protocols import Policy
from vla_rl.core.types import ActionChunk, Float32Array, Observation, PolicySpec

_log = logging.getLogger(__name__)


class WatchedPolicy:
    """The newest good version in a folder of ``version_NNNN`` folders. A `vla_rl.core.protocols.Policy`.

    A version folder may be copied in any order of files (rsync between machines): one that does not load yet is tried
    again when its files change.

    Args:
        folder: the ``policies`` of a run.
        load: loads the policy in a version folder; raises UserError for one that is damaged or half copied.
        poll_s: how often the folder is looked at.

    Raises:
        UserError: if no version in the folder can be loaded.
    """

    def __init__(self, folder: Path, load: Callable[[Path], Policy], poll_s: float = 1.0) -> None:
        self._folder, self._load, self._poll_s = folder, load, poll_s
        self._lock = threading.Lock()
        self._refused: dict[Path, Stamp] = {}  # version folder -> its files when it was found to be bad
        self._waiting: tuple[Path, Policy] | None = None
        self._observation: Observation | None = None
        self._previous: tuple[Path, Policy] | None = None
        self._seed = 0
        self._spec: PolicySpec | None = None
        self._acting = self._first()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="policy folder", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        """Of the weights that planned last."""
        return self._acting[1].version

    def reset(self, seed: int) -> None:
        """See `vla_rl.core.protocols.Policy.reset`."""
        self._seed = seed
        self._acting[1].reset(seed)

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """See `vla_rl.core.protocols.Policy.infer`. The swap, and the roll-back if the new version cannot act."""
        return self._plan(observation, lambda policy: policy.infer(observation, committed))

    def infer_guided(
        self, observation: Observation, previous: Float32Array, delay_ticks: int, exact_gradient: bool
    ) -> ActionChunk:
        """The same of a policy that can be guided, see `vla_rl.execution.strategies.rtc.GuidedPolicy`."""
        return self._plan(
            observation, lambda policy: policy.infer_guided(observation, previous, delay_ticks, exact_gradient)
        )

    def _plan(self, observation: Observation, ask: Callable[[Any], ActionChunk]) -> ActionChunk:
        with self._lock:
            waiting, self._waiting = self._waiting, None
            self._observation = observation
        if waiting is not None:
            self._previous, self._acting = self._acting, waiting
            self._acting[1].reset(self._seed)
            _log.info("policy version %d acts", self.version)
        if self._previous is None:
            return ask(self._acting[1])
        try:
            chunk = ask(self._acting[1])
            trouble = "" if np.isfinite(chunk.actions).all() else "its actions are not finite"
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        if not trouble:
            return chunk
        self._refuse(self._acting[0], trouble)
        self._acting, self._previous = self._previous, None
        self._acting[1].reset(self._seed)
        return ask(self._acting[1])

    def close(self) -> None:
        """Stop looking into the folder."""
        self._closed.set()
        self._thread.join()

    def look(self) -> None:
        """Load the newest version that is newer than the acting one and not known to be bad, and try it."""
        with self._lock:
            newest = (self._waiting or self._acting)[0]
        for folder in _versions(self._folder):
            if folder.name <= newest.name:
                return
            if self._refused.get(folder) == stamp_of(folder):
                continue
            if (policy := self._try(folder)) is not None:
                with self._lock:
                    self._waiting = (folder, policy)
                return

    def _watch(self) -> None:
        while not self._closed.wait(self._poll_s):
            try:
                self.look()
            except Exception:  # the acting policy must not suffer from what is copied into the folder
                _log.exception("cannot look for newer policies in %s", self._folder)

    def _first(self) -> tuple[Path, Policy]:
        for folder in _versions(self._folder):
            if (policy := self._try(folder)) is not None:
                return folder, policy
        raise UserError(f"no policy in {self._folder} can be loaded; see the warnings above")

    def _try(self, folder: Path) -> Policy | None:
        stamp = stamp_of(folder)
        try:
            policy = self._load(folder)
            spec = getattr(policy, "spec", None)
            if isinstance(spec, PolicySpec):
                self._spec = self._spec or spec
                if differs := spec_difference(spec, self._spec, but=("env_id",)):
                    raise UserError(
                        "it is of another robot or kind of action than the one that acts: "
                        f"{differs.name} {differs.found}, expected {differs.expected}"
                    )
            if self._observation is not None:
                policy.reset(self._seed)
                if not np.isfinite(policy.infer(self._observation).actions).all():
                    raise UserError("its actions are not finite")
            return policy
        except Exception as error:
            self._refuse(folder, f"{type(error).__name__}: {error}", stamp)
            return None

    def _refuse(self, folder: Path, trouble: str, stamp: Stamp | None = None) -> None:
        self._refused[folder] = stamp or stamp_of(folder)
        _log.warning("policy %s is not used: %s", folder.name, trouble)


def _versions(folder: Path) -> list[Path]:
    """Version folders, the newest first. Other names, such as version_old, are a person's own."""
    found = (path for path in folder.glob("version_*") if path.name.removeprefix("version_").isdecimal())
    return sorted(found, key=lambda path: path.name, reverse=True)
