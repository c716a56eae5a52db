"""Rungs of the ladder on which temporal differences learn from rollouts too, true or learned ones.

The residual of `residual_td` learns from the real chunks of a round and from rollouts that begin at real steps. As in
Dyna (Sutton, 1991), a rollout is data like any other. So the truth shows what exact rollouts add in a round, and
learned dynamics what a model of the same episodes adds.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, override

import numpy as np
import torch
from torch import Tensor

from benchmarks.ladder import TruthConfig, simulator_of
from vla_rl.algorithms.actor import autocast
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
    """`ResidualTD` that also learns from rollouts of dynamics that were fitted to its own episodes.

    Every second chunk of a batch is of a rollout. The scales of the inputs are those of real chunks and rollouts.
    """

    name = "learnt_rollouts_td"
    config_class: ClassVar[type] = RolloutTDLearning
    config: RolloutTDLearning
    _real: int  # number of real chunks, which come first; played ones follow, then the ends of rollouts
    _played: int

    def world(self, generator: torch.Generator) -> WorldModel[Any]:
        """Return the model that rollouts run in."""
        ticks, normalize = self.config.critic.chunk_ticks, self.critic.action_normalizer.network_input
        features = self.every_row()[:, : len(example_row(self.model))]
        whole = np.full(self.data.cache.total_frames, ticks)
        transitions = what_actions_did(self.data, features, normalize, ticks, whole)
        with autocast(self.config.actor, self.data.device, cached=False):
            dynamics = fit_dynamics(transitions, self.config.dynamics, generator)
        return FeatureWorld(dynamics, lambda moments: features[self.data.tensor(moments.frames)], normalize)

    @override
    def chunks(self, generator: torch.Generator) -> Chunks:
        real = super().chunks(generator)
        imagined, self._played = self.roll_out(self.world(generator), real, generator)
        self._real = count = len(real.rows)
        later = torch.where(imagined.later >= 0, count + imagined.later, -1)
        imagined = imagined._replace(later=later)
        rows = [name for name in Chunks._fields if name != "of_people"]
        return real._replace(**{name: torch.cat([getattr(real, name), getattr(imagined, name)]) for name in rows})

    @torch.no_grad()
    def roll_out(self, world: WorldModel[Any], real: Chunks, generator: torch.Generator) -> tuple[Chunks, int]:
        """Play chunks of the policy, moved by chance, from the policy's own real steps drawn at random.

        Returns:
            Chunks, and how many of them were played. Those come first. The others are where rollouts ended without
            success: they are valued, and not learned from.
        """
        model, ticks, width = self.model.eval(), self.config.critic.chunk_ticks, self.model.spec.action_dim
        own = np.setdiff1d(np.arange(len(real.rows)), real.of_people.numpy())
        begin = own[torch.randint(len(own), (_BRANCHES,), generator=generator).numpy()]
        tick = real.rows[self.data.tensor(begin), len(example_row(model))]
        member = torch.randint(world.members, (_BRANCHES,), generator=generator).to(tick.device)
        state = world.encode(Observations(self.data.cache, self._frames[begin]), member)
        alive, following = torch.ones_like(tick, dtype=torch.bool), torch.arange(_BRANCHES, device=tick.device)
        parts: list[tuple[Tensor, ...]] = []
        for number in range(_CHUNKS + 1):
            noise = torch.randn(_BRANCHES, model.horizon, width, generator=generator).to(tick)
            usual, drawn = (draw_from_flat(model, state.features, each)[:, :ticks] for each in (0 * noise, noise))
            offset = _OFFSET_STD * torch.randn(_BRANCHES, width, generator=generator).to(tick)
            sent = drawn + self.residual.raw(offset * self.residual.moved)[:, None]
            rows = [self.critic.rows(state.features, tick, chunk, usual) for chunk in (sent, drawn)]
            seen = self.residual.rows(state.features, tick, drawn)
            reached, played = alive, alive
            if number == _CHUNKS:
                won, played, ended = torch.zeros_like(alive), torch.zeros_like(alive), torch.ones_like(alive)
            else:
                state, success, _ = world.predict(state, sent)
                won = torch.rand(_BRANCHES, generator=generator).to(success) < success
                tick = tick + ticks
                ended = won | (tick >= self.data.longest)
            later = torch.where(ended, -1, (number + 1) * _BRANCHES + following)
            outcome = won * self.config.discount ** (ticks / 2)
            parts.append((*rows, seen, later, outcome, reached, played))
            alive = alive & ~ended
        *found, reached, played = (torch.cat(part) for part in zip(*parts, strict=True))
        kept = torch.cat([torch.nonzero(played)[:, 0], torch.nonzero(reached & ~played)[:, 0]])
        place = torch.full_like(following, -1).repeat(_CHUNKS + 1)
        place[kept] = torch.arange(len(kept), device=kept.device)
        chunks = Chunks._make((*(part[kept] for part in found), real.of_people))
        return chunks._replace(later=torch.where(chunks.later >= 0, place[chunks.later], -1)), int(played.sum())

    @override
    def _batch(self, chunks: Chunks, generator: torch.Generator) -> Tensor:
        batch = super()._batch(chunks._replace(rows=chunks.rows[: self._real]), generator)
        batch[1::2] = self._real + torch.randint(self._played, (len(batch[1::2]),), generator=generator)
        return batch


class TrueRolloutsTD(LearntRolloutsTD):
    """`LearntRolloutsTD` whose rollouts are played in the simulator."""

    name = "true_rollouts_td"

    @override
    def world(self, generator: torch.Generator) -> WorldModel[Any]:
        return simulator_of(self, self.config.truth)
