"""Which episodes a stage of a run plays: their names, tasks, seeds and policies. Nothing here depends on time, so what
is missing after a crash is known from the names alone.
"""

import re
from collections.abc import Sequence

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
        return [
            RolloutJob(
                f"{_DEMONSTRATION}{index:05d}",
                self._folder.episodes,
                self._task(index),
                tuple(
                    plan.demonstration_seed(self._seed, self._start(index), again)
                    for again in range(DEMONSTRATION_ATTEMPTS)
                ),
                policy=None,
            )
            for index in range(self._budget.demonstrations)
        ]

    def practice(self, stage: Stage) -> list[RolloutJob]:
        """Those that a round collects. The first, as many as a check has, are played as the check is: they judge the
        policy that it is compared with.
        """
        policy = self._folder.policy(stage.policy_version)
        return [
            RolloutJob(
                f"{practice_prefix(stage.round)}{index:05d}",
                self._folder.episodes,
                self._task(index),
                (plan.practice_seed(self._seed, stage.round, self._start(index)),),
                policy,
                self._takeover,
                collects=index >= self._budget.check_episodes,
                version=stage.policy_version,
            )
            for index in range(self._budget.episodes_per_round)
        ]

    def check(self, stage: Stage) -> list[RolloutJob]:
        """Those in which a round's candidate shows whether it may act."""
        candidate, first = self._folder.candidate(stage.policy_version), self._budget.episodes_per_round
        return [
            RolloutJob(
                f"check{stage.round:03d}-{index:05d}",
                self._folder.episodes,
                self._task(index),
                (plan.practice_seed(self._seed, stage.round, first + self._start(index)),),
                candidate,
            )
            for index in range(self._budget.check_episodes)
        ]

    def evaluation(self, stage: Stage) -> list[RolloutJob]:
        """Those of a policy version on the held-out seeds."""
        version = stage.policy_version
        return [
            RolloutJob(
                f"v{version:04d}-{index:06d}",
                self._folder.evaluation,
                self._task(index),
                (plan.evaluation_seed(self._start(index)),),
                self._folder.policy(version),
                pictures=self._budget.evaluation_pictures == "every",
            )
            for index in range(self._budget.evaluation_episodes)
        ]

    def _task(self, index: int) -> str:
        return self._tasks[index % len(self._tasks)]

    def _start(self, index: int) -> int:
        return index // len(self._tasks)


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
