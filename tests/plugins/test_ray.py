"""Rollout workers on a Ray cluster: the same jobs, the same episodes, the same errors, without a shared disk."""

import functools
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vla_rl_ray import RayRolloutPool

from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.core.types import Episode, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.training.workers import RolloutJob, RolloutPool

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # ray's own
EPISODES, WORKERS = 24, 4


@pytest.fixture(scope="module", autouse=True)
def actors_know_this_module() -> None:
    """Actors cannot import a test. Only the process that runs these tests imports Ray, which takes a second."""
    ray = pytest.importorskip("ray", reason="it comes with plugins/vla_rl_ray")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Player:
    """Plays episodes of which the policy's file says how, and may not look at the learner's disk.

    Args:
        learners: a folder of the learner's.
        pids: the process leaves a file of its number there, and waits until four have; None: it does not.
    """

    def __init__(self, learners: str, pids: Path | None = None) -> None:
        def watch(event: str, args: tuple[Any, ...]) -> None:
            if event in ("open", "os.listdir", "os.mkdir") and str(args[0]).startswith(learners):
                raise PermissionError(f"the worker looks at {args[0]}")

        if learners:
            sys.addaudithook(watch)
        self.pids = pids

    def run(self, jobs: Sequence[RolloutJob]) -> Iterator[RolloutJob]:
        for job in jobs:
            if job.episode_id == "bad":
                raise UserError("the expert failed")
            if job.episode_id == "bomb":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.pids is not None:
                (self.pids / str(os.getpid())).touch()
                while len(list(self.pids.iterdir())) < WORKERS:
                    time.sleep(0.05)
                time.sleep(0.2)
            gain = 1.0 if job.policy is None else float((job.policy / "critic" / "gain").read_text())
            path = gain * np.arange(8, dtype=np.float32).reshape(4, 2) + job.seeds[0]
            images = {"front": np.full((4, 4, 6, 3), job.seeds[0], np.uint8)}
            source = np.zeros(4, np.uint8)
            told = (job.task, True, True, Origin.SIM, 0, job.seeds[0], 20.0, "a task")
            EpisodeStore(job.store).add(Episode(job.episode_id, images, path, path, path, source, *told))
            yield job

    def close(self) -> None:
        """Nothing is open."""


def make_jobs(run: Path) -> list[RolloutJob]:
    """Of two versions of a policy, for two stores."""
    for version in (0, 1):
        critic = run / f"version_{version}" / "critic"
        critic.mkdir(parents=True, exist_ok=True)
        (critic / "gain").write_text(str(2.0 + version))
    return [
        RolloutJob(f"e{number}", run / ("a" if number % 3 else "b"), "a task", (number,), run / f"version_{number % 2}")
        for number in range(EPISODES)
    ]


def contents(run: Path) -> dict[tuple[str, str], str]:
    """Digest of every episode, by its store and name."""
    stores = {name: EpisodeStore(run / name, create=False) for name in ("a", "b")}
    return {(name, key): store.read_header(key).digest for name, store in stores.items() for key in store.ids()}


@pytest.fixture
def expected(tmp_path: Path) -> dict[tuple[str, str], str]:
    """What the same jobs leave here."""
    with RolloutPool(functools.partial(Player, ""), workers=0) as pool:
        list(pool.run(make_jobs(tmp_path / "here")))
    return contents(tmp_path / "here")


def test_episodes_are_the_same_without_a_shared_disk_and_errors_and_deaths_come_back(
    tmp_path: Path, expected: dict[tuple[str, str], str]
) -> None:
    run = tmp_path / "run"
    jobs = make_jobs(run)
    with RayRolloutPool(functools.partial(Player, str(run)), workers=2, address="local") as pool:
        assert {job.episode_id for job in pool.run(jobs)} == {job.episode_id for job in jobs}
        assert contents(run) == expected
        with pytest.raises(CheckpointError, match="there is no policy at"):
            list(pool.run([RolloutJob("none", run / "a", "a task", (0,), run / "version_9")]))
        with pytest.raises(UserError, match=r"^the expert failed$"):
            list(pool.run([RolloutJob("bad", run / "a", "a task", (0,), None)]))
        (run / "version_0" / "critic" / "gain").write_text("7.0")
        (job,) = pool.run([RolloutJob("again", run / "a", "a task", (0,), run / "version_0")])
        assert EpisodeStore(job.store).read("again").state[1, 0] == 14.0, "a policy that changed is sent again"
        with pytest.raises(UserError, match="4 rollout workers of the cluster died in a row"):
            list(pool.run([RolloutJob("bomb", run / "a", "a task", (1,), None)]))
    assert contents(run) == {**expected, ("a", "again"): EpisodeStore(job.store).read_header("again").digest}


def test_killed_workers_cost_what_they_were_playing(tmp_path: Path, expected: dict[tuple[str, str], str]) -> None:
    run, pids, killed = tmp_path / "run", tmp_path / "pids", set[int]()
    pids.mkdir()

    def kill(most: int) -> None:
        for victim in sorted({int(file.name) for file in pids.iterdir()} - killed)[-most:]:
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)

    with RayRolloutPool(functools.partial(Player, str(run), pids), workers=WORKERS, address="local") as pool:
        done = []
        for job in pool.run(make_jobs(run)):
            done.append(job.episode_id)
            if len(done) == 2:
                kill(WORKERS)  # as when a machine is lost that had all of them
                assert len(killed) == WORKERS
            elif len(done) in (10, 16):
                kill(1)
        kill(WORKERS)  # also when nobody plays
        (_,) = pool.run([RolloutJob("late", tmp_path / "late", "a task", (0,), None)])
    assert sorted(done) == sorted(set(done)), "no episode twice"
    assert contents(run) == expected
