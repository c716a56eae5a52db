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
from vla_rl.policies.best_of_n import BestOfN, BestOfNConfig
from vla_rl.policies.residual import Residual

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
    """How a residual is improved by real episodes.

    Attributes:
        chunk_ticks: C, actions of a chunk that are executed before the next one, as ``execution.execute_ticks`` says.
    """

    chunk_ticks: int = 6

    def __post_init__(self) -> None:
        check_ranges(self, "ppo", chunk_ticks=">= 1")


@dataclass(frozen=True)
class ResidualPPOLearning(Learning):
    """Options of the algorithm. The section of the actor is not used, since the policy does not change."""

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
        base: [n, H, A], what the residual moves: the frozen policy's own chunk, raw units.
        noise: [n, A], what the offset that was tried is made of: standard normal times `offset_unit`; 0 in dimensions
            that are not moved.
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
        rows: [n, I], the residual's inputs.
        mean: [n, A], what the present residual proposes.
        noise: [n, A], what the offset that was tried was made of, as of `PlayedChunks`.
        action_std: of the offset, in units of `offset_unit`; 0 where the present residual did not play the episode with
            offsets.
        outcome: 1 or 0.
    """

    episode: "CachedEpisode"
    part: slice
    features: Tensor
    tick: Tensor
    rows: Tensor
    mean: Tensor
    noise: Tensor
    action_std: float
    outcome: float


class ResidualPPO(Algorithm):
    """Train a residual by PPO on real episodes; the policy below it does not change."""

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
        """Make the residual. It reads the features of the policy."""
        del cache
        self._logs: dict[str, float] = {}
        self._take(None)

    def _take(self, residual: Residual | None) -> None:
        """Go on with a residual, or with a new one."""
        self._played: dict[str, PlayedChunks | None] = {}  # by episode: they stay the same, as the policy does
        self._past: set[str] = set()  # episodes that other residuals have played
        device = next(self.model.parameters()).device
        self.residual = (residual or Residual(self.model)).to(device)
        self._optimizer = torch.optim.Adam(self.residual.parameters(), ppo.LEARNING_RATE, fused=True)

    def update(self, step: int) -> dict[str, float]:
        """All epochs, in the first update of a round."""
        del step
        if self.begins_round():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derived_seed(self.seed, "residual ppo", self._round))
                logs = self._improve(torch_generator(self.seed, "residual ppo batches", self._round))
            self._logs = {f"residual_{name}": number for name, number in logs.items()}
            logger.info("residual: %s", ", ".join(f"{name} {number:.3f}" for name, number in logs.items()))
        return dict(self._logs)

    def _improve(self, generator: torch.Generator) -> dict[str, float]:
        every = self._stretches()
        if not every:
            logger.warning("no episode of the policy says which chunks were planned when: there is nothing to learn")
            return {}
        tried = [stretch for stretch in every if stretch.action_std]
        if not tried:
            raise UserError(
                f"no episode was played by this policy with an offset on each chunk. {self.name} needs "
                "exploration=0.15 or so and rollout_precision=torch. Its strategy must not change "
                "planned chunks (sync, naive)"
            )
        action_std = float(np.mean([stretch.action_std for stretch in tried]))
        advantages, brier = self._by_value(every, generator)
        rows, mean, noise = (torch.cat([getattr(s, name) for s in tried]) for name in ("rows", "mean", "noise"))
        chunks = ppo.Tried(rows, mean + action_std * noise, mean, torch.cat(advantages))
        logs = {"chunks": float(len(rows)), "action_std": action_std, "value_brier": brier}
        unit = offset_unit(self.model, self.residual)
        std = action_std * unit.where(unit > 0, 1.0)
        logs |= ppo.update(self.residual, self._optimizer, chunks, std, generator, target_kl=_LARGEST_DIVERGENCE)
        return logs | {"size": float(self.residual(rows).detach().square().mean().sqrt())}

    @torch.no_grad()
    def _stretches(self) -> list[Stretch]:
        """Of all real episodes that this policy has played."""
        episodes = []
        for episode in self.data.cache.episodes:
            if episode.episode_id not in self._played:
                self._played[episode.episode_id] = played_chunks(episode, self.data, self.model, self.residual)
            played = self._played[episode.episode_id]
            if played is not None:
                rows, action_std = played.tick[:, None], 0.0
                if episode.episode_id not in self._past:
                    rows, action_std = self._tried(played)
                if not action_std:
                    self._past.add(episode.episode_id)
                episodes.append((episode, played, rows, action_std))
        if not self.residual.corrects and (every := [rows for *_, rows, action_std in episodes if action_std]):
            self.residual.fit_inputs(torch.cat(every))
        return [stretch for each in episodes for stretch in self._stretches_of(*each)]

    def _tried(self, played: PlayedChunks) -> tuple[Tensor, float]:
        """The residual's inputs of the chunks of an episode, and the action_std of `Stretch`."""
        rows = self.residual.rows(played.features, played.tick, played.base[:, : self.config.ppo.chunk_ticks])
        return rows, spread_of(played, self.residual(rows), self.residual)

    def _stretches_of(
        self, episode: "CachedEpisode", played: PlayedChunks, rows: Tensor, action_std: float
    ) -> list[Stretch]:
        credit, frames = self.data.credit, episode.start + played.step
        mean = self.residual(rows) if action_std else played.noise
        ends = np.flatnonzero(np.diff(credit.outcome_stop[frames])) + 1
        found = []
        for first, stop in zip([0, *ends], [*ends, len(frames)], strict=True):
            label = float(credit.viability_label[frames[first]])
            outcome = self.outcome(episode.episode_id, label) if credit.viability_mask[frames[first]] else None
            if outcome is not None:
                part = slice(int(first), int(stop))
                features, tick, noise = played.features[part], played.tick[part], played.noise[part]
                found.append(Stretch(episode, part, features, tick, rows[part], mean[part], noise, action_std, outcome))
        return found

    def outcome(self, episode_id: str, label: float) -> float | None:
        """Return the reward at the end of a part of an episode, 0 to 1; None: nothing is learned from it.

        Args:
            episode_id: Episode.
            label: Outcome by the credit rule, which is the reward here. Override this for another one.
        """
        del episode_id
        return label

    def _by_value(self, every: list[Stretch], generator: torch.Generator) -> tuple[list[Tensor], float]:
        """The advantages of the chunks that were tried, by a value of all outcomes, and its Brier score. Where nothing
        has succeeded yet there are none: such a value differs by chance alone.
        """
        if not any(s.outcome for s in every):
            return [torch.zeros_like(s.tick) for s in every if s.action_std], 0.0
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
            generalized_advantages(v, s.outcome, _DISCOUNT, ppo.GAE_LAMBDA)
            for s, v in zip(every, values, strict=True)
            if s.action_std
        ], brier

    def selector(self) -> BestOfN:
        return BestOfN(None, BestOfNConfig(num_samples=1, offset_std=0.0), self.residual, self.config.ppo.chunk_ticks)

    def adopt(self, policy: BasePolicy, selector: BestOfN | None) -> None:
        """Go on from another policy, with its residual if it has one."""
        super().adopt(policy, selector)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, "critic weights"))
            self._take(None if selector is None else selector.residual)

    def state_dict(self) -> dict[str, Any]:
        own = {"edit": self.residual.state_dict(), "edit_optimizer": self._optimizer.state_dict()}
        return super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.residual.load_state_dict(state["edit"])
        load_optimizer(self._optimizer, state["edit_optimizer"])


@torch.no_grad()
def played_chunks(
    episode: "CachedEpisode", data: RoundData, model: BasePolicy, residual: Residual
) -> PlayedChunks | None:
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
    moves = offset_unit(model, residual)
    moves[dims:] = 0
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


def offset_unit(model: BasePolicy, residual: Residual) -> Tensor:
    """Return what one unit of exploration is in normalized action units, [A]; 0 where nothing is tried."""
    scale = residual.action_normalizer.scale
    return torch.from_numpy(model.statistics.offset_scale()).to(scale) / scale.where(scale > 0, 1.0)


def _ticks_since_planned(record: Episode, executed: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return how many ticks before each executed action its chunk was planned, int64 [n]. The action's age also counts
    the ticks that the robot waited before the chunk began.
    """
    age_ms = record.extras.get("action_age_ms")
    return index if age_ms is None else np.rint(age_ms[executed] * record.control_hz / 1000).astype(np.int64)


@torch.no_grad()
def spread_of(played: PlayedChunks, mean: Tensor, residual: Residual) -> float:
    """Return the standard deviation of the offsets that were tried around a residual's means [n, A].

    It is 0 if none were tried. It is also 0 if another residual played the episode, or a strategy that changes chunks
    after they were planned.
    """
    moves = played.noise != 0
    own = played.base[torch.arange(len(played.base)), played.first]
    offset = (played.executed - own) * residual.action_normalizer.inverse_scale * moves - mean * moves
    action_std = float((offset * played.noise).sum() / played.noise.square().sum().clamp(min=1e-12))
    rest = offset - action_std * played.noise
    return action_std if action_std > _EXACT and float(rest.abs().max()) < _EXACT else 0.0


def generalized_advantages(value: Tensor, outcome: float, discount: float, gae_lambda: float) -> Tensor:
    """Generalized advantage estimate of the K chunks of an episode with a reward at its end (arXiv 1506.02438):

        delta_i = gamma V_{i+1} - V_i,   delta_K = R - V_K,   A_i = delta_i + gamma lambda A_{i+1}

    Args:
        value: [K], V where each chunk began.
        outcome: R.
        discount: gamma, of a chunk.
        gae_lambda: lambda.
    """
    later = torch.cat([discount * value[1:], value.new_tensor([outcome])])
    advantages, carried = [], value.new_zeros(())
    for delta in (later - value).flip(0):
        carried = delta + discount * gae_lambda * carried
        advantages.append(carried)
    return torch.stack(advantages[::-1])
