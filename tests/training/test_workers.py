"""A pool that ends in the middle of its episodes: its workers let go of what they hold, or are killed."""

import functools
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from vla_rl.core.errors import UserError
from vla_rl.training.workers import BackgroundRollouts, RolloutJob, RolloutPool


class SlowWorker:
    """Its first job never ends.

    Args:
        folder: where it leaves files for what happens.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, jobs: Sequence[RolloutJob]) -> Iterator[RolloutJob]:
        for job in jobs:
            if job.episode_id == "stubborn":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            (self._folder / job.episode_id).touch()
            time.sleep(600)
            yield job

    def close(self) -> None:
        (self._folder / "closed").touch()


@pytest.mark.slow
def test_running_episodes_are_ended_in_time(tmp_path: Path) -> None:
    jobs = [RolloutJob(name, tmp_path, "none", (0,), None) for name in ("usual", "stubborn")]
    with RolloutPool(functools.partial(SlowWorker, tmp_path), workers=2) as pool:
        background = BackgroundRollouts(pool)
        background.start("round", jobs)
        until_s = time.monotonic() + 120
        while not all((tmp_path / job.episode_id).exists() for job in jobs):
            assert time.monotonic() < until_s
            time.sleep(0.02)
        started_s = time.monotonic()
        background.stop()
        with pytest.raises(UserError, match="a rollout worker died"):
            background.wait("round")
    assert time.monotonic() - started_s < 5
    assert (tmp_path / "closed").exists()


def test_a_pool_without_running_episodes_is_left_alone() -> None:
    class Pool:
        def run(self, jobs: Sequence[RolloutJob]) -> Iterator[RolloutJob]:
            return iter(jobs)

        def end(self) -> None:
            raise AssertionError

    background = BackgroundRollouts(Pool())
    background.start("round", [RolloutJob("e", Path(), "none", (0,), None)])
    background.wait_for_all()
    background.stop()
