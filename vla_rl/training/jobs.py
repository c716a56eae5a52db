"""Which episodes a stage of a run plays: their names, tasks, seeds and policies. Nothing here depends on time, so what
is missing after a crash is known from the names alone.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from vla_rl.core.errors import StoreError
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.training import plan
from vla_rl.training.plan import BudgetConfig, Stage
from vla_rl.training.workers import RolloutJob

DEMONSTRATION_ATTEMPTS = 20  # a clumsy operator succeeds half of the time
_DEMONSTRATION = "demo-"  # how the names of demonstrations begin


class StageJobs:
    """The jobs of the stages of one run.

    Episodes take turns among the tasks, which share their seeds. In one scene every start is then seen under every
    sentence, so that no start gives the goal away.
    """

    def __init__(
        self, folder: RunFolder, budget: BudgetConfig, seed: int, tasks: Sequence[str], takeover: bool
    ) -> None:
        self._folder, self._budget, self._seed = folder, budget, seed
        self._tasks, self._takeover = tasks, takeover

    def demonstrations(self) -> list[RolloutJob]:
        """Return the expert's jobs; one that fails is tried again with the next seed."""

        def seeds(start: int) -> tuple[int, ...]:
            attempts = range(DEMONSTRATION_ATTEMPTS)
            return tuple(plan.demonstration_seed(self._seed, start, again) for again in attempts)

        return self._jobs(_DEMONSTRATION, self._budget.demonstrations, seeds, policy=None)

    def practice(self, stage: Stage) -> list[RolloutJob]:
        """Those that a round collects. The first, as many as a check has, are played as the check is: they judge the
        policy that it is compared with.
        """
        version, checked = stage.policy_version, self._budget.check_episodes
        jobs = self._jobs(
            practice_prefix(stage.round),
            self._budget.collected_per_round,
            lambda start: (plan.practice_seed(self._seed, stage.round, start),),
            self._folder.policy(version),
        )
        return [
            replace(job, takeover=self._takeover, collects=index >= checked, version=version)
            for index, job in enumerate(jobs)
        ]

    def check(self, stage: Stage) -> list[RolloutJob]:
        """Those in which a round's candidate shows whether it may act."""
        return self._after_practice("check", self._budget.check_episodes, stage, self._folder.candidate)

    def comparison(self, stage: Stage) -> tuple[list[RolloutJob], list[RolloutJob]]:
        """Those in which a round's policy plays the same starts with and without its critic and residual."""
        whole, plain = (
            self._after_practice(name, self._budget.compare_episodes, stage, folder)
            for name, folder in (("whole", self._folder.candidate), ("plain", self._folder.plain))
        )
        return whole, plain

    def evaluation(self, stage: Stage) -> list[RolloutJob]:
        """Those of a policy version on the held-out seeds."""
        version, folder, episodes = stage.policy_version, self._folder, self._budget.evaluation_episodes
        jobs = held_out_jobs(f"v{version:04d}", self._tasks, folder.evaluation, folder.policy(version), episodes)
        return [replace(job, pictures=self._budget.evaluation_pictures == "every") for job in jobs]

    def _after_practice(
        self, name: str, count: int, stage: Stage, folder_of: Callable[[int], Path]
    ) -> list[RolloutJob]:
        """Return the jobs of a policy that a round has made, from the starts after those of its practice."""
        first = self._budget.collected_per_round
        return self._jobs(
            f"{name}{stage.round:03d}-",
            count,
            lambda start: (plan.practice_seed(self._seed, stage.round, first + start),),
            folder_of(stage.policy_version),
        )

    def _jobs(
        self, prefix: str, count: int, seeds: Callable[[int], tuple[int, ...]], policy: Path | None
    ) -> list[RolloutJob]:
        turns = _turns(self._tasks, count)
        return [
            RolloutJob(f"{prefix}{index:05d}", self._folder.episodes, task, seeds(start), policy)
            for index, (task, start) in enumerate(turns)
        ]


def held_out_jobs(
    prefix: str, tasks: Sequence[str], store: Path, policy: Path, episodes: int, collects: bool = False
) -> list[RolloutJob]:
    """Return the first episodes of a policy on the held-out seeds, each under every one of several tasks."""
    return [
        RolloutJob(f"{prefix}-{index:06d}", store, task, (plan.evaluation_seed(start),), policy, collects=collects)
        for index, (task, start) in enumerate(_turns(tasks, episodes))
    ]


def _turns(tasks: Sequence[str], count: int) -> list[tuple[str, int]]:
    """Return the task of each episode, and the number of its start."""
    return [(tasks[index % len(tasks)], index // len(tasks)) for index in range(count)]


def is_stored(job: RolloutJob, store: EpisodeStore) -> bool:
    """Return whether a store holds the episode of a job. Demonstrations may come from elsewhere, with any seed.

    Raises:
        StoreError: if the episode of that name is of another task or seed.
    """
    if job.episode_id not in store:
        return False
    header = store.read_header(job.episode_id)
    if job.policy is not None and (header.env_id, header.seed) != (job.task, job.seeds[0]):
        raise StoreError(
            f"{store.path}: episode {job.episode_id!r} is of {header.env_id} and seed {header.seed}; expected is "
            f"{job.task} and seed {job.seeds[0]}. Move it away, or use another store"
        )
    return True


def is_demonstration(episode_id: str) -> bool:
    """Return whether an episode of a run is one of its demonstrations, by its name."""
    return episode_id.startswith(_DEMONSTRATION)


def practice_prefix(round_number: int) -> str:
    """Return how the names of a round's practice episodes begin."""
    return f"round{round_number:03d}-"


def practice_round(episode_id: str) -> int:
    """Return the round that an episode was practiced in, by its name; 0: it is no practice episode."""
    found = re.fullmatch(r"round(\d+)-\d+", episode_id)
    return int(found[1]) if found else 0
