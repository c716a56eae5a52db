"""The short-range world model: what the policy will see after a chunk, in the policy's own frozen features.

It is made for rollouts of a few chunks from real steps, thousands at a time, without a picture. A ridge regression
carries what is linear, M small networks the rest; each is a world of its own. The video model (`model`) remains for
long horizons and for people to look at.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.core.errors import ConfigError
from vla_rl.core.validation import check_ranges
from vla_rl.policies.layers import EnsembleHead, limited
from world_model.feature_decoder import FeatureDecoder
from world_model.protocol import Observations, Prediction
from world_model.training import fit

_LEAST_SCALE = 1e-3
_RIDGE = 10.0  # of the linear part
_INPUT_NOISE = 0.03  # standard deviation of the noise on normalized inputs
_LEARNING_RATE, _WEIGHT_DECAY = 1e-3, 0.03  # of AdamW; the rate falls to 0 by a cosine
_BATCH_SIZE = 256
_HIDDEN = (384, 384)  # widths of the hidden layers, each with a LayerNorm
_ENDING_WEIGHT = 0.3  # of the success within the chunk, beside the mean squared error of the features


class Transitions(NamedTuple):
    """What chunks did, N of them.

    Attributes:
        features: [N, F], what the policy saw when the chunk began.
        actions: [N, C, A], what was sent, normalized.
        later: [N, F], what it saw after the chunk; anything where ``lasted`` is False.
        lasted: bool [N], the episode went on for as long as the chunk.
        succeeded: bool [N], it ended well within the chunk.
        known: bool [N], whether it did is known.
    """

    features: Tensor
    actions: Tensor
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
    """Features -> features one chunk later. Only features that vary in the data are predicted; the rest stay.

    The data, on which it will be trained, give the scales.
    """

    def __init__(self, data: Transitions, config: FeatureDynamicsConfig) -> None:
        super().__init__()
        self.config = config
        scale = data.features.std(0)
        self.varying = torch.nonzero(scale > _LEAST_SCALE)[:, 0]
        self._mean, self._scale = data.features.mean(0)[self.varying], scale[self.varying]
        inputs, outputs = len(self.varying) + data.actions[0].numel(), len(self.varying)
        self.head = EnsembleHead(config.members, inputs, _HIDDEN, outputs + 1, normalized=True)
        change = (data.later - data.features)[data.lasted][:, self.varying]
        self._change_scale = change.std(0) + _LEAST_SCALE
        rows = _with_one(self._rows(data.features, data.actions))[data.lasted]
        with torch.autocast(rows.device.type, enabled=False):  # the sums of a regression need every bit
            gram = rows.T @ rows + _RIDGE * torch.eye(rows.shape[1], device=rows.device)
            self._linear = torch.linalg.solve(gram, rows.T @ (change / self._change_scale))

    def _rows(self, features: Tensor, actions: Tensor) -> Tensor:
        # Features far from the data stay far, or the members would agree on them.
        seen = limited((features[:, self.varying] - self._mean) / self._scale, self._scale)
        return torch.cat([seen, actions.flatten(1)], 1)

    def loss(self, batch: Transitions, generator: torch.Generator) -> Tensor:
        """Mean over members: squared error of the scaled change that is not linear, and cross-entropy of the success
        within the chunk.
        """
        rows = self._rows(batch.features, batch.actions)
        change = (batch.later - batch.features)[:, self.varying] / self._change_scale
        noise = torch.randn(rows.shape, generator=generator).to(rows)
        out = self.head(rows + _INPUT_NOISE * noise)
        error = (out[..., :-1] - (change - _with_one(rows) @ self._linear)).square().mean(-1)
        ended = batch.succeeded.to(out).expand_as(out[..., -1])
        ending = F.binary_cross_entropy_with_logits(out[..., -1], ended, reduction="none")
        return (error * batch.lasted).mean() + _ENDING_WEIGHT * (ending * batch.known).mean()

    @torch.no_grad()
    def forward(self, features: Tensor, actions: Tensor, member: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Go one chunk on, each row in the world of its member, int64 [B], or in the mean of all worlds.

        Args:
            features: [B, F].
            actions: [B, C, A], normalized.
            member: See above.

        Returns:
            Features [B, F] after the chunk, and the chance [B] that the episode succeeds within it.
        """
        rows = self._rows(features, actions)
        out = self.head(rows).mean(0) if member is None else self.head.of_member(rows, member)
        later = features.clone()
        later[:, self.varying] += (_with_one(rows) @ self._linear + out[:, :-1]) * self._change_scale
        return later, out[:, -1].sigmoid()

    @torch.no_grad()
    def disagreement(self, features: Tensor, actions: Tensor) -> Tensor:
        """Return the standard deviation [B] of the members' predictions, the mean over features, in those of their
        changes in the data. Arguments as of `forward`.
        """
        return self.head(self._rows(features, actions))[..., :-1].std(0, correction=0).mean(1)


def fit_dynamics(data: Transitions, config: FeatureDynamicsConfig, generator: torch.Generator) -> FeatureDynamics:
    """Train a model from scratch on at least one transition that lasted.

    Its first weights follow from torch's own generator. The given one draws batches and noise on the CPU.
    """
    dynamics = FeatureDynamics(data, config).to(data.features.device)

    def loss() -> Tensor:
        chosen = torch.randint(len(data.features), (_BATCH_SIZE,), generator=generator)
        return dynamics.loss(Transitions(*(part[chosen] for part in data)), generator)

    fit(dynamics, loss, "dynamics", config.steps, _LEARNING_RATE, _WEIGHT_DECAY)
    return dynamics


class FeatureState(NamedTuple):
    """Where B rows are. ``features`` [B, F] are what the policy sees, ``member`` int64 [B] are their worlds; None: in
    the mean of all.
    """

    features: Tensor
    member: Tensor | None


@dataclass(frozen=True)
class FeatureWorld:
    """The `WorldModel` of a policy's features.

    Attributes:
        dynamics: Fitted.
        look: The policy's encoder: observations -> features [B, F].
        normalize: Actions in raw units -> normalized.
        decoder: Draws pictures of features.
    """

    dynamics: FeatureDynamics
    look: Callable[[Observations], Tensor]
    normalize: Callable[[Tensor], Tensor]
    decoder: FeatureDecoder | None = None

    @property
    def members(self) -> int:
        return self.dynamics.config.members

    def encode(self, observations: Observations, member: Tensor | None = None) -> FeatureState:
        return FeatureState(self.look(observations), member)

    def predict(self, state: FeatureState, actions: Tensor) -> Prediction[FeatureState]:
        """Predict what follows one chunk, [B, C, A] with the C of the data."""
        chunk = self.normalize(actions)
        later, success = self.dynamics(state.features, chunk, state.member)
        return Prediction(
            state._replace(features=later), success, lambda: self.dynamics.disagreement(state.features, chunk)
        )

    def decode(self, state: FeatureState) -> Tensor:
        """Return pictures of a state. Raises ConfigError without a decoder."""
        if self.decoder is None:
            raise ConfigError("this world model has no decoder; fit one with `feature_decoder.fit_decoder`")
        return self.decoder.pictures(state.features)


def _with_one(rows: Tensor) -> Tensor:
    return torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
