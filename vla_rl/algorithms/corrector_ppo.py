"""The residual head of strategy a2c2, trained on policy by proximal policy optimisation of outcomes.

As `residual_ppo` in all but what is edited: not a chunk when it is planned but each action when it is due, from the
newest observation, in the control process.
"""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, override

import numpy as np
import torch
from torch import Tensor

from vla_rl.algorithms.played import PlayedChunks, spread_of
from vla_rl.algorithms.residual_ppo import ResidualPPO, ResidualPPOLearning
from vla_rl.core.errors import ConfigError
from vla_rl.data.cache import CachedEpisode
from vla_rl.policies.corrector import FOLDER, ResidualCorrector
from vla_rl.policies.corrector_training import need_keypoints
from vla_rl.policies.tick_editing import TickEdit
from vla_rl.policies.trainable import TrainablePolicy


class CorrectorPPO(ResidualPPO):
    """See the module."""

    name = "corrector_ppo"
    trains_corrector: ClassVar[bool] = True
    edit: TickEdit

    @override
    @classmethod
    def check_fit(cls, learning: ResidualPPOLearning, policy: Callable[[], TrainablePolicy]) -> None:
        super().check_fit(learning, policy)
        if need_keypoints(policy()).spec.sizes:
            raise ConfigError(f"{cls.name} corrects one robot's actions; this policy is of robots of several sizes")

    @override
    def _new_edit(self) -> TickEdit:
        return TickEdit(self.model, self.config.edit)

    @override
    def _tried(self, episode: CachedEpisode, played: PlayedChunks) -> tuple[Tensor, float]:
        """The head sees the offset that was tried in what was planned."""
        edit, (chunk, index) = self.edit, np.nonzero(played.at >= 0)
        images, state, _ = self.data.inputs(episode.start + played.at[chunk, index])
        looks = edit.looks(self.model, images, state, played.base[chunk, index], index)
        rows = looks.new_zeros(*played.at.shape, looks.shape[1] + 1)
        rows[chunk, index] = torch.cat([looks, looks.new_ones(len(looks), 1)], 1)
        rows[..., -1] /= rows[..., -1].sum(1, keepdim=True)
        planned, number = rows[..., edit.planned].clone(), torch.arange(len(rows))

        def first(spread: float) -> Tensor:
            rows[..., edit.planned] = planned + spread * played.noise[:, None]
            return edit.each(rows[number, played.first, :-1])

        return rows, spread_of(played, first, edit)

    @override
    def _save_edit(self, folder: Path) -> None:
        self.edit.corrector(self.model).save(folder / FOLDER)

    @override
    def _edit_of(self, folder: Path) -> TickEdit | None:
        if not (folder / FOLDER).is_dir():
            return None
        edit = self._new_edit()
        edit.take(ResidualCorrector.load(folder / FOLDER))
        return edit
