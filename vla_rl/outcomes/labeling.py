"""Labels of a store's episodes, by a person where it matters and by a detector elsewhere.

A label is an edit, so the store keeps the recording and every label with its author. A question is an episode whose
outcome is unknown: `vla-rl label STORE` asks it, whenever the person has time. Until then nothing learns from its
outcome. The detector labels what no person has labeled. A newer detector renews the labels of an earlier one, and never
a person's label. A random share of what it is sure of is asked as well, for an honest estimate of its errors.
"""

import functools
import hashlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vla_rl.core.errors import ConfigError, StoreError, UserError
from vla_rl.core.progress import track
from vla_rl.core.types import Origin
from vla_rl.core.validation import check_ranges
from vla_rl.data.store import EpisodeStore
from vla_rl.outcomes.detector import Judgment, OutcomeDetector, window_at
from vla_rl.outcomes.ensemble import PolicyFeatures, SuccessDetector, TooFewLabels, Track, outcome_of

logger = logging.getLogger(__name__)
DETECTOR = "detector "
"""What the author of a detector's label begins with."""
HIDDEN = "hidden"
"""Author of the edit that hides a recorded outcome from the learner, in simulation."""
_AUDIT = f"{DETECTOR}audit"  # author of questions about what a detector was sure of
_LEAST_AUDITED = 5  # successes of a round
_RECENT = 20  # audited successes by which the detector is trusted


@dataclass(frozen=True)
class LabelConfig:
    """How many questions a person is asked.

    Attributes:
        answers: Number of first answers, before the first detector; where no round is labeled by hand.
        audit_share: Share of the episodes that are asked although the detector is sure, with at least five successes
            of a round. 0: no audit.
        by_hand_episodes: Number of practice episodes that are all asked, in whole rounds, before the first detector
            judges. 0: only the ``answers``.
        simulated_person: In simulation: hide the recorded outcomes, and answer every question with them at once.
        wrong_answers: Share of the failures that the simulated person calls successes.
        most_asked: Share of a round's episodes that the detector may be unsure of. Above it, practice stops: the scene
            has changed, or the policy does what no label has shown.
        most_wrong: Share of the last 20 audited successes that may be failures. Above it, from two on, practice stops:
            the policy fools the detector.
    """

    answers: int = 40
    audit_share: float = 0.05
    by_hand_episodes: int = 100
    simulated_person: bool = False
    wrong_answers: float = 0.0
    most_asked: float = 0.5
    most_wrong: float = 0.1

    def __post_init__(self) -> None:
        shares = dict.fromkeys(("audit_share", "wrong_answers", "most_asked", "most_wrong"), "[0, 1]")
        check_ranges(self, "outcomes", answers=">= 4", by_hand_episodes=">= 0", **shares)
        if self.wrong_answers and not self.simulated_person:
            raise ConfigError("wrong_answers is of a simulated person. Set simulated_person=true")


@dataclass(frozen=True)
class Labeled:
    """What a pass over a store did.

    Attributes:
        judged: Episodes whose outcome the detector gave or changed.
        asked: Episodes that became questions.
        unsure: Those of the names of which the detector is unsure.
        detector: Detector; None: there are too few answers yet.
    """

    judged: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()
    detector: SuccessDetector | None = None


class FooledError(UserError):
    """The detector is no longer to be trusted, so practice stops until a person has looked."""


class Labeling:
    """Labels the episodes of one store.

    Args:
        store: Store of the episodes.
        policy: Fixed policy whose features the detector reads, or its folder, loaded on first use.
        config: How many questions are asked.
        answer: Answers a question at once, for a simulated person. None: questions wait.
    """

    def __init__(
        self,
        store: EpisodeStore,
        policy: Path | PolicyFeatures,
        config: LabelConfig | None = None,
        answer: Callable[[str], bool | None] | None = None,
    ) -> None:
        self.store, self.config = store, config or LabelConfig()
        self._answer, self._policy = answer, policy
        self._tracks: dict[str, Track] = {}

    def ask(self, names: Sequence[str], why: str) -> None:
        """Make episodes questions, and answer them if the person is simulated. What a person has answered stays."""
        for name in names:
            author = self.labeler(name)
            if is_person(author):
                continue
            if self.store.read_header(name).success is not None and not self.store.label(name, None, why, author):
                continue
            if self._answer is not None:
                self.store.label(name, self._answer(name), "simulated person")

    def first_questions(self, names: Sequence[str]) -> list[str]:
        """Return the episodes to ask first: evenly over the names, as many as are missing of the first answers."""
        own = (name for name in self.store.ids() if self.store.read_header(name).origin is not Origin.DEMO)
        by_person = sum(map(self.is_answered, own))
        asked = {*open_questions(self.store)}
        waiting = [name for name in names if name in asked]
        count = min(max(self.config.answers - by_person, 0), len(waiting))
        return [waiting[index] for index in np.linspace(0, len(waiting) - 1, count).round().astype(int)]

    def is_answered(self, name: str) -> bool:
        """Return whether a person gave the outcome of an episode, or was not sure of it."""
        return is_person(self.labeler(name))

    def labeler(self, name: str) -> str:
        """Return who gave the outcome of an episode; empty: it is as recorded."""
        return self.store.edit_log(name).labeler

    def judge_rest(self, names: Sequence[str]) -> Labeled:
        """Fit a detector on all answers, label what no person has labeled, and ask where it is unsure.

        Args:
            names: Episodes to label. Earlier labels of a detector among all episodes are renewed as well.
        """
        every = self.store.ids()
        authors = {name: self.labeler(name) for name in every}
        headers = {name: self.store.read_header(name) for name in every}
        known = [
            name
            for name in every
            if not authors[name].startswith((DETECTOR, HIDDEN)) and self._outcome(name) is not None
        ]
        try:
            detector = SuccessDetector.fit_tracks(list(self._fitting(known, names)), self.features, seed=0)
        except TooFewLabels:
            return Labeled()
        open_names = {*names, *(name for name in every if authors[name].startswith(DETECTOR))}
        open_names = {
            name
            for name in open_names
            if not (name in known or is_person(authors[name]) or self.labeler(name) == _AUDIT)
        }
        judged, asked = [], []
        for name in sorted(open_names):
            judgment, before = detector.judge_track(self._track(name)), headers[name].success
            by, author = DETECTOR + detector.name, authors[name]
            is_new = before is not judgment.success or not author.startswith(DETECTOR)
            if is_new and not self.store.label(name, judgment.success, by, author):
                continue  # a person has answered since
            if judgment.success is None:
                asked.append(name)
            elif is_new:
                judged.append(name)
        audits = self._audits([name for name in judged if name in names])
        self.ask(asked, DETECTOR + detector.name)
        self.ask(audits, _AUDIT)
        unsure = tuple(name for name in asked if name in names)  # others may wait for an answer since earlier rounds
        return Labeled(tuple(judged), (*asked, *audits), unsure, detector)

    def _audits(self, judged: Sequence[str]) -> list[str]:
        """Return a random share of the episodes, and at least a few of the successes among them."""
        if not self.config.audit_share:
            return []
        successes = [name for name in judged if self.store.read_header(name).success]
        least = sorted(successes, key=_random)[:_LEAST_AUDITED]
        return [name for name in judged if _random(name) < self.config.audit_share or name in least]

    def audit(self) -> dict[str, float]:
        """Return how often the detector was wrong where an audit asked a person.

        Returns:
            Number ``audited``. Shares ``false_success`` and ``false_failure``, of the audited successes and failures.
        """
        pairs = self._audited()
        wrong = {said: [answer is not said for found, answer in pairs if found is said] for said in (True, False)}
        shares = {said: float(np.mean(errors)) if errors else 0.0 for said, errors in wrong.items()}
        return {"audited": len(pairs), "false_success": shares[True], "false_failure": shares[False]}

    def _audited(self, since: str = "") -> list[tuple[bool, bool]]:
        """Return judgments after a time that were audited, with their answers, the newest answer last."""
        found = [each for name in self.store.ids() if (each := _audited(self.store, name)) is not None]
        found.sort(key=lambda each: each.answered)
        return [(each.judgment, each.answer) for each in found if each.judged > since]

    def check(self, labeled: Labeled, episodes: int, since: str = "") -> None:
        """Stop practice on a detector that is no longer to be trusted.

        Args:
            labeled: What `judge_rest` has done.
            episodes: Number of episodes that it was given.
            since: When practice was stopped before, as `vla_rl.data.edits.now` gives it. Audits of judgments before it
                do not count: the answers to the questions of that stop have made another detector.

        Raises:
            FooledError: If it asks too often, or was wrong too often where a person looked. Then, the successes that it
                has just given are questions.
        """
        unsure, audited = len(labeled.unsure), self._audited(since)
        wrong = [not answer for said, answer in audited if said][-_RECENT:]
        if unsure > self.config.most_asked * episodes:
            raise FooledError(
                f"the detector asks about {unsure} of {episodes} episodes, more than outcomes.most_asked="
                f"{self.config.most_asked:g}. Look at the scene, answer the questions, then resume"
            )
        if sum(wrong) >= 2 and sum(wrong) > self.config.most_wrong * len(wrong):
            self.ask([name for name in labeled.judged if self.store.read_header(name).success], _AUDIT)
            raise FooledError(
                f"{sum(wrong)} of the last {len(wrong)} audited successes were failures, more than outcomes.most_wrong="
                f"{self.config.most_wrong:g}. All successes are questions again. Answer them, then resume"
            )

    @functools.cached_property
    def features(self) -> PolicyFeatures:
        """Policy whose features are read. Raises UserError if it gives none."""
        return PolicyFeatures(self._policy) if isinstance(self._policy, Path) else self._policy

    def _track(self, name: str) -> Track:
        if name not in self._tracks:
            self._tracks[name] = self.features.track(self.store.read(name))
        return Track(self._tracks[name].features, self._outcome(name))  # a label may have come since

    def _outcome(self, name: str) -> bool | None:
        """Return the outcome of an episode as `outcome_of`; unknown if a person was not sure of it."""
        header = self.store.read_header(name)
        return None if header.success is None and self.is_answered(name) else outcome_of(header.success, header.origin)

    def _fitting(self, known: Sequence[str], named: Collection[str]) -> Iterator[Track]:
        """Yield the tracks of episodes. One that does not fit the policy is left out, unless it was named."""
        for name in known:
            try:
                yield self._track(name)
            except StoreError:
                raise
            except UserError as error:
                if name in named:
                    raise
                logger.warning("the detector does not learn from episode %r: %s", name, error)


def open_questions(store: EpisodeStore) -> list[str]:
    """Return the episodes whose outcome is unknown, but for those that a person was not sure of.

    A demonstration without outcome is a success.
    """
    headers = ((name, store.read_header(name)) for name in store.ids())
    unknown = (name for name, header in headers if outcome_of(header.success, header.origin) is None)
    return [name for name in unknown if not is_person(store.edit_log(name).labeler)]


def judge_all(store: EpisodeStore, detector: OutcomeDetector) -> Mapping[str, Judgment]:
    """Label every episode without an outcome by a detector; those that it is unsure of stay questions."""
    judgments = {}
    for name in track(open_questions(store), "judging", "episode"):
        author = store.edit_log(name).labeler
        judgments[name] = detector.judge(window_at(store.read(name)))
        if judgments[name].success is not None and not is_person(author):
            store.label(name, judgments[name].success, DETECTOR + detector.name, author)
    return judgments


def is_person(author: str) -> bool:
    """Return whether the author of a label is a person; an outcome as recorded has none."""
    return bool(author) and not author.startswith((DETECTOR, HIDDEN))


def _random(name: str) -> float:
    """Return a number from 0 to 1; the same in every process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / 2**32


class _Audited(NamedTuple):
    """When a detector judged and a person answered, with the two outcomes."""

    judged: str
    answered: str
    judgment: bool
    answer: bool


def _audited(store: EpisodeStore, name: str) -> _Audited | None:
    """Return what came of the audit of an episode; None without an audit or its answer."""
    labels = store.edit_log(name).labels
    before = list(labels)
    while before and is_person(before[-1].user):  # also corrections of their own answers
        before.pop()
    sure = [entry for entry in before if entry.user.startswith(DETECTOR) and entry.new["success"] is not None]
    if not sure or before[-1].user != _AUDIT or len(before) == len(labels):
        return None
    answer = labels[-1].new["success"]
    return None if answer is None else _Audited(sure[-1].time, labels[-1].time, bool(sure[-1].new["success"]), answer)


def recorded_outcome(store: EpisodeStore, wrong_answers: float = 0.0) -> Callable[[str], bool | None]:
    """Return the answers of a simulated person: the outcomes as they were recorded.

    Args:
        store: Store of the episodes.
        wrong_answers: Share of the failures that are called successes.
    """

    def answer(name: str) -> bool | None:
        success: bool | None = store.recording(name).values["success"]
        return True if success is False and _random(f"wrong {name}") < wrong_answers else success

    return answer
