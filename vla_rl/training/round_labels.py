"""Practice whose episodes are labeled by a person and a success detector, not by the environment.

The choice stands in ``RUN/outcomes.yaml``, so a resumed run keeps it. The first rounds are labeled by hand. Then the
detector judges, and asks where it is unsure. Evaluations keep the outcomes of the environment: they only score.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vla_rl.core.config import load_config, save_config
from vla_rl.core.errors import ConfigError
from vla_rl.core.files import write_atomic
from vla_rl.data.edits import now
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.outcomes.files import check_folder
from vla_rl.outcomes.labeling import DETECTOR, HIDDEN, FooledError, LabelConfig, Labeled, Labeling, recorded_outcome
from vla_rl.training.jobs import practice_round
from vla_rl.training.plan import BudgetConfig

_FILE = "outcomes.yaml"


def choose_labels(folder: RunFolder, config: LabelConfig, budget: BudgetConfig) -> None:
    """Let a run learn from the labels of a person and a detector, from its first round on.

    Raises:
        ConfigError: If the run compares policies by outcomes of the environment, has other label settings, or has
            practiced on outcomes of the environment.
    """
    check_budget(budget)
    file = folder.path / _FILE
    if file.exists() and load_config(LabelConfig, file) != config:
        raise ConfigError(f"{file} has other label settings; name another run folder, or ask for the same")
    if not file.exists() and any(practice_round(name) for name in EpisodeStore(folder.episodes).ids()):
        raise ConfigError(
            f"{folder.path} has practiced on outcomes of its environment, and labels count from the first round on. "
            "Name another run folder"
        )
    save_config(config, file)


def check_budget(budget: BudgetConfig) -> None:
    """Raise ConfigError if rounds compare policies by outcomes, which practice on labels does not have."""
    if budget.check_episodes or budget.compare_episodes:
        raise ConfigError(
            "budget.check_episodes and budget.compare_episodes compare policies by outcomes of the environment, which "
            "practice on labels does not have. Set budget.check_episodes=0 and budget.compare_episodes=0"
        )


class RoundLabels:
    """Labels the practice episodes in the store of a run, as its folder says."""

    def __init__(self, folder: RunFolder, store: EpisodeStore) -> None:
        self.config = load_config(LabelConfig, folder.path / _FILE)
        answer = recorded_outcome(store, self.config.wrong_answers) if self.config.simulated_person else None
        self._store, self._detector = store, folder.path / "detector"
        self._begun = folder.path / "outcomes_begun"  # the round that the detector judges; kept if it was killed
        self._stopped = folder.path / "outcomes_stopped"  # when practice was stopped last
        self._labeling = Labeling(store, folder.policy(0), self.config, answer)

    @classmethod
    def of(cls, folder: RunFolder, store: EpisodeStore) -> "RoundLabels | None":
        """Return the labels that a run chose; None for a run that learns from the outcomes of its environment."""
        return cls(folder, store) if (Path(folder.path) / _FILE).exists() else None

    def label(self, number: int, names: Sequence[str]) -> dict[str, float]:
        """Label those episodes of a round (from 1) that have no label yet. Returns what to log.

        What was killed is done again: a person's answers stay, the detector judges and is audited anew.

        Raises:
            FooledError: If the detector is no longer to be trusted (`vla_rl.outcomes.labeling.Labeling.check`). The
                labels stay, and a resumed run goes on with them.
            UserError: If the policy gives no features, or an exported detector lies in the run. Then nothing was asked.
        """
        check_folder(self._detector, "detector.onnx")
        labeling = self._labeling
        _ = labeling.features  # refuses a policy without any, before a person answers for nothing
        fresh = [name for name in names if not labeling.labeler(name)]
        for name in fresh:  # before anything can learn from it
            self._store.label(name, None, HIDDEN, "")
        if (number - 1) * len(names) < self.config.by_hand_episodes:  # rounds are of one length
            labeling.ask([name for name in names if not labeling.is_answered(name)], HIDDEN)
        elif self._was_killed(number) or any(labeling.labeler(name) == HIDDEN for name in names):
            write_atomic(self._begun, str(number).encode())
            for name in names:
                if (labeler := labeling.labeler(name)).startswith(DETECTOR):
                    self._store.label(name, None, HIDDEN, labeler)
            if not self.config.by_hand_episodes:
                labeling.ask(labeling.first_questions(names), HIDDEN)
            found = labeling.judge_rest(names)
            if found.detector is not None:
                found.detector.save(self._detector)
                self._check(found, len(names))
            self._begun.unlink(missing_ok=True)
        return self.score(names)

    def _was_killed(self, number: int) -> bool:
        return self._begun.exists() and self._begun.read_text() == str(number)

    def _check(self, found: Labeled, episodes: int) -> None:
        try:
            self._labeling.check(found, episodes, self._stopped.read_text() if self._stopped.exists() else "")
        except FooledError:
            write_atomic(self._stopped, now().encode())
            self._begun.unlink()
            raise

    def score(self, names: Sequence[str]) -> dict[str, float]:
        """Compare labels with the recorded outcomes, where there are any. Only for scoring."""
        said = [self._store.read_header(name).success for name in names]
        by_detector = [self._labeling.labeler(name).startswith(DETECTOR) for name in names]
        true = [self._store.recording(name).values["success"] for name in names]
        pairs = [pair for pair in zip(said, true, strict=True) if pair[1] is not None]
        wrong = {called: [real is not called for label, real in pairs if label is called] for called in (True, False)}
        return {
            # A question that still waits has the detector as its author, and no label.
            "asked": float(sum(label is None or not own for label, own in zip(said, by_detector, strict=True))),
            "unknown": float(sum(label is None for label in said)),
            "false_success": float(np.mean(wrong[True])) if wrong[True] else 0.0,
            "false_failure": float(np.mean(wrong[False])) if wrong[False] else 0.0,
        }
