"""Values of steps from a critic that has not seen their episode.

A critic that has memorised an episode knows how each of its steps ends: its efficiency value counts the steps exactly,
so that every A_e is 0 and every gate 1, whatever the step was worth. With K folds, K critics are each trained without
one fold of the episodes and judge only that fold. They take turns, so K critics cost the gradient steps of one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.advantage import Values
from vla_rl.algorithms.hierarchical import HierarchicalLearner
from vla_rl.algorithms.round_data import Frames, RoundData
from vla_rl.algorithms.seeds import fold_of


class CrossFitted:
    """Several learners that look as one. With a single learner there are no folds: it sees, and judges, everything.

    An episode's fold follows from its id, so that it stays the same in later rounds.
    """

    def __init__(self, learners: Sequence[HierarchicalLearner]) -> None:
        self.learners = list(learners)
        self._updates = 0

    def begin_round(self, data: RoundData) -> None:
        """Take the round's labelled steps as the batches of the coming updates."""
        self.data = data
        folds = len(self.learners)
        of_episode = [fold_of(episode.episode_id, folds) for episode in data.cache.episodes]
        self._fold = np.array(of_episode, dtype=np.int64)[data.cache.episode_index]  # [N]
        for fold, learner in enumerate(self.learners):
            learner.begin_round(data, (self._fold != fold) | (folds == 1))

    def update(self) -> None:
        """One gradient step of the critic whose turn it is."""
        self.learners[self._updates % len(self.learners)].update()
        self._updates += 1

    @property
    def logs(self) -> dict[str, float]:
        """The last logs of the learners, averaged."""
        logs = [learner.logs for learner in self.learners]
        return {name: sum(log[name] for log in logs) / len(logs) for name in logs[0]}

    def values(self, frames: Frames, later: Frames, wanted: NDArray[np.bool_]) -> Values:
        """Values at frames and at later ones, [B]; zeros where they are not wanted, which saves the time they take."""
        empty = torch.zeros(len(frames), device=self.data.device)
        if not wanted.any():
            return Values(empty, empty, empty, empty)
        rows = self.data.tensor(np.flatnonzero(wanted))
        logit, efficiency = self.evaluate(frames[wanted])
        logit_later, efficiency_later = self.evaluate(later[wanted])
        columns = (logit, logit_later, efficiency, efficiency_later)
        return Values(*(empty.index_copy(0, rows, column) for column in columns))

    def evaluate(self, frames: Frames) -> tuple[Tensor, Tensor]:
        """z_v [B] and V_e [B] of frames, detached, without augmentation."""
        logit = torch.zeros(len(frames), device=self.data.device)
        efficiency = torch.zeros_like(logit)
        for fold, learner in enumerate(self.learners):
            rows = np.flatnonzero(self._fold[frames] == fold)
            if len(rows):
                index = self.data.tensor(rows)
                logit[index], efficiency[index] = learner.evaluate(frames[rows])
        return logit, efficiency

    def state_dict(self) -> dict[str, Any]:
        return {"learners": [learner.state_dict() for learner in self.learners], "updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for learner, saved in zip(self.learners, state["learners"], strict=True):
            learner.load_state_dict(saved)
        self._updates = int(state["updates"])
