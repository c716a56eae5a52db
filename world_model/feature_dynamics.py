"""The short-range world model: what the policy will see after a chunk, in the policy's own frozen features.

It is made for rollouts of a few chunks from real steps, thousands at a time, without a picture. A ridge regression
carries what is linear, M small networks the rest; each is a world of its own. The video model (`dynamics`) remains for
long horizons and for people to look at.

Before any rollout, `out_of_distribution` checks whether the newest chunks are out of distribution. It needs dynamics
that have not seen them: dynamics that have would have learned what is wrong with them. The imagined gain is no check,
since it is as high in a wrong world.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.core.progress import track
from vla_rl.core.validation import check_ranges
from vla_rl.policies.layers import EnsembleHead, limited

_LEAST_SCALE = 1e-3
_RIDGE = 10.0  # of the linear part
_INPUT_NOISE = 0.03  # standard deviation of the noise on normalized inputs
_LEARNING_RATE, _WEIGHT_DECAY = 1e-3, 0.03  # of AdamW; the rate falls to 0 by a cosine
_BATCH_SIZE = 256
_HIDDEN = (384, 384)  # widths of the hidden layers, each with a LayerNorm
# Errors at neighboring lags differ by a sixth where a chunk has six actions. A smaller difference is chance.
_CLEARLY = 0.9
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
    def forward(self, features: Tensor, actions: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
        """Go one chunk on, each row in the world of its member, int64 [B].

        Args:
            features: [B, F].
            actions: [B, C, A], normalized.

        Returns:
            Features [B, F] after the chunk, and the chance [B] that the episode succeeds within it.
        """
        rows = self._rows(features, actions)
        out = self.head.of_member(rows, member)
        later = features.clone()
        later[:, self.varying] += (_with_one(rows) @ self._linear + out[:, :-1]) * self._change_scale
        return later, out[:, -1].sigmoid()

    @torch.no_grad()
    def expected(self, features: Tensor, actions: Tensor) -> Tensor:
        """Features [B, F] after a chunk, the mean over members; arguments as of `forward`."""
        members = (
            torch.full((len(features),), member, device=features.device) for member in range(self.config.members)
        )
        return torch.stack([self(features, actions, member)[0] for member in members]).mean(0)

    @torch.no_grad()
    def unexplained(self, data: Transitions) -> float:
        """Return the fraction of the features' change that the mean over members leaves unexplained (1 - R2)."""
        rows = self._rows(data.features, data.actions)[data.lasted]
        change = (data.later - data.features)[data.lasted][:, self.varying] / self._change_scale
        predicted = _with_one(rows) @ self._linear + self.head(rows).mean(0)[:, :-1]
        return float((predicted - change).square().mean() / (change - change.mean(0)).square().mean())


def fit_dynamics(data: Transitions, config: FeatureDynamicsConfig, generator: torch.Generator) -> FeatureDynamics:
    """Train a model from scratch on at least one transition that lasted.

    Its first weights follow from torch's own generator. The given one draws batches and noise on the CPU.
    """
    dynamics = FeatureDynamics(data, config)
    dynamics.to(data.features.device)
    optimizer = torch.optim.AdamW(dynamics.parameters(), _LEARNING_RATE, weight_decay=_WEIGHT_DECAY, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    for _ in track(range(config.steps), "dynamics", "step"):
        chosen = torch.randint(len(data.features), (_BATCH_SIZE,), generator=generator)
        loss = dynamics.loss(Transitions(*(part[chosen] for part in data)), generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    return dynamics.eval()


class RealChunks(NamedTuple):
    """What real chunks did, N of them.

    Attributes:
        features: [N, F], what the policy saw when each began.
        chunks: by lag in ticks, [N, C, A]: what was sent from so many ticks later on, normalized; 0: the chunk itself.
        later: [N, F], what the policy saw after the chunk.
    """

    features: Tensor
    chunks: Mapping[int, Tensor]
    later: Tensor


@torch.no_grad()
def unexplained(dynamics: FeatureDynamics, happened: RealChunks) -> dict[int, float]:
    """Return, by lag, the fraction of the features' change that the mean over members leaves unexplained (1 - R2).
    Features that never change are left out.
    """
    change = happened.later - happened.features
    scale = change.std(0)
    varying = scale > _LEAST_SCALE
    found = {}
    for lag, chunk in happened.chunks.items():
        later = dynamics.expected(happened.features, chunk)
        found[lag] = float(((later - happened.later) / scale)[:, varying].square().mean())
    return found


def out_of_distribution(errors: Mapping[int, float], usual: float, ratio: float) -> str:
    """Say why the newest chunks are out of distribution; empty if they are not.

    Either the dynamics explain clearly less of the newest chunks than of older unseen ones: a camera was moved, say.
    Or they explain more with the actions of a tick earlier or later, as where images and actions are out of step.

    Args:
        errors: Of `unexplained`, for the newest chunks.
        usual: Fraction that is left unexplained of older chunks, which the dynamics have not seen either.
        ratio: Largest accepted ratio of the two.
    """
    best = min(errors, key=lambda lag: errors[lag])
    if errors[best] < _CLEARLY * errors[0]:
        when = f"{abs(best)} tick {'later' if best > 0 else 'earlier'}"
        return (
            f"actions {when} explain more of what the newest chunks did than those that were sent: pictures and "
            "actions are out of step"
        )
    if errors[0] > ratio * usual:
        return (
            f"the episodes before leave {errors[0]:.0%} of what the newest chunks did unexplained, and {usual:.0%} of "
            f"what older ones did: more than {ratio:g} times as much"
        )
    return ""


def _with_one(rows: Tensor) -> Tensor:
    return torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
