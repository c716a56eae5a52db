"""Rollout workers on a Ray cluster: the same jobs, the same episodes, the same errors."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from vla_rl.core.errors import UserError
from vla_rl.training.ray_workers import RayRolloutPool
from vla_rl.training.workers import RolloutJob

ray = pytest.importorskip("ray", reason="the extra scale is not installed")
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import a test


class Writer:
    """Leaves a file for each job."""

    def run(self, jobs: Sequence[RolloutJob]) -> Iterator[RolloutJob]:
        for job in jobs:
            if job.episode_id == "bad":
                raise UserError("the expert failed")
            (job.store / job.episode_id).write_text(job.task)
            yield job

    def close(self) -> None:
        """Nothing is open."""


def make_job(name: str, store: Path) -> RolloutJob:
    return RolloutJob(name, store, "a task", (0,), None)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # ray's own
def test_jobs_are_run_in_other_processes_and_errors_come_back(tmp_path: Path) -> None:
    names = [f"e{index}" for index in range(5)]
    with RayRolloutPool(Writer, workers=1, address="local") as pool:
        assert sorted(job.episode_id for job in pool.run([make_job(name, tmp_path) for name in names])) == names
        with pytest.raises(UserError, match=r"^the expert failed$"):
            list(pool.run([make_job("bad", tmp_path)]))
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == dict.fromkeys(names, "a task")
