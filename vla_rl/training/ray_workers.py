"""Rollout workers on the machines of a Ray cluster. They and the learner share nothing but files, so every machine must
see the run folder under the same path and have this package installed.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch

from vla_rl.core.errors import UserError
from vla_rl.training.workers import RolloutJob, RolloutWorker, parts

LOCAL = "local"


class RayRolloutPool:
    """Spreads jobs over the actors of a cluster. Stands where `vla_rl.training.workers.RolloutPool` does.

    Args:
        build: makes a worker; called in the actors.
        workers: number of actors, one CPU each.
        address: of the cluster, as `ray.init` takes it; "local" starts one on this machine.

    Raises:
        UserError: if ray is not installed or the cluster cannot be reached.
    """

    def __init__(self, build: Callable[[], RolloutWorker], workers: int, address: str) -> None:
        try:
            import ray
        except ModuleNotFoundError as error:
            raise UserError("workers on a Ray cluster need the package 'ray'; install vla-rl[scale]") from error
        self._ray: Any = ray
        try:
            if address == LOCAL:
                ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
            else:
                ray.init(address, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"cannot join the Ray cluster {address!r}: {' '.join(str(error).split())}") from error
        actor = ray.remote(num_cpus=1)(_Actor)
        self._build = build
        self._actors = [actor.remote(list(sys.path)) for _ in range(workers)]

    def run(self, jobs: Sequence[RolloutJob]) -> Iterator[RolloutJob]:
        """Run the jobs, yielding each as it is saved, in any order.

        Raises:
            UserError: if an actor dies; what was saved stays saved.
            Exception: what building a worker or running a job raised, as it was.
        """
        waiting = parts(jobs, len(self._actors))[::-1]
        idle: list[Any] = list(self._actors)
        running: dict[Any, tuple[Any, Sequence[RolloutJob]]] = {}
        while waiting or running:
            while waiting and idle:
                actor, part = idle.pop(), waiting.pop()
                running[actor.run.remote(self._build, part)] = (actor, part)
            (done,), _ = self._ray.wait(list(running))
            actor, part = running.pop(done)
            try:
                self._ray.get(done)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self._ray.exceptions.RayError as error:
                raise UserError(
                    "a rollout worker of the cluster died; saved episodes are safe, use --resume"
                ) from error
            idle.append(actor)
            yield from part

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()


class _Actor:
    """Builds its worker at the first job, so that what goes wrong there is that job's error.

    Args:
        path: where the learner finds modules: parts of anybody's are named module:Name.
            What makes the worker comes with a job, since Ray imports what an argument names before it makes the call.
    """

    def __init__(self, path: list[str]) -> None:
        torch.set_num_threads(1)
        sys.path.extend(entry for entry in path if entry not in sys.path)
        self._worker: RolloutWorker | None = None

    def run(self, build: Callable[[], RolloutWorker], jobs: Sequence[RolloutJob]) -> None:
        if self._worker is None:
            self._worker = build()
        for _ in self._worker.run(jobs):
            pass
