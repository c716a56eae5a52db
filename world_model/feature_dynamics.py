"""The dynamics of the world model: what the policy will see after some actions, in the policy's own frozen features.

They serve rollouts of a few chunks from real steps, thousands at a time, and single ticks of one stream. A ridge
regression carries what is linear, M small networks the rest; each is a world of its own.
"""

import logging
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.core.errors import UserError
from vla_rl.core.validation import check_ranges
from vla_rl.policies.layers import EnsembleHead, limited
from world_model.fitting import fit

logger = logging.getLogger(__name__)
_LEAST_SCALE = 1e-3
_RIDGE = 10.0  # of the linear part
_INPUT_NOISE = 0.03  # standard deviation of the noise on normalized inputs
_LEARNING_RATE, _WEIGHT_DECAY = 1e-3, 0.03  # of AdamW; the rate falls to 0 by a cosine
_WARM_SHARE = 0.3  # of the gradient steps, where training goes on from older dynamics
_BATCH_SIZE = 256
_HIDDEN = (384, 384)  # widths of the hidden layers, each with a LayerNorm
_ENDING_WEIGHT = 0.3  # of the success within the chunk, beside the mean squared error of the features


class Transitions(NamedTuple):
    """What chunks did, or their first actions: N of them.

    Attributes:
        features: [N, F], what the policy saw when the chunk began.
        actions: [N, C, A], what was sent, normalized; anything after the first ``ticks``.
        ticks: int64 [N], number of actions, 1 to C.
        later: [N, F], what it saw after them; anything where ``lasted`` is False.
        lasted: bool [N], the episode went on for as long.
        succeeded: bool [N], it ended well within the actions.
        known: bool [N], whether it did is known.
    """

    features: Tensor
    actions: Tensor
    ticks: Tensor
    later: Tensor
    lasted: Tensor
    succeeded: Tensor
    known: Tensor


@dataclass(frozen=True)
class FeatureDynamicsConfig:
    """Architecture and optimization.

    Attributes:
        members: M.
        steps: gradient steps.
    """

    members: int = 5
    steps: int = 1000

    def __post_init__(self) -> None:
        check_ranges(self, "dynamics", members=">= 1", steps=">= 1")


class FeatureDynamics(nn.Module):
    """Features -> features some actions later. Only features that vary in the data are predicted; the rest stay.

    Args:
        config: See `FeatureDynamicsConfig`.
        shape: Length C and width A of a chunk.
        varying: int64 [V], the features that vary.
        partial: Whether chunks may be cut short. Their length is then an input.
    """

    varying: Tensor
    mean: Tensor
    scale: Tensor
    change_scale: Tensor
    linear: Tensor

    def __init__(self, config: FeatureDynamicsConfig, shape: tuple[int, int], varying: Tensor, partial: bool) -> None:
        super().__init__()
        self.config, self.shape, self.partial = config, shape, partial
        ticks, width = shape
        inputs, outputs = len(varying) + ticks * (width + partial), len(varying)
        self.head = EnsembleHead(config.members, inputs, _HIDDEN, outputs + 1, normalized=True)
        self.register_buffer("varying", varying)
        self.register_buffer("mean", torch.zeros(outputs))
        self.register_buffer("scale", torch.ones(outputs))
        lengths = ticks if partial else 1  # each has a linear part and a scale of its own
        self.register_buffer("change_scale", torch.ones(lengths, outputs))
        self.register_buffer("linear", torch.zeros(lengths, inputs + 1, outputs))

    @classmethod
    def of(cls, data: Transitions, config: FeatureDynamicsConfig) -> "FeatureDynamics":
        """Return dynamics with the scales and the linear part of the data, on which they will be trained."""
        scale, longest = data.features.std(0), data.actions.shape[1]
        varying = torch.nonzero(scale > _LEAST_SCALE)[:, 0]
        partial = bool((data.ticks < longest).any())
        dynamics = cls(config, (longest, data.actions.shape[2]), varying, partial).to(data.features.device)
        dynamics.mean.copy_(data.features.mean(0)[varying])
        dynamics.scale.copy_(scale[varying])
        for length, own in dynamics._by_length(data.ticks):
            own = own[data.lasted[own]]
            change = (data.later[own] - data.features[own])[:, varying]
            if len(change) > 1:
                dynamics.change_scale[length] = change.std(0) + _LEAST_SCALE
            rows = _with_one(dynamics._rows(data.features[own], data.actions[own], data.ticks[own]))
            with torch.autocast(rows.device.type, enabled=False):  # the sums of a regression need every bit
                gram = rows.T @ rows + _RIDGE * torch.eye(rows.shape[1], device=rows.device)
                scaled_change = change / dynamics.change_scale[length]
                dynamics.linear[length] = torch.linalg.solve(gram, rows.T @ scaled_change)
        return dynamics

    def _by_length(self, ticks: Tensor) -> list[tuple[int, Tensor]]:
        """Return the rows of each length, int64, with its place in ``linear``."""
        if not self.partial:
            return [(0, torch.arange(len(ticks), device=ticks.device))]
        return [(length, torch.nonzero(ticks == length + 1)[:, 0]) for length in range(self.shape[0])]

    def _linear_change(self, rows: Tensor, ticks: Tensor) -> tuple[Tensor, Tensor]:
        """The linear part [B, V] of the change, and the scale of both [B, V]."""
        change, scale = rows.new_zeros(2, len(rows), len(self.varying))
        with torch.autocast(rows.device.type, enabled=False):  # as it was fitted
            for length, own in self._by_length(ticks):
                change[own] = _with_one(rows[own]) @ self.linear[length]
                scale[own] = self.change_scale[length]
        return change, scale

    def _rows(self, features: Tensor, actions: Tensor, count: Tensor) -> Tensor:
        # Features far from the data stay far, or the members would agree on them.
        seen = limited((features[:, self.varying] - self.mean) / self.scale, self.scale)
        if not self.partial:
            return torch.cat([seen, actions.flatten(1)], 1)
        ticks = self.shape[0]
        sent = torch.arange(ticks, device=count.device) < count[:, None]
        return torch.cat([seen, (actions * sent[..., None]).flatten(1), F.one_hot(count - 1, ticks).to(seen)], 1)

    def loss(self, batch: Transitions, generator: torch.Generator) -> Tensor:
        """Mean over members: squared error of the scaled change that is not linear, and cross-entropy of the success
        within the actions.
        """
        rows = self._rows(batch.features, batch.actions, batch.ticks)
        linear, scale = self._linear_change(rows, batch.ticks)
        change = (batch.later - batch.features)[:, self.varying] / scale
        noise = torch.randn(rows.shape, generator=generator).to(rows)
        out = self.head(rows + _INPUT_NOISE * noise)
        error = (out[..., :-1] - (change - linear)).square().mean(-1)
        ended = batch.succeeded.to(out).expand_as(out[..., -1])
        ending = F.binary_cross_entropy_with_logits(out[..., -1], ended, reduction="none")
        return (error * batch.lasted).mean() + _ENDING_WEIGHT * (ending * batch.known).mean()

    @torch.no_grad()
    def forward(self, features: Tensor, actions: Tensor, member: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Go on by at most a chunk, each row in the world of its member, int64 [B], or in the mean of all worlds.

        Args:
            features: [B, F].
            actions: [B, n, A], normalized; n is C, or less if the chunks of the data were cut short too.
            member: See above.

        Returns:
            Features [B, F] after the actions, and the chance [B] that the episode succeeds within them.

        Raises:
            UserError: For another number of actions.
        """
        rows = self._padded(features, actions)
        out = self.head(rows).mean(0) if member is None else self.head.of_member(rows, member)
        length = actions.shape[1] - 1 if self.partial else 0
        later, change = features.clone(), _with_one(rows) @ self.linear[length] + out[:, :-1]
        later[:, self.varying] += change * self.change_scale[length]
        return later, out[:, -1].sigmoid()

    @torch.no_grad()
    def disagreement(self, features: Tensor, actions: Tensor) -> Tensor:
        """Return the standard deviation [B] of the members' predictions, the mean over features, in those of their
        changes in the data. Arguments as of `forward`.
        """
        return self.head(self._padded(features, actions))[..., :-1].std(0, correction=0).mean(1)

    def _padded(self, features: Tensor, actions: Tensor) -> Tensor:
        ticks, sent = self.shape[0], actions.shape[1]
        if not (sent == ticks or (self.partial and 0 < sent < ticks)):
            raise UserError(f"these dynamics go on by {ticks} actions{' at most' * self.partial}, not by {sent}")
        padded = F.pad(actions, (0, 0, 0, ticks - sent))
        return self._rows(features, padded, torch.full((len(actions),), sent, device=actions.device))


def fit_dynamics(
    data: Transitions,
    config: FeatureDynamicsConfig,
    generator: torch.Generator,
    before: FeatureDynamics | None = None,
) -> FeatureDynamics:
    """Train a model on at least one transition that lasted.

    Args:
        data: The transitions.
        config: Architecture and optimization.
        generator: Draws batches and noise on the CPU. First weights follow from torch's own generator.
        before: Dynamics of older data. If the same features vary, training goes on from their networks, for
            `_WARM_SHARE` of the steps. The linear part and the scales are always those of the data.
    """
    dynamics, steps = FeatureDynamics.of(data, config), config.steps
    if before is not None:
        if torch.equal(before.varying, dynamics.varying):
            dynamics.head.load_state_dict(before.head.state_dict())
            steps = math.ceil(_WARM_SHARE * steps)
        else:
            logger.info("the dynamics begin anew, since other features vary than in the round before")

    def loss() -> Tensor:
        chosen = torch.randint(len(data.features), (_BATCH_SIZE,), generator=generator)
        return dynamics.loss(Transitions(*(part[chosen] for part in data)), generator)

    fit(dynamics, loss, "dynamics", steps, _LEARNING_RATE, _WEIGHT_DECAY)
    return dynamics


def _with_one(rows: Tensor) -> Tensor:
    return torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
