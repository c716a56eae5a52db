"""An edit of a frozen policy, trained on policy by proximal policy optimisation on the episodes of each round.

Practice plays the newest edit, and exploration (the run's option ``exploration``) adds one Gaussian offset to each
chunk: that is the stochastic policy which is improved. The first update of a round takes all epochs on its episodes;
the rest of the round's gradient steps do nothing, so one is enough (``budget.steps_per_round=1``).

What was tried is worth what a value of real outcomes says it changed (generalised advantages).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_rl import ppo
from vla_rl.algorithms.actor import load_optimizer
from vla_rl.algorithms.base import Algorithm
from vla_rl.algorithms.config import Learning
from vla_rl.algorithms.played import PlayedChunks, played_chunks, spread_of
from vla_rl.algorithms.seeds import derived_seed, fold_of, torch_generator
from vla_rl.core.capabilities import ON_POLICY
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.validation import check_ranges
from vla_rl.credit import CreditConfig
from vla_rl.critics.backbones import Backbone
from vla_rl.critics.outcome import OutcomeValueConfig, fit_outcome_value
from vla_rl.data.cache import CachedEpisode, FrameCache
from vla_rl.policies.choosing import FOLDER, ChoiceConfig, Chooser
from vla_rl.policies.editing import Edit
from vla_rl.policies.trainable import TrainablePolicy

logger = logging.getLogger(__name__)
_DISCOUNT = 0.995  # gamma of a chunk: success is worth less the later it comes
_FOLDS = 5  # of the value; an episode is judged by a network that has not seen how it ends
_LARGEST_DIVERGENCE = 0.1  # nats a chunk, after which no further epoch begins


@dataclass(frozen=True)
class ResidualPPOConfig:
    """How an edit is improved by real episodes.

    Attributes:
        chunk_ticks: C, actions of a chunk that are executed before the next one, as ``execution.execute_ticks`` says.
    """

    chunk_ticks: int = 6

    def __post_init__(self) -> None:
        check_ranges(self, "ppo", chunk_ticks=">= 1")


@dataclass(frozen=True)
class ResidualPPOLearning(Learning):
    """What the algorithm may be told; the actor's section is not used, for the policy stays as it is."""

    ppo: ResidualPPOConfig = field(default_factory=ResidualPPOConfig)
    value: OutcomeValueConfig = field(default_factory=OutcomeValueConfig)
    credit: CreditConfig = field(default_factory=lambda: CreditConfig(rule="takeover_is_failure"))

    @property
    def trains_policy(self) -> bool:
        return False

    @property
    def chunk_ticks(self) -> int:
        return self.ppo.chunk_ticks


class Stretch(NamedTuple):
    """Consecutive chunks of an episode that credit gives one outcome.

    Attributes:
        episode: of which it is a part.
        part: which of the episode's chunks.
        features: [n, F], of `flat_features`.
        tick: float [n], ticks since the episode began.
        rows: [n, I], the edit's inputs.
        mean: [n, A], what the edit says as it is.
        noise: [n, A], standard normal, what the offset that was tried was made of.
        spread: of the offset; 0 where the episode was not played by the edit as it is, with offsets around it.
        outcome: 1 or 0.
    """

    episode: CachedEpisode
    part: slice
    features: Tensor
    tick: Tensor
    rows: Tensor
    mean: Tensor
    noise: Tensor
    spread: float
    outcome: float


class ResidualPPO(Algorithm):
    """See the module."""

    name = "residual_ppo"
    config_class: ClassVar[type] = ResidualPPOLearning
    requires: ClassVar[frozenset[str]] = ON_POLICY | {"features", "several_draws", "exploration"}
    config: ResidualPPOLearning

    @classmethod
    def check_fit(cls, learning: ResidualPPOLearning, policy: Callable[[], TrainablePolicy]) -> None:
        ticks, horizon = learning.ppo.chunk_ticks, policy().horizon
        if ticks > horizon:
            raise ConfigError(
                f"ppo.chunk_ticks is {ticks}, the policy's chunks have {horizon} actions; set "
                f"learning.ppo.chunk_ticks to {horizon} or less"
            )

    def build_critics(self, cache: FrameCache, backbone: Backbone | None) -> None:
        """Make the edit; it sees through the policy, whatever ``backbone`` is."""
        del cache, backbone
        self._logs: dict[str, float] = {}
        self._take(None)

    def _take(self, edit: Edit | None) -> None:
        """Go on with an edit, or with a new one."""
        self._played: dict[str, PlayedChunks | None] = {}  # by episode: they stay the same, as the policy does
        self._past: set[str] = set()  # episodes that other edits have played
        device = next(self.model.parameters()).device
        self.edit = (edit or Edit(self.model)).to(device)
        self._optimizer = torch.optim.Adam(self.edit.parameters(), ppo.LEARNING_RATE)

    def update(self, step: int) -> dict[str, float]:
        """All epochs, in the first update of a round."""
        del step
        if self.begins_round():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derived_seed(self.seed, "residual ppo", self._round))
                logs = self._improve(torch_generator(self.seed, "residual ppo batches", self._round))
            self._logs = {f"edit_{name}": number for name, number in logs.items()}
            logger.info("edit: %s", ", ".join(f"{name} {number:.3f}" for name, number in logs.items()))
        return dict(self._logs)

    def _improve(self, generator: torch.Generator) -> dict[str, float]:
        every = self._stretches()
        if not every:
            logger.warning("no episode of the policy says which chunks were planned when: there is nothing to learn")
            return {}
        tried = [stretch for stretch in every if stretch.spread]
        if not tried:
            raise UserError(
                f"no episode was played by the policy as it is, with an offset on each chunk; {self.name} needs "
                "exploration=0.15 or so, rollout_precision=torch, and a strategy that executes chunks as they were "
                "planned (sync, naive)"
            )
        spread = float(np.mean([stretch.spread for stretch in tried]))
        advantages, brier = self._by_value(every, generator)
        rows, mean, noise = (torch.cat([getattr(s, name) for s in tried]) for name in ("rows", "mean", "noise"))
        chunks = ppo.Tried(rows, mean + spread * noise, mean, torch.cat(advantages))
        logs = {"chunks": float(len(rows)), "spread": spread, "value_brier": brier}
        logs |= ppo.update(
            self.edit, self._optimizer, chunks, spread, generator, largest_divergence=_LARGEST_DIVERGENCE
        )
        return logs | {"size": float(self.edit(rows).detach().square().mean().sqrt())}

    @torch.no_grad()
    def _stretches(self) -> list[Stretch]:
        """Of all real episodes that this policy has played."""
        episodes = []
        for episode in self.data.cache.episodes:
            if episode.episode_id not in self._played:
                self._played[episode.episode_id] = played_chunks(episode, self.data, self.model, self.edit)
            played = self._played[episode.episode_id]
            if played is not None:
                rows, spread = played.tick[:, None], 0.0
                if episode.episode_id not in self._past:
                    rows, spread = self._tried(played)
                if not spread:
                    self._past.add(episode.episode_id)
                episodes.append((episode, played, rows, spread))
        if not self.edit.corrects and (every := [rows for *_, rows, spread in episodes if spread]):
            self.edit.fit_inputs(torch.cat(every))
        return [stretch for each in episodes for stretch in self._stretches_of(*each)]

    def _tried(self, played: PlayedChunks) -> tuple[Tensor, float]:
        """The edit's inputs of the chunks of an episode, and the spread of `Stretch`."""
        rows = self.edit.rows(played.features, played.tick, played.base[:, : self.config.ppo.chunk_ticks])
        return rows, spread_of(played, self.edit(rows), self.edit)

    def _stretches_of(self, episode: CachedEpisode, played: PlayedChunks, rows: Tensor, spread: float) -> list[Stretch]:
        credit, frames = self.data.credit, episode.start + played.step
        mean = self.edit(rows) if spread else played.noise
        ends = np.flatnonzero(np.diff(credit.outcome_stop[frames])) + 1
        found = []
        for first, stop in zip([0, *ends], [*ends, len(frames)], strict=True):
            if credit.viability_mask[frames[first]]:
                part, outcome = slice(int(first), int(stop)), float(credit.viability_label[frames[first]])
                features, tick, noise = played.features[part], played.tick[part], played.noise[part]
                found.append(Stretch(episode, part, features, tick, rows[part], mean[part], noise, spread, outcome))
        return found

    def _by_value(self, every: list[Stretch], generator: torch.Generator) -> tuple[list[Tensor], float]:
        """The advantages of the chunks that were tried, by a value of all outcomes, and its Brier score. Where nothing
        has succeeded yet there are none: such a value differs by chance alone.
        """
        if not any(s.outcome for s in every):
            return [torch.zeros_like(s.tick) for s in every if s.spread], 0.0
        rows = torch.cat([torch.cat([s.features, s.tick[:, None]], 1) for s in every])
        left = torch.cat([torch.arange(len(s.tick) - 1, -1, -1) for s in every]).to(rows)
        sizes = torch.tensor([len(s.tick) for s in every], device=rows.device)
        outcome = torch.tensor([s.outcome for s in every], device=rows.device).repeat_interleave(sizes)
        folds = torch.tensor([fold_of(s.episode.episode_id, _FOLDS) for s in every], device=rows.device)
        fold = folds.repeat_interleave(sizes)
        label = outcome * _DISCOUNT**left
        value, brier = fit_outcome_value(rows, label, fold, _FOLDS, self.config.value, generator)
        values = value(rows, fold).split(sizes.tolist())
        return [
            ppo.generalised_advantages(v, s.outcome, _DISCOUNT, ppo.CARRY)
            for s, v in zip(every, values, strict=True)
            if s.spread
        ], brier

    def save_policy(self, folder: Path, version: int) -> None:
        """Write the policy with its edit: the edit first, since a policy's config.json says that all of it is there."""
        Chooser(None, ChoiceConfig(draws=1, offset=0.0), self.edit, self.config.ppo.chunk_ticks).save(folder / FOLDER)
        super().save_policy(folder, version)

    def _edit_of(self, folder: Path) -> Edit | None:
        if not (folder / FOLDER).is_dir():
            return None
        return Chooser.load(folder / FOLDER, self.model, str(next(self.model.parameters()).device)).edit

    def adopt_policy(self, folder: Path) -> None:
        """Go on from another policy, with its edit if it has one."""
        super().adopt_policy(folder)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, "critic weights"))
            self._take(self._edit_of(folder))

    def state_dict(self) -> dict[str, Any]:
        own = {"edit": self.edit.state_dict(), "edit_optimizer": self._optimizer.state_dict()}
        return super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.edit.load_state_dict(state["edit"])
        load_optimizer(self._optimizer, state["edit_optimizer"])
