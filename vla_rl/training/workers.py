"""Rollout workers: processes that run episodes and write them to a store. They and the learner share nothing but
files.
"""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from vla_rl.core.errors import UserError
from vla_rl.core.processes import belong_to_parent, end_processes, starting_children

_PART = 64


@dataclass(frozen=True)
class RolloutJob:
    """One episode to run and to save.

    Attributes:
        episode_id: the id under which it is saved.
        store: the folder of the episode store.
        task: id of the environment.
        seeds: reset seeds; the next one is tried when a demonstration fails, otherwise the first is used.
        policy: folder of the policy version that acts; None for the scripted expert.
        version: of that policy in its run, which an episode notes; None: as the policy itself says. They differ where
            the policy before stays after a check.
        takeover: whether the supervisor may take over.
        collects: the episode is practice that explores, and may be played in another precision than an evaluation.
        noise_seed: of the policy's noise, where several episodes begin at one and the same start; None: the reset seed.
        pictures: every step keeps its picture; False: a simulator draws only what is looked at, where chunks are
            planned.
    """

    episode_id: str
    store: Path
    task: str
    seeds: tuple[int, ...]
    policy: Path | None
    takeover: bool = False
    collects: bool = False
    noise_seed: int | None = None
    pictures: bool = True
    version: int | None = None


class RolloutWorker(Protocol):
    """Runs jobs; keeps its environments and the loaded policy between them."""

    def run(self, jobs: Sequence[RolloutJob]) -> Iterator[RolloutJob]:
        """Run the episodes, several at a time where possible, yielding each job as its episode is saved, in any order.
        What is saved depends on the job alone, not on the others.
        """
        ...

    def close(self) -> None: ...


class Rollouts(Protocol):
    """Runs jobs somewhere: `RolloutPool` on this machine, the package vla-rl-ray on many. A context manager."""

    def run(self, jobs: Sequence[RolloutJob]) -> Iterator[RolloutJob]:
        """Run the jobs, yielding each once it is saved, in any order."""
        ...

    def end(self) -> None:
        """End the workers and the episodes that they play; another thread's `run` raises. What was saved stays."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


def parts(jobs: Sequence[RolloutJob], workers: int) -> list[Sequence[RolloutJob]]:
    """Return the jobs in parts, one for each worker, or more, none of them too long to show how far it is."""
    size = max(min(-(-len(jobs) // workers), _PART), 1)
    return [jobs[first : first + size] for first in range(0, len(jobs), size)]


class RolloutPool:
    """Spreads jobs over worker processes that live as long as the pool; without any, it runs them in this process.

    ``build`` makes a worker: a module-level function with its configuration bound by `functools.partial`, since it is
    called in the worker processes.
    """

    def __init__(self, build: Callable[[], RolloutWorker], workers: int) -> None:
        self._build, self._workers = build, workers
        self._local: RolloutWorker | None = None
        self._pool: ProcessPoolExecutor | None = None
        if workers:
            # Spawned, not forked: a fork of a process with torch threads and open simulators may hang.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(build,))

    def run(self, jobs: Sequence[RolloutJob]) -> Iterator[RolloutJob]:
        """Run the jobs, yielding each once it is saved, in any order.

        Raises:
            UserError: if a worker process dies (out of memory, killed); what was saved stays saved.
            Exception: what building a worker or running a job raised, as it was.
        """
        if self._pool is None:
            self._local = self._local or self._build()
            yield from self._local.run(jobs)
            return
        futures: dict[Future[None], Sequence[RolloutJob]] = {}
        try:
            with starting_children():
                futures = {self._pool.submit(_run_in_worker, part): part for part in parts(jobs, self._workers)}
            for future in as_completed(futures):
                future.result()
                yield from futures[future]
        except BrokenProcessPool as error:
            raise UserError("a rollout worker died (out of memory?); saved episodes are safe, use --resume") from error
        finally:
            for future in futures:
                future.cancel()

    def end(self) -> None:
        """End the workers (`Rollouts.end`)."""
        if self._pool is not None:
            end_processes([*self._pool._processes.values()])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.end()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._local is not None:
            self._local.close()


class BackgroundRollouts:
    """Runs jobs while the learner learns: one batch after the other in a thread, which has the pool for itself."""

    def __init__(self, pool: Rollouts) -> None:
        self._pool = pool
        self._thread: ThreadPoolExecutor | None = None
        self._batches: dict[Hashable, Future[None]] = {}
        self._stopping = False

    def start(self, name: Hashable, jobs: Sequence[RolloutJob]) -> None:
        """Queue a batch; one that has been named before is not queued again."""
        if name not in self._batches and jobs:
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="rollouts")
            self._batches[name] = self._thread.submit(self._run, jobs)

    def wait(self, name: Hashable) -> bool:
        """Wait until a batch is done; False if there is none of that name. Raises what running it raised."""
        if name not in self._batches:
            return False
        self._batches[name].result()
        return True

    def wait_for_all(self) -> None:
        """Wait until the pool is idle. Raises what running a batch raised."""
        for batch in self._batches.values():
            batch.result()

    def stop(self) -> None:
        """Begin no further jobs, and end those that run."""
        self._stopping = True
        if not all(batch.done() for batch in self._batches.values()):
            self._pool.end()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _run(self, jobs: Sequence[RolloutJob]) -> None:
        for _ in self._pool.run(jobs):
            if self._stopping:
                return


_worker: RolloutWorker | Exception | None = None


def _start_worker(build: Callable[[], RolloutWorker]) -> None:
    import torch  # a process that only names jobs starts without it

    belong_to_parent()
    signal.signal(signal.SIGTERM, _end_worker)
    torch.set_num_threads(1)  # the learner and the other workers have the other cores
    global _worker
    try:
        _worker = build()
    except Exception as error:
        _worker = error  # a pool whose initializer raises says only that it is broken: the first job says why


def _end_worker(*_: object) -> None:
    """In the middle of an episode: an environment may hold processes and servers of its own."""
    if _worker is not None and not isinstance(_worker, Exception):
        with contextlib.suppress(Exception):
            _worker.close()
    os._exit(128 + signal.SIGTERM)


def _run_in_worker(jobs: Sequence[RolloutJob]) -> None:
    if isinstance(_worker, Exception):
        raise _worker
    assert _worker is not None
    for _ in _worker.run(jobs):
        pass
