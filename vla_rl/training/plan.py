"""The plan of a run: which stages follow each other, as a pure function of its configuration.

Every stage is idempotent: it looks at what is in the run folder and does what is missing. That is the whole of
resuming.
"""

from dataclasses import dataclass
from typing import Literal

from vla_rl.core.errors import ConfigError
from vla_rl.core.validation import check_ranges

StageKind = Literal["demonstrate", "supervise", "collect", "practice", "compare", "check", "evaluate"]

# Environment seeds. The evaluation's are the same in every run and never met in training.
_RUNS = range(1000)
_SEEDS_PER_RUN = 1_000_000
_SEEDS_PER_ROUND = 10_000
_EVALUATION_SEED = 1_000_000_000
_ROUNDS_WITH_SEEDS = 49


@dataclass(frozen=True)
class BudgetConfig:
    """What a run may spend: episodes and gradient steps.

    Attributes:
        demonstrations: Number of successful expert episodes for the supervised policy, or the largest number of
            imported ones; 0: all of these.
        supervised_steps: Least number of gradient steps of behavior cloning before the first round.
        steps_per_demonstration: Gradient steps for each of ``demonstrations``, where that is more in all. The cosine
            of the learning rate is stretched as much. If ``demonstrations`` is 0, their number does not count.
        rounds: practice rounds after it.
        episodes_per_round: Episodes of a round: practice and, if there is one, the comparison. Those of a check come
            on top.
        steps_per_round: gradient steps in a round.
        staleness: Number of versions that the practicing policy may be older than the newest one. Collectors and
            evaluations then continue while the learner learns. Version r - 1 - staleness plays round r. This number,
            not the clock, decides which version plays what.
            0: they take turns.
        check_episodes: Episodes that a round's policy plays alone, without exploration, before it may act. If it does
            worse than the previous one, the previous one stays. For that one count as many of the round's practice
            episodes (or all, where they are fewer), which are played without exploration too. All of them are learned
            from. 0: no check.
        compare_episodes: Episodes of a round in which its policy plays with its critic and residual, and as many from
            the same starts without them. What has succeeded more often in all comparisons so far acts; if both are
            equal, critic and residual do. Several tasks take turns, and one verdict holds for all. The next round
            learns from these episodes too. 0: critic and residual always act.
        evaluation_episodes: episodes on held-out seeds behind every success figure.
        evaluation_pictures: Pictures that evaluation episodes keep: of ``every`` step, for a world model, or only those
            from which a chunk was ``planned``. The latter saves most of the time, where the simulator can leave others
            out. Success is the same.
        evaluate_every_round: also evaluate between the first and the last policy.
        checkpoint_every: gradient steps between checkpoints; what a crash costs at most.
    """

    demonstrations: int = 40
    supervised_steps: int = 1500
    steps_per_demonstration: int = 0
    rounds: int = 3
    episodes_per_round: int = 100
    steps_per_round: int = 1500
    staleness: int = 0
    check_episodes: int = 0
    compare_episodes: int = 0
    evaluation_episodes: int = 100
    evaluation_pictures: Literal["every", "planned"] = "every"
    evaluate_every_round: bool = True
    checkpoint_every: int = 500

    def __post_init__(self) -> None:
        check_ranges(
            self,
            "budget",
            supervised_steps=">= 1",
            evaluation_episodes=">= 1",
            checkpoint_every=">= 1",
            steps_per_demonstration=">= 0",
            demonstrations=">= 0",
            rounds=">= 0",
            episodes_per_round=">= 0",
            steps_per_round=">= 0",
            staleness=">= 0",
            check_episodes=">= 0",
            compare_episodes=">= 0",
        )
        if self.rounds > _ROUNDS_WITH_SEEDS:
            raise ConfigError(f"budget.rounds is {self.rounds}; at most {_ROUNDS_WITH_SEEDS} have seeds of their own")
        if max(self.demonstrations, self.real_per_round) >= _SEEDS_PER_ROUND:
            raise ConfigError(
                f"at most {_SEEDS_PER_ROUND - 1} demonstrations and episodes per round have seeds of their own"
            )
        if self.check_episodes and not self.episodes_per_round:
            raise ConfigError(
                "budget.check_episodes compares with practice episodes, and budget.episodes_per_round is 0; set both "
                "or none"
            )
        if self.check_episodes and self.staleness:
            raise ConfigError(
                "budget.check_episodes compares a version with the one before it, which budget.staleness keeps from "
                "playing; set one of them to 0"
            )
        if self.compare_episodes and (self.check_episodes or self.staleness):
            other = "check_episodes" if self.check_episodes else "staleness"
            raise ConfigError(
                f"budget.compare_episodes decides whether a round's critic and residual act; budget.{other} lets "
                "something else decide or play. Set one of them to 0"
            )
        if self.compare_episodes and 2 * self.compare_episodes >= self.episodes_per_round:
            raise ConfigError(
                f"budget.compare_episodes={self.compare_episodes} plays {2 * self.compare_episodes} episodes of a "
                f"round, and budget.episodes_per_round is {self.episodes_per_round}, so none is left to practice. Set "
                "budget.compare_episodes=0, or more episodes"
            )

    def acting_version(self, round_number: int) -> int:
        """Return the policy version that plays a round."""
        return max(0, round_number - 1 - self.staleness)

    @property
    def first_steps(self) -> int:
        """Gradient steps before the first round."""
        return max(self.supervised_steps, self.demonstrations * self.steps_per_demonstration)

    @property
    def collected_per_round(self) -> int:
        """Practice episodes of a round, without the comparison."""
        return self.episodes_per_round - 2 * self.compare_episodes

    @property
    def real_per_round(self) -> int:
        """Episodes of a round: in practice, in the comparison and in the check."""
        return self.episodes_per_round + self.check_episodes


def fitting_comparison(starts: int, episodes_per_round: int) -> int:
    """Return the starts of a preset's comparison, or 0 where they would be more than half of the round."""
    return starts if 4 * starts <= episodes_per_round else 0


@dataclass(frozen=True)
class Stage:
    """One stage of a run, between the gradient steps ``first_step`` and ``end_step``.

    Attributes:
        kind: What is done.
        round: 0 for everything up to the supervised policy, then 1, 2, ...
        policy_version: The version that acts (collect, compare, check, evaluate) or that is made (supervise, practice).
    """

    kind: StageKind
    round: int
    policy_version: int
    first_step: int
    end_step: int

    @property
    def name(self) -> str:
        """For logs and the summary, like ``collect 2``."""
        return f"{self.kind} {self.round}"


def plan(budget: BudgetConfig) -> list[Stage]:
    """Return the stages of a run, in order. With staleness a version is evaluated while the next one is learned."""
    step = budget.first_steps
    stages = [Stage("demonstrate", 0, -1, 0, 0), Stage("supervise", 0, 0, 0, step)]
    later = [Stage("evaluate", 0, 0, step, step)]
    for number in range(1, budget.rounds + 1):
        end_step = step + budget.steps_per_round
        made = [
            Stage("collect", number, budget.acting_version(number), step, step),
            Stage("practice", number, number, step, end_step),
        ]
        if budget.compare_episodes:
            made.append(Stage("compare", number, number, end_step, end_step))
        if budget.check_episodes:
            made.append(Stage("check", number, number, end_step, end_step))
        stages += [*made, *later] if budget.staleness else [*later, *made]
        every = budget.evaluate_every_round or number == budget.rounds
        later = [Stage("evaluate", number, number, end_step, end_step)] if every else []
        step = end_step
    return stages + later


def check_run_seed(seed: int) -> None:
    """Raise ConfigError for a seed of a run that leads outside the runs' own start states."""
    if seed not in _RUNS:
        raise ConfigError(f"seed is {seed}; it must be from 0 to {_RUNS[-1]}. Higher ones lead to held-out starts")


def demonstration_seed(run_seed: int, index: int, attempt: int) -> int:
    """Return the reset seed of a demonstration; further attempts follow when the expert fails."""
    check_run_seed(run_seed)
    return run_seed * _SEEDS_PER_RUN + attempt * _SEEDS_PER_ROUND + index


def practice_seed(run_seed: int, round_number: int, index: int) -> int:
    """Return the reset seed of a practice episode."""
    check_run_seed(run_seed)
    return run_seed * _SEEDS_PER_RUN + _SEEDS_PER_RUN // 2 + round_number * _SEEDS_PER_ROUND + index


def evaluation_seed(index: int) -> int:
    """Return the reset seed of an evaluation episode: equal for all runs, algorithms and policies."""
    return _EVALUATION_SEED + index
