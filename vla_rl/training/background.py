"""Rollouts that go on while the learner learns."""

from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from vla_rl.training.workers import RolloutJob, Rollouts


class BackgroundRollouts:
    """Runs jobs one batch after the other in a thread of its own; the pool's workers do the work.

    Args:
        pool: runs the jobs; it must not be used otherwise meanwhile.
    """

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
