"""Residual PPO: a residual of a frozen policy, trained on policy on the real episodes of each round.

Practice plays the newest residual, and exploration (the run's option ``exploration``) adds one Gaussian offset to each
chunk. The first update of a round takes all epochs on its episodes. Its other gradient steps do nothing, so one is
enough (``budget.steps_per_round=1``). Advantages are generalized advantage estimates of a value of real outcomes.

Episodes store no offsets. They say of which chunk an action is and when it was planned. Seeds give the rest: the frozen
policy's chunk from the noise of that tick, and the offset that exploration added. Whether the present residual played
an episode is checked against the recorded actions.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_rl import ppo
from vla_rl.algorithms.actor import load_optimizer
from vla_rl.algorithms.base import Algorithm, Learning
from vla_rl.algorithms.round_data import RoundData
from vla_rl.algorithms.sampling import derived_seed, fold_of, torch_generator
from vla_rl.core.capabilities import ON_POLICY
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.flow_sampling import flow_noise
from vla_rl.core.types import Episode, Source
from vla_rl.core.validation import check_ranges
from vla_rl.credit import CreditConfig
from vla_rl.critics.outcome import OutcomeValueConfig, fit_outcome_value
from vla_rl.policies.acting import exploration_noise
from vla_rl.policies.base import BasePolicy, flat_features
from vla_rl.policies.choosing import ChoiceConfig, Chooser
from vla_rl.policies.editing import Edit

if TYPE_CHECKING:
    from vla_rl.data.cache import CachedEpisode, FrameCache

logger = logging.getLogger(__name__)
_DISCOUNT = 0.995  # gamma of a chunk: success is worth less the later it comes
_FOLDS = 5  # of the value; an episode is judged by a network that has not seen how it ends
# Largest difference of recorded and recomputed actions, in normalized action units. Another batch size changes the last
# bits of a forward pass.
_EXACT = 1e-3
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


class PlayedChunks(NamedTuple):
    """The n chunks of an episode of which at least one action was executed.

    Attributes:
        step: int64 [n], at which each was planned.
        first: int64 [n], the index in it of the first action that was executed.
        features: [n, F], of `flat_features`.
        tick: float [n], ticks since the episode began.
        base: [n, H, A], what the edit moves: the frozen policy's own chunk, raw units.
        noise: [n, A], standard normal, what the offset that was tried is made of; 0 in dimensions that are not moved.
        executed: [n, A], the recorded action, raw units; 0 in dimensions that the robot lacks.
    """

    step: np.ndarray
    first: np.ndarray
    features: Tensor
    tick: Tensor
    base: Tensor
    noise: Tensor
    executed: Tensor


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

    episode: "CachedEpisode"
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
    def check_fit(cls, learning: ResidualPPOLearning, policy: Callable[[], BasePolicy]) -> None:
        ticks, horizon = learning.ppo.chunk_ticks, policy().horizon
        if ticks > horizon:
            raise ConfigError(
                f"ppo.chunk_ticks is {ticks}, the policy's chunks have {horizon} actions; set "
                f"learning.ppo.chunk_ticks to {horizon} or less"
            )

    def build_critics(self, cache: "FrameCache") -> None:
        """Make the edit. It reads the features of the policy."""
        del cache
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

    def _stretches_of(
        self, episode: "CachedEpisode", played: PlayedChunks, rows: Tensor, spread: float
    ) -> list[Stretch]:
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

    def chooser(self) -> Chooser:
        return Chooser(None, ChoiceConfig(draws=1, offset=0.0), self.edit, self.config.ppo.chunk_ticks)

    def adopt(self, policy: BasePolicy, chooser: Chooser | None) -> None:
        """Go on from another policy, with its edit if it has one."""
        super().adopt(policy, chooser)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, "critic weights"))
            self._take(None if chooser is None else chooser.edit)

    def state_dict(self) -> dict[str, Any]:
        own = {"edit": self.edit.state_dict(), "edit_optimizer": self._optimizer.state_dict()}
        return super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.edit.load_state_dict(state["edit"])
        load_optimizer(self._optimizer, state["edit_optimizer"])


@torch.no_grad()
def played_chunks(episode: "CachedEpisode", data: RoundData, model: BasePolicy, edit: Edit) -> PlayedChunks | None:
    """The chunks of an episode; None if no policy played it, or nothing is known of its seed or its chunks."""
    if episode.seed is None or "chunk_id" not in episode.extras or episode.policy_version < 0:
        return None
    record = data.cache.store.read(episode.episode_id)
    own = np.flatnonzero(record.source == Source.POLICY)
    _, first = np.unique(record.extras["chunk_id"][own], return_index=True)
    executed = own[first]
    index = record.extras["chunk_index"][executed].astype(np.int64)
    step = executed - _ticks_since_planned(record, executed, index)
    if not len(own) or step.min() < 0 or record.extras["chunk_index"][own].max() >= model.horizon:
        return None
    seed, size = episode.seed, model.spec.action_dim
    inputs, model = data.inputs(episode.start + step), model.eval()
    seen = model.features(*inputs)
    noise = np.stack([flow_noise(seed, int(tick), model.horizon, size) for tick in step])
    base = model.draw_several(*inputs, data.tensor(noise)[:, None], seen=seen)[:, 0]
    tried = np.concatenate([exploration_noise(seed, int(tick), size) for tick in step])
    dims = episode.action_dim  # a smaller robot has no more
    moves = edit.moved * (torch.arange(size, device=data.device) < dims)
    recorded = torch.zeros_like(base[:, 0])
    recorded[:, :dims] = data.tensor(record.action_policy[executed])
    return PlayedChunks(
        step,
        index,
        flat_features(*seen),
        data.tensor(step.astype(np.float32)),
        base,
        data.tensor(tried) * moves,
        recorded,
    )


def _ticks_since_planned(record: Episode, executed: np.ndarray, index: np.ndarray) -> np.ndarray:
    """How long before each executed action, int64 [n], its chunk was planned: as many ticks as its index says, and as
    many more as the robot had to wait before the chunk began, which is in the action's age.
    """
    age_ms = record.extras.get("action_age_ms")
    return index if age_ms is None else np.rint(age_ms[executed] * record.control_hz / 1000).astype(np.int64)


@torch.no_grad()
def spread_of(played: PlayedChunks, mean: Tensor, edit: Edit) -> float:
    """The standard deviation of the offsets that were tried around an edit's means [n, A]; 0 if none were, or if the
    episode was not played like that: by another edit, or by a strategy that changes chunks after they were planned.
    """
    moves = played.noise != 0
    own = played.base[torch.arange(len(played.base)), played.first]
    offset = (played.executed - own) * edit.action_normalizer.inverse_scale * moves - mean * moves
    spread = float((offset * played.noise).sum() / played.noise.square().sum().clamp(min=1e-12))
    rest = offset - spread * played.noise
    return spread if spread > _EXACT and float(rest.abs().max()) < _EXACT else 0.0
