"""Rungs of the ladder on which temporal differences learn from rollouts too, true or learned ones.

The residual of `residual_td` learns from the real chunks of a round and, half of each batch, from rollouts that begin
at real steps. As in Dyna (Sutton, 1991), a rollout is data like any other. So the truth shows what rollouts can be
worth, and learned dynamics what a model of the same episodes adds to them.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, override

import numpy as np
import torch
from torch import Tensor

from benchmarks.ladder import TruthConfig, simulator_of
from vla_rl.algorithms.imagined_edit import what_actions_did
from vla_rl.algorithms.residual_td import Chunks, ResidualTD, ResidualTDLearning
from vla_rl.policies.base import draw_from_flat, example_row
from world_model.feature_dynamics import FeatureDynamicsConfig, fit_dynamics
from world_model.feature_world import FeatureWorld
from world_model.protocol import Observations, WorldModel

_BRANCHES, _CHUNKS = 4096, 3
_OFFSET_STD = 0.25  # of what rollouts try, as in practice


@dataclass(frozen=True)
class RolloutTDLearning(ResidualTDLearning):
    """Options of `LearntRolloutsTD` and `TrueRolloutsTD`."""

    truth: TruthConfig = field(default_factory=TruthConfig)
    dynamics: FeatureDynamicsConfig = field(default_factory=FeatureDynamicsConfig)


class LearntRolloutsTD(ResidualTD):
    """`ResidualTD` that also learns from rollouts of dynamics that were fitted to its own episodes."""

    name = "learnt_rollouts_td"
    config_class: ClassVar[type] = RolloutTDLearning
    config: RolloutTDLearning
    _real: int  # number of real chunks, which come first
    _played: Tensor  # int64 [K], chunks of rollouts that count; an episode had ended before the others

    def world(self, generator: torch.Generator) -> WorldModel[Any]:
        """Return the model that rollouts run in."""
        ticks, normalize = self.config.critic.chunk_ticks, self.critic.action_normalizer.network_input
        features = self.every_row()[:, : len(example_row(self.model))]
        whole = np.full(self.data.cache.total_frames, ticks)
        dynamics = fit_dynamics(
            what_actions_did(self.data, features, normalize, ticks, whole), self.config.dynamics, generator
        )
        return FeatureWorld(dynamics, lambda moments: features[self.data.tensor(moments.frames)], normalize)

    @override
    def chunks(self, generator: torch.Generator) -> Chunks:
        real = super().chunks(generator)
        imagined, played = self.roll_out(self.world(generator), real, generator)
        self._real = count = len(real.rows)
        self._played = count + torch.nonzero(played)[:, 0]
        later = torch.where(imagined.later >= 0, count + imagined.later, -1)
        joined = (torch.cat(both) for both in zip(real[:5], imagined._replace(later=later)[:5], strict=True))
        return Chunks._make((*joined, real.of_people))

    @torch.no_grad()
    def roll_out(self, world: WorldModel[Any], real: Chunks, generator: torch.Generator) -> tuple[Chunks, Tensor]:
        """Play chunks of the policy, moved by chance, from the policy's own real steps drawn at random.

        Returns:
            The chunks of the rollouts, and bool [K], which of them were played. The last one of a rollout never is: its
            value is what the one before leads to.
        """
        model, ticks = self.model.eval(), self.config.critic.chunk_ticks
        own = np.setdiff1d(np.arange(len(real.rows)), real.of_people.numpy())
        begin = own[torch.randint(len(own), (_BRANCHES,), generator=generator).numpy()]
        tick = real.rows[self.data.tensor(begin), len(example_row(model))]
        member = torch.randint(world.members, (_BRANCHES,), generator=generator)
        state = world.encode(Observations(self.data.cache, self._frames[begin]), member)
        alive, following = torch.ones(_BRANCHES, dtype=torch.bool), torch.arange(_BRANCHES)
        parts: list[tuple[Tensor, ...]] = []
        for number in range(_CHUNKS + 1):
            noise = torch.randn(_BRANCHES, model.horizon, model.spec.action_dim, generator=generator)
            usual, drawn = (draw_from_flat(model, state.features, each)[:, :ticks] for each in (0 * noise, noise))
            offset = _OFFSET_STD * torch.randn(_BRANCHES, model.spec.action_dim, generator=generator)
            sent = drawn + self.residual.raw(offset * self.residual.moved)[:, None]
            rows = (self.critic.rows(state.features, tick, chunk, usual) for chunk in (sent, drawn))
            seen = self.residual.rows(state.features, tick, drawn)
            if number == _CHUNKS:
                alive, won, ended = torch.zeros_like(alive), torch.zeros_like(alive), torch.ones_like(alive)
            else:
                state, success, _ = world.predict(state, sent)
                won = torch.rand(_BRANCHES, generator=generator) < success
                tick = tick + ticks
                ended = won | (tick >= self.data.longest)
            later = torch.where(ended, -1, (number + 1) * _BRANCHES + following)
            outcome = won * self.config.discount ** (ticks / 2)
            parts.append((*rows, seen, later, outcome, alive))
            alive = alive & ~ended
        *found, played = (torch.cat(part) for part in zip(*parts, strict=True))
        return Chunks._make((*found, real.of_people)), played

    @override
    def _batch(self, chunks: Chunks, generator: torch.Generator) -> Tensor:
        real = super()._batch(chunks._replace(rows=chunks.rows[: self._real]), generator)
        half = len(real) // 2
        return torch.cat([real[half:], self._played[torch.randint(len(self._played), (half,), generator=generator)]])


class TrueRolloutsTD(LearntRolloutsTD):
    """`LearntRolloutsTD` whose rollouts are played in the simulator."""

    name = "true_rollouts_td"

    @override
    def world(self, generator: torch.Generator) -> WorldModel[Any]:
        return simulator_of(self, self.config.truth)
