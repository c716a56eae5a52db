"""Rollout workers on the machines of a Ray cluster. They need vla-rl and this package, and nothing of the learner's
disk: policies and episodes travel through Ray's object store.
"""

import hashlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.core.types import Episode
from vla_rl.data.store import EpisodeStore
from vla_rl.training.workers import RolloutJob, RolloutWorker, parts

LOCAL = "local"
_LOSSES = 3  # workers that may die in a row at the same jobs, or before they are there: then it is not the machines
_SILENCE_S = 60.0
_CLOSE_S = 10.0
logger = logging.getLogger(__name__)


@dataclass
class _Part:
    """Jobs, by number, whose episodes have not come yet, and the actor that plays them.

    ``losses`` counts actors that have died at them in a row, with no episode in between.
    """

    left: dict[int, RolloutJob]
    actor: Any = None
    begun: bool = False
    losses: int = 0


class RayRolloutPool:
    """Spreads jobs over the actors of a cluster, one CPU each. Stands where `vla_rl.training.workers.RolloutPool` does.

    An actor that dies, alone or with its machine, costs the episodes that it was playing. Others play them, and a new
    actor joins as soon as the cluster has a place for it. The address is as `ray.init` takes it; "local" starts a
    cluster on this machine.

    Raises:
        UserError: if ray is not installed or the cluster cannot be reached.
    """

    def __init__(self, build: Callable[[], RolloutWorker], workers: int, address: str) -> None:
        try:
            import ray
        except ModuleNotFoundError as error:
            raise UserError("workers on a Ray cluster need the package ray: pip install ray") from error
        self._ray: Any = ray
        before = signal.getsignal(signal.SIGTERM)
        try:
            if address == LOCAL:
                own: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
                ray.init(LOCAL, log_to_driver=False, **own)  # without an address it joins any that runs here
            else:
                ray.init(address, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"cannot join the Ray cluster {address!r}: {' '.join(str(error).split())}") from error
        finally:
            if before is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)  # Ray sets one that exits
        self._ended = False
        self._build = build
        self._make_actor: Any = ray.remote(num_cpus=1)(_Actor)
        self._policies: dict[Path, tuple[str, Any]] = {}
        self._actors: list[Any] = []
        self._idle: list[Any] = []
        self._joining: dict[Any, Any] = {}
        self._losses = 0
        for _ in range(workers):
            self._invite()

    def run(self, jobs: Sequence[RolloutJob]) -> Iterator[RolloutJob]:
        """Run the jobs, yielding each once it is saved, in any order.

        Raises:
            UserError: if actors die one after the other at the same jobs, or cannot start; what was saved stays saved.
            CheckpointError: for a policy that is not there.
            Exception: what building a worker or running a job raised, as it was.
        """
        self._publish({job.policy for job in jobs if job.policy is not None})
        stores = {job.store: EpisodeStore(job.store) for job in jobs}
        waiting = [_Part(dict(enumerate(part))) for part in parts(jobs, len(self._idle) + len(self._joining))][::-1]
        running: dict[Any, _Part] = {}
        try:
            while waiting or running:
                while waiting and self._idle:
                    part = waiting.pop()
                    running[self._start(self._idle.pop(), part)] = part
                ready = self._next([*running, *self._joining])
                if ready in self._joining:
                    self._welcome(ready)
                    continue
                at = running[ready]
                try:
                    played = self._ray.get(next(ready))
                except StopIteration:
                    del running[ready]
                    self._idle.append(at.actor)
                except self._ray.exceptions.RayTaskError as error:
                    raise error.cause from None
                except self._ray.exceptions.RayError as error:
                    del running[ready]
                    # One that was lost before it began was lost with its machine, not by its jobs.
                    at.losses += at.begun
                    self._replace(at.actor, error, at.losses)
                    waiting += [at] if at.left else []
                else:
                    at.begun = True
                    if played is None:
                        continue
                    job = at.left.pop(played[0])
                    stores[job.store].add(played[1])
                    at.losses = 0
                    yield job
        finally:  # who stops in the middle wants no more of these episodes
            for at in running.values():
                self._ray.kill(at.actor)
                self._invite()

    def _start(self, actor: Any, part: _Part) -> Any:
        """Return the stream of a part's episodes."""
        part.actor, part.begun = actor, False
        policies = {job.policy: self._policies[job.policy] for job in part.left.values() if job.policy is not None}
        return actor.run.options(num_returns="streaming").remote(self._build, part.left, policies)

    def _publish(self, folders: set[Path]) -> None:
        """Put policies into the object store, each once."""
        known, self._policies = self._policies, {}
        for folder in folders:
            files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
            if not files:
                raise CheckpointError(f"there is no policy at {folder}")
            sha = hashlib.sha256()
            for name in sorted(files):
                sha.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
            key = sha.hexdigest()
            is_there = folder in known and known[folder][0] == key
            self._policies[folder] = known[folder] if is_there else (key, self._ray.put(files))

    def _invite(self) -> None:
        if self._ended:
            return
        actor = self._make_actor.remote(list(sys.path))
        self._actors.append(actor)
        self._joining[actor.arrive.remote()] = actor

    def _welcome(self, arrived: Any) -> None:
        actor = self._joining.pop(arrived)
        try:
            self._ray.get(arrived)
        except self._ray.exceptions.RayError as error:
            self._losses += 1
            self._replace(actor, error, self._losses)
        else:
            self._losses = 0
            self._idle.append(actor)

    def _replace(self, lost: Any, error: Exception, losses: int) -> None:
        """Let another actor join; UserError if too many were lost in a row at one thing, or after `end`."""
        if self._ended:
            raise UserError("the rollout workers of the cluster have been ended; use --resume") from error
        if losses > _LOSSES:
            raise UserError(
                f"{losses} rollout workers of the cluster died in a row (out of memory?); saved episodes are safe, use "
                "--resume"
            ) from error
        logger.warning("a rollout worker of the cluster is lost; what it was playing is played again")
        self._ray.kill(lost)  # it may be alive and only out of reach
        self._invite()

    def _next(self, awaited: list[Any]) -> Any:
        """Return the first of them that has a result."""
        while True:
            ready, _ = self._ray.wait(awaited, num_returns=1, timeout=_SILENCE_S)
            if ready:
                return ready[0]
            if self._joining:
                logger.info("%d rollout workers wait for a place in the cluster", len(self._joining))

    def end(self) -> None:
        """End the workers (`vla_rl.training.workers.Rollouts.end`)."""
        self._ended = True
        for actor in self._actors:
            self._ray.kill(actor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.end()
        closing = [actor.close.remote() for actor in self._idle if not self._ended]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
        self._ray.shutdown()


class _Actor:
    """Builds its worker at the first job, so that what goes wrong there is that job's error.

    ``path`` is where the learner finds modules, for parts that are named module:Name. What makes the worker comes with
    a job, since Ray imports what an argument names before it makes the call.
    """

    def __init__(self, path: list[str]) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"  # torch is imported with the first worker
        sys.path.extend(entry for entry in path if entry not in sys.path)
        self._worker: RolloutWorker | None = None
        self._temporary = tempfile.TemporaryDirectory(prefix="vla-rl-worker-")
        self._policies = Path(self._temporary.name)

    def arrive(self) -> None:
        """Answered as soon as the actor has a place."""

    def close(self) -> None:
        """Let go of what the worker holds, and of the policies."""
        if self._worker is not None:
            self._worker.close()
        self._temporary.cleanup()

    def run(
        self,
        build: Callable[[], RolloutWorker],
        jobs: Mapping[int, RolloutJob],
        policies: Mapping[Path, tuple[str, Any]],
    ) -> Iterator[tuple[int, Episode] | None]:
        """Run jobs. Yield None at the beginning, then the number of each and its episode, once it is over.

        Folders in the jobs are the learner's. ``policies`` has the digest of each folder's files and where they are in
        the object store, name -> content.
        """
        yield None
        if self._worker is None:
            self._worker = build()
        here = self._unpacked(policies)
        with tempfile.TemporaryDirectory() as scratch:
            stores: dict[Path, Path] = {}
            numbers, own = {}, []
            for number, job in jobs.items():
                store = stores.setdefault(job.store, Path(scratch) / str(len(stores)))
                policy = None if job.policy is None else here[job.policy]
                own.append(replace(job, store=store, policy=policy))
                numbers[store, job.episode_id] = number
            for job in self._worker.run(own):
                yield numbers[job.store, job.episode_id], EpisodeStore(job.store).read(job.episode_id)

    def _unpacked(self, policies: Mapping[Path, tuple[str, Any]]) -> dict[Path, Path]:
        """Return the folders of policies on this machine; remove the others."""
        import ray

        for other in {file.name for file in self._policies.iterdir()} - {key for key, _ in policies.values()}:
            shutil.rmtree(self._policies / other)
        for key, where in policies.values():
            if not (self._policies / key).exists():
                for name, content in ray.get(where).items():
                    file = self._policies / key / name
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(content)
        return {folder: self._policies / key for folder, (key, _) in policies.items()}
