"""Offline fine-tuning: one stage of learning from logged episodes, without robot and simulator. A dry run counts what
each loss would use.

The learners, checkpoints and metrics are those of practice, so that a killed run goes on as exactly as a practice run.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_rl.algorithms.base import Algorithm
from vla_rl.core.errors import UserError
from vla_rl.core.types import Source
from vla_rl.credit import ActorKind
from vla_rl.data.cache import FrameCache
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.statistics import scale_notes
from vla_rl.training.finetune import FinetuneConfig, make_learner
from vla_rl.training.learning import LearningRun
from vla_rl.training.plan import Stage
from vla_rl.training.records import RunRecords

logger = logging.getLogger(__name__)
POLICY_VERSION = 1
"""The version that fine-tuning writes; 0 is the policy that it started from, if there was one."""


class OfflineRun(LearningRun):
    """Learns from the episodes in the run's store, and nothing else. The caller has locked the folder."""

    def __init__(self, folder: RunFolder, config: FinetuneConfig, records: RunRecords) -> None:
        super().__init__(folder, config.checkpoint_every, records, config.retention)
        self.config = config
        self._stage = Stage("practice", 1, POLICY_VERSION, 0, config.steps)

    def run(self) -> dict[str, Any]:
        """Do what is not done yet and return the summary."""
        stage = self._stage
        if self.folder.policy_exists(stage.policy_version):
            self._put_aside_if_extended(stage)
        if not self.folder.policy_exists(stage.policy_version):
            started_s = time.perf_counter()
            try:
                self.cache.refresh()
                self._learn(make_learner(self.folder, self.config, self.cache), stage)
            finally:
                self._note_wall_time(stage.name, time.perf_counter() - started_s)
            self.folder.write_summary({**self.folder.read_summary(), "gradient_steps": stage.end_step})
        return self.folder.read_summary()

    def _put_aside_if_extended(self, stage: Stage) -> None:
        """Make room for the policy of more gradient steps; UserError if there is no checkpoint to go on from."""
        reached = self._progress[0] if self._progress else 0
        made = self.folder.read_summary().get("gradient_steps", reached or stage.end_step)
        if made >= stage.end_step:
            logger.info(
                "the run is finished; to extend it: vla-rl finetune --resume %s steps=%d", self.folder.path, 2 * made
            )
            return
        policy = self.folder.policy(stage.policy_version)
        if reached != made:
            raise UserError(
                f"{self.folder.checkpoints} holds no checkpoint of gradient step {made} to go on from. Start a new run "
                f"from the policy: vla-rl finetune --data {self.folder.episodes} --policy {policy}"
            )
        logger.info("the policy of gradient step %d is %s", made, self.folder.put_aside(stage.policy_version, made))
        self._published -= {(kind, stage.round) for kind in ("operators", "choice")}

    def _before_first_step(self, learner: Algorithm, stage: Stage) -> None:
        """Say what is likely to go wrong, and refuse a policy that would stay as random as it was made."""
        del stage
        rows = count_segments(self.cache, learner)
        for sentence in warn_of_segments(rows, self.cache, learner):
            logger.warning("%s", sentence)
        if not self.folder.policy_exists(0) and not rows[-1].imitated:
            raise UserError(
                "nothing in the data may be imitated, so a new policy would stay random. Add "
                "demonstrations or successes, label the episodes (vla-rl label), or name a policy to start from"
            )

    def _after_last_step(self, learner: Algorithm, stage: Stage) -> None:
        """Log what the learner says of itself: no episode will try the policy before it acts."""
        if logs := learner.assess():
            self._publish_once("choice", stage, logs)


@dataclass(frozen=True, slots=True)
class SegmentCounts:
    """What the losses see of one episode, or of all: numbers of steps, but for ``outcome``.

    Attributes:
        name: the episode's id.
        outcome: success, failure or unknown; of the total, how many of each.
        steps: all of them.
        sources: who decided, by `Source`: policy, human, demo, hold.
        succeeded, failed: steps with a viability label of 1 and of 0.
        efficiency: steps that the efficiency loss sees.
        demonstrations, interventions, rollouts: steps that the actor may draw, by group of the mixture.
        touches: human steps that are too few in a row to be an intervention.
    """

    name: str
    outcome: str
    steps: int
    sources: tuple[int, int, int, int]
    succeeded: int
    failed: int
    efficiency: int
    demonstrations: int
    interventions: int
    rollouts: int
    touches: int

    @property
    def imitated(self) -> int:
        """Steps that the actor may draw."""
        return self.demonstrations + self.interventions + self.rollouts


def count_segments(cache: FrameCache, learner: Algorithm) -> list[SegmentCounts]:
    """What each loss of a learner that has begun its round would see: a row for each episode, then the total."""
    data = learner.data
    credit = data.credit
    groups = learner.actor_groups()
    columns = {
        "succeeded": credit.viability_mask & (credit.viability_label > 0.5),
        "failed": credit.viability_mask & (credit.viability_label <= 0.5),
        "efficiency": credit.efficiency_mask,
        **{name: np.isin(np.arange(cache.total_frames), frames) for name, frames in groups.items()},
        "touches": (cache.source == Source.HUMAN) & ~data.by_people,
    }

    def row(name: str, outcome: str, part: slice) -> SegmentCounts:
        policy, human, demo, hold = np.bincount(cache.source[part], minlength=len(Source)).tolist()
        counts = {key: int(column[part].sum()) for key, column in columns.items()}
        return SegmentCounts(name, outcome, part.stop - part.start, (policy, human, demo, hold), **counts)

    named = {True: "success", False: "failure", None: "unknown"}
    rows = [
        row(episode.episode_id, named[episode.success], slice(episode.start, episode.start + episode.length))
        for episode in cache.episodes
    ]
    outcomes = [entry.outcome for entry in rows]
    total = ", ".join(f"{outcomes.count(name)} {name}" for name in named.values())
    return [*rows, row("total", total, slice(0, cache.total_frames))]


def format_segments(rows: Sequence[SegmentCounts], learner: Algorithm) -> str:
    """Return the counts as a table for people, under the names of the algorithm and of the credit rule."""
    head = ["EPISODE", "OUTCOME", "STEPS", "policy", "human", "demo", "hold", "viability=1", "viability=0"]
    head += ["efficiency", "actor: demo", "interv.", "rollout"]
    lines = [head]
    for entry in rows:
        numbers = [entry.steps, *entry.sources, entry.succeeded, entry.failed, entry.efficiency]
        numbers += [entry.demonstrations, entry.interventions, entry.rollouts]
        lines.append([entry.name, entry.outcome, *map(str, numbers)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    table = [
        "  ".join([*map(str.ljust, line[:2], widths), *map(str.rjust, line[2:], widths[2:])]).rstrip() for line in lines
    ]
    critics = " and ".join(sorted(learner.learns)) or "nothing"
    rule = f"algorithm {learner.name}, critics of {critics}; credit rule {learner.credit.rule!r}; numbers are steps"
    return "\n".join([rule, *table])


def warn_of_segments(rows: Sequence[SegmentCounts], cache: FrameCache, learner: Algorithm) -> list[str]:
    """What is likely to go wrong with this data, a sentence each."""
    *episodes, total = rows
    found = []
    unknown = sum(entry.outcome == "unknown" for entry in episodes)
    if unknown:
        found.append(f"{unknown} of {len(episodes)} episodes have no outcome; the policy's steps in them have no label")
    if "viability" in learner.learns and not total.failed:
        found.append("no labeled failures of a policy: the viability critic will call everything viable")
    if "viability" in learner.learns and not total.succeeded:
        found.append("no labeled successes: the viability critic will call nothing viable")
    if "efficiency" in learner.learns and not total.efficiency:
        found.append("no steps for the efficiency critic: it needs successful episodes")
    if "outcome" in learner.learns and not (total.succeeded and total.failed):
        found.append(
            "all outcomes are alike: the chunk critic cannot rank actions, and the policy acts without selection"
        )
    teaches = learner.config.trains_policy
    if teaches and not total.imitated:
        found.append("nothing that the actor may imitate: training would change nothing")
    elif teaches and total.imitated == total.demonstrations and learner.name != "sft":
        found.append("imitated are demonstrations only, which every algorithm weighs alike")
    shown = set(cache.episode_index[learner.data.of_kind(ActorKind.DEMONSTRATION)].tolist())
    spoilt = sum(entry.outcome == "failure" for number, entry in enumerate(episodes) if number in shown)
    if spoilt:
        found.append(f"{spoilt} demonstrations are labeled failures and are imitated all the same: leave them out")
    if total.touches:
        found.append(
            f"{total.touches} human steps are too few in a row to be an intervention (credit.min_human_steps) and "
            "count as the policy's"
        )
    found += scale_notes(cache, learner.model.statistics)
    environments = sorted({episode.env_id for episode in cache.episodes})
    if len(environments) > 1:
        found.append(f"episodes of several environments: {', '.join(environments)}")
    return found
