"""The loop: demonstrations -> supervised policy -> rounds of practice, each one making the next policy better.

`PracticeRun.run` walks through the plan. Collector and learner exchange only episodes (the store) and policy versions
(a folder). Every stage looks for its results and does what is missing.
"""

import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.algorithms.base import Algorithm
from vla_rl.core.cache_keys import cache_key
from vla_rl.core.errors import CheckpointError, StoreError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.progress import track
from vla_rl.credit import CreditConfig, assign_batch
from vla_rl.critics.calibration import calibration_record
from vla_rl.data.run_folder import RunFolder, is_policy
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.checkpoint import save_policy
from vla_rl.policies.folders import load_model
from vla_rl.training import plan
from vla_rl.training.algorithms import adopt_saved
from vla_rl.training.check import Check, acting_policy, success_of, whole_acts
from vla_rl.training.config import RunConfig
from vla_rl.training.evaluation import acting_settings, evaluation_entry, note_evaluations
from vla_rl.training.jobs import StageJobs, is_demonstration, is_stored, practice_prefix
from vla_rl.training.learning import LearningRun
from vla_rl.training.plan import Stage
from vla_rl.training.practice import import_demonstrations, practice_learner, supervised_learner
from vla_rl.training.records import RunRecords
from vla_rl.training.round_labels import RoundLabels
from vla_rl.training.workers import BackgroundRollouts, RolloutJob, Rollouts

# The steps of an episode share its outcome: a few of them say as much of calibration as all.
CALIBRATE_EVERY_STEPS = 4
logger = logging.getLogger(__name__)


class PracticeRun(LearningRun):
    """Carries out the plan of one run folder, which the caller has locked. A pool runs the episodes."""

    def __init__(
        self, folder: RunFolder, config: RunConfig, spec: PolicySpec, pool: Rollouts, records: RunRecords
    ) -> None:
        budget = config.budget
        super().__init__(folder, budget.checkpoint_every, records, config.retention)
        self.config, self.budget, self.spec, self.pool = config, budget, spec, pool
        self._jobs = StageJobs(folder, budget, config.seed, config.task.envs, config.takeover.enabled)
        self._acting = acting_settings(config)
        self._stages, self._background = plan.plan(budget), BackgroundRollouts(pool)
        self.evaluation_store = EpisodeStore(folder.evaluation)
        self._ahead = EpisodeStore(folder.ahead) if budget.staleness else None
        self._labels = RoundLabels.of(folder, self.store)
        self._practiced: Algorithm | None = None
        self._has_worked = False

    def run(self) -> dict[str, Any]:
        """Do every stage that is not done yet and return the summary."""
        try:
            for number, stage in enumerate(self._stages, start=1):
                self._do(stage, f"[{number}/{len(self._stages)}] {stage.name}")
        finally:
            self._background.stop()
        if not self._has_worked:
            logger.info(
                "the run is finished; to extend it: vla-rl train --resume %s budget.rounds=%d",
                *(self.folder.path, self.budget.rounds + 1),
            )
        return self.folder.read_summary()

    def _do(self, stage: Stage, shown: str) -> None:
        started_s, worked, self._result = time.perf_counter(), True, ""
        try:
            worked = getattr(self, f"_{stage.kind}")(stage)
        finally:  # an attempt that broke off has cost its time as well
            self._has_worked |= worked
            if worked:
                self._note_wall_time(stage.name, time.perf_counter() - started_s)
        result = f"{self._result}{time.perf_counter() - started_s:.0f} s" if worked else "done before"
        logger.info("%s: %s", shown, result)

    def _demonstrate(self, stage: Stage) -> bool:
        if self.config.task.demonstrations is not None:
            worked = import_demonstrations(self.config, self.folder, self.store)
            self._note_episodes(self._demonstrations(), stage)
            return worked
        jobs = self._jobs.demonstrations()
        return self._gather(jobs, stage) if jobs else False

    def _demonstrations(self) -> list[str]:
        return [name for name in self.store.ids() if is_demonstration(name)]

    def _collect(self, stage: Stage) -> bool:
        if self._was_learned_from(stage):
            return False
        jobs = self._jobs.practice(stage)
        self._note_player(stage, jobs, self.store)
        worked = self._background.wait(stage)
        for job in jobs:
            if self._ahead is not None and job.episode_id in self._ahead:
                self._ahead.move(job.episode_id, self.store)
                worked = True
        return self._gather(jobs, stage) or worked

    def _was_learned_from(self, stage: Stage) -> bool:
        """Return whether a round needs no episodes (any more: they may have been retired since)."""
        return self._was_made(stage.round) or not self.budget.episodes_per_round

    def _was_made(self, version: int) -> bool:
        """Return whether a policy version was made, also if it is gone since. The episodes and state of later rounds
        cannot make it again.
        """
        return any(made >= version for made in self.folder.policy_versions())

    def _start_in_background(self, learned: Stage) -> None:
        """While a round is learned from: the rounds that may be played already, then the evaluations of older versions.

        Episodes of later rounds lie in a store of their own until their round begins. So the data of a round do not
        depend on their speed.
        """
        if self._ahead is None:
            return
        for stage in self._stages:
            ahead = stage.round - learned.round
            if stage.kind == "collect" and 0 < ahead <= self.budget.staleness and not self._was_learned_from(stage):
                jobs = [replace(job, store=self.folder.ahead) for job in self._jobs.practice(stage)]
                self._note_player(stage, jobs, self._ahead)
                have = (self.store, self._ahead)
                self._background.start(
                    stage, [job for job in jobs if not any(job.episode_id in store for store in have)]
                )
        for stage in self._stages:
            if stage.kind == "evaluate" and stage.policy_version < learned.policy_version:
                jobs = self._jobs.evaluation(stage)
                self._note_player(stage, jobs, self.evaluation_store)
                self._background.start(stage, [job for job in jobs if not is_stored(job, self.evaluation_store)])

    def _gather(self, jobs: Sequence[RolloutJob], stage: Stage) -> bool:
        """Add the stage's episodes to the store and say how they went."""
        worked, names = self._rollouts(jobs, self.store, stage), [job.episode_id for job in jobs]
        if stage.kind == "collect":  # with those in which the policy has reset the world
            names = [name for name in self.store.ids() if name.startswith(practice_prefix(stage.round))]
        if self._labels is not None and stage.kind == "collect":
            self._publish_once("outcomes", stage, self._labels.label(stage.round, names))
        self._note_episodes(names, stage)
        return worked

    def _note_episodes(self, names: Sequence[str], stage: Stage) -> None:
        episodes = [self.store.read_header(name) for name in names]
        outcome = {
            "episodes": len(episodes),
            "successes": sum(episode.success is True for episode in episodes),
            "takeovers": sum(episode.human_steps > 0 for episode in episodes),
            "rescued": sum(episode.human_steps > 0 and episode.success is True for episode in episodes),
            "mean_length": float(np.mean([episode.length for episode in episodes])),
        }
        self._publish_once("collect", stage, outcome)
        self._result = f"{outcome['successes']} of {len(episodes)} succeed, {outcome['takeovers']} taken over, "

    def _evaluate(self, stage: Stage) -> bool:
        jobs = self._jobs.evaluation(stage)
        self._note_player(stage, jobs, self.evaluation_store)
        worked = self._background.wait(stage)
        worked |= self._rollouts(jobs, self.evaluation_store, stage)
        self._note_evaluation(stage, [job.episode_id for job in jobs])
        return worked

    def _supervise(self, stage: Stage) -> bool:
        if self._was_made(stage.policy_version):
            return False
        self.cache.refresh()
        self._learn(supervised_learner(self.config, self.spec, self.cache), stage)
        return True

    def _practice(self, stage: Stage) -> bool:
        if self._was_made(stage.policy_version) or is_policy(self._policy_of(stage)):
            return False
        self.cache.refresh()
        self._start_in_background(stage)
        if self._practiced is None:
            self._check_progress(stage)
            self._practiced = practice_learner(self.config, self.spec, self.cache, self.folder.policy(0))
            if self._progress and self._progress[0] > self.budget.first_steps:
                self._practiced.load_state_dict(self._progress[1])
        self._learn(self._practiced, stage)
        return True

    def _compare(self, stage: Stage) -> bool:
        """Play the round's policy with and without its critic and residual, from the same starts. What has done better
        in all comparisons so far becomes the acting version; the whole one, if they do alike.
        """
        version = stage.policy_version
        if self._was_made(version):
            return False
        candidate, plain = self.folder.candidate(version), self.folder.plain(version)
        model, meta = load_model(candidate)
        save_policy(plain, model, None, meta)
        whole_jobs, plain_jobs = self._jobs.comparison(stage)
        jobs = [*whole_jobs, *plain_jobs]
        self._note_player(stage, jobs, self.store)
        self._rollouts(jobs, self.store, stage)
        whole, without = (self._unaided([job.episode_id for job in each]) for each in (whole_jobs, plain_jobs))
        summary = self.folder.read_summary()
        noted = {**summary.get("compared", {}), str(version): {"whole": whole, "plain": without}}
        acts = noted[str(version)]["whole_acts"] = whole_acts(noted, version)
        self.folder.write_summary({**summary, "compared": noted})
        lengths = [self.store.read_header(job.episode_id).length for job in jobs]
        success, plain_success = whole[0] / whole[1], without[0] / without[1]
        logged = {"success": success, "plain_success": plain_success, "whole_acts": float(acts)}
        self._publish_once("compare", stage, logged | {"episodes": len(jobs), "mean_length": float(np.mean(lengths))})
        if acts:
            shutil.rmtree(plain)
        (candidate if acts else plain).rename(self.folder.policy(version))
        verdict = "which stay" if acts else "which stay out"
        self._result = f"{success:.0%} succeed, {plain_success:.0%} without critic and residual, {verdict}, "
        return True

    def _check(self, stage: Stage) -> bool:
        """Play the round's policy. It becomes the acting version if it does no worse than the previous one; otherwise
        the previous one stays.
        """
        version = stage.policy_version
        if self._was_made(version):
            return False
        candidate, jobs = self.folder.candidate(version), self._jobs.check(stage)
        self._note_player(stage, jobs, self.store)
        self._rollouts(jobs, self.store, stage)
        check = Check(
            acting=acting_policy(self._checks(), version - 1),
            practice=self._unaided([job.episode_id for job in self._jobs.practice(stage) if not job.collects]),
            check=self._unaided([job.episode_id for job in jobs]),
        )
        checks = {**self._checks(), version: check}
        before = success_of(checks, check.acting)
        passes = check.check[0] >= before * check.check[1]
        checks[version] = check = replace(check, passes=passes)
        noted = {str(number): asdict(each) for number, each in checks.items()}
        self.folder.write_summary({**self.folder.read_summary(), "checks": noted})
        success = check.check[0] / check.check[1]
        logged = {"success": success, "success_before": before, "passes": float(passes)}
        self._publish_once("check", stage, logged)
        if passes:
            candidate.rename(self.folder.policy(version))
        else:
            self.folder.keep_policy(version, self.folder.policy(check.acting))
        verdict = "" if passes else ", and the policy before stays"
        self._result = f"{success:.0%} succeed, {before:.0%} did before{verdict}, "
        return True

    def _checks(self) -> dict[int, Check]:
        """Return the checks so far, by the version that was checked."""
        found = self.folder.read_summary().get("checks", {})
        return {
            int(version): Check(each["acting"], tuple(each["practice"]), tuple(each["check"]), each["passes"])
            for version, each in found.items()
        }

    def _unaided(self, names: Sequence[str]) -> tuple[int, int]:
        """Return the number of successes without a person, and of episodes; a rescue is no success of the policy."""
        headers = [self.store.read_header(name) for name in names if name in self.store]  # some may be retired
        return sum(header.success is True and not header.human_steps for header in headers), len(headers)

    def _policy_of(self, stage: Stage) -> Path:
        if stage.kind == "practice" and (self.budget.check_episodes or self.budget.compare_episodes):
            return self.folder.candidate(stage.policy_version)
        return super()._policy_of(stage)

    def _check_progress(self, stage: Stage) -> None:
        """Refuse to practice from an older state than the one in which the round before ended."""
        reached = self._progress[0] if self._progress else 0
        if stage.first_step > self.budget.first_steps and reached < stage.first_step:
            raise CheckpointError(
                f"{stage.name} goes on from gradient step {stage.first_step}, and the newest readable checkpoint in "
                f"{self.folder.checkpoints} is of step {reached}. Remove the policies/version_* after it to learn anew"
            )

    def _before_first_step(self, learner: Algorithm, stage: Stage) -> None:
        self._calibrate(learner, stage)
        newest = stage.policy_version - 1
        compared = self.folder.read_summary().get("compared", {}).get(str(newest), {"whole_acts": True})
        if acting_policy(self._checks(), newest) != newest or not compared["whole_acts"]:
            adopt_saved(learner, self.folder.policy(newest))

    def _calibrate(self, learner: Algorithm, stage: Stage) -> None:
        """How right the critics of the round before are about this round's episodes, before they are trained on them.

        Counted are steps of the policy. A takeover, however short at the end, counts as a failure of what came before
        it, whatever the rule that the critics are trained with. Where the critics predict a discounted value, a
        success counts what it is worth to them.
        """
        name = practice_prefix(stage.round)
        new = [episode for episode in self.cache.episodes if episode.episode_id.startswith(name)]
        if stage.round < 2 or not new or ("calibrate", stage.round) in self._published:
            return
        frames = np.concatenate([np.arange(episode.start, episode.start + episode.length) for episode in new])
        credit = assign_batch(
            self.cache.source[frames],
            [episode.length for episode in new],
            [episode.success for episode in new],
            [episode.origin for episode in new],
            CreditConfig(rule="takeover_is_failure", endings_are_takeovers=True),
        )
        chosen = np.flatnonzero(credit.viability_mask)[::CALIBRATE_EVERY_STEPS]
        predicted = learner.trace(self.cache, frames[chosen]) if len(chosen) else {}
        value = predicted.get("viability", predicted.get("discounted_value"))
        if value is not None:
            discount = 1.0 if "viability" in predicted else learner.discount  # a chance of success has none
            ticks_to_end = np.concatenate([np.arange(episode.length)[::-1] for episode in new])[chosen]
            record = calibration_record(value, credit.viability_label[chosen] * discount**ticks_to_end)
            self._publish_once("calibrate", stage, {**record, "discount": discount})

    def _rollouts(self, jobs: Sequence[RolloutJob], store: EpisodeStore, stage: Stage) -> bool:
        """Run the jobs whose episodes are missing; True if there were any."""
        missing = [job for job in jobs if not is_stored(job, store)]
        if not missing:
            return False
        self._background.wait_for_all()  # there is one pool
        for _ in track(self.pool.run(missing), stage.name, "episode", len(missing)):
            pass
        return True

    def _note_player(self, stage: Stage, jobs: Sequence[RolloutJob], store: EpisodeStore) -> None:
        """Note the key of what plays a stage's episodes: the content of the policy, and the settings.

        Raises:
            StoreError: if the store holds episodes of the stage under another key: a policy that has been learned anew
                since, or settings that were edited.
        """
        if not jobs or jobs[0].policy is None or not is_policy(jobs[0].policy):
            return  # a policy that has gone since plays no more
        key = cache_key({"policy": jobs[0].policy, "acting": self._acting})
        summary = self.folder.read_summary()
        noted = summary.setdefault("played", {})
        played = [job.episode_id for job in jobs if job.episode_id in store]
        if played and noted.get(stage.name, key) != key:
            files = " ".join(sorted({f"{store.episodes_dir / name.rpartition('-')[0]}-*" for name in played}))
            raise StoreError(
                f"{stage.name}: another policy or other settings played {len(played)} of its episodes; move them away "
                f"to play them anew: {files}"
            )
        if noted.get(stage.name) != key:
            noted[stage.name] = key
            self.folder.write_summary(summary)

    def _note_evaluation(self, stage: Stage, episode_ids: Sequence[str]) -> None:
        """Record the success of a policy version, once."""
        episodes = [self.evaluation_store.read_header(episode_id) for episode_id in episode_ids]
        outcome = evaluation_entry(self.evaluation_store, episodes)
        result = {
            "round": stage.round,
            "label": "supervised" if stage.round == 0 else f"round {stage.round}",
            "policy_version": stage.policy_version,
            "gradient_steps": stage.end_step,
            "real_episodes": len(self._demonstrations()) + stage.round * self.budget.real_per_round,
            **outcome,
        }
        if len(self.config.task.envs) > 1:
            result["tasks"] = {
                task: {
                    "successes": sum(episode.success is True for episode in episodes if episode.env_id == task),
                    "episodes": sum(episode.env_id == task for episode in episodes),
                }
                for task in self.config.task.envs
            }
        note_evaluations(self.folder, [result])
        successes = outcome["successes"]
        self._result = f"{successes} of {len(episodes)} succeed, "
        if ("evaluate", stage.round) not in self._published:
            shown = {each.success: each.episode_id for each in reversed(episodes)}  # the first of each outcome
            for name in (shown[succeeded] for succeeded in (True, False) if succeeded in shown):
                episode = self.evaluation_store.read(name)
                for subscriber in self._subscribers:
                    subscriber.on_episode(episode)
        self._publish_once("evaluate", stage, {"success": successes / len(episodes), "episodes": len(episodes)})
