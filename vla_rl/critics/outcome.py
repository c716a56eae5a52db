"""The chance of success at a state, on real outcomes: what imagined branches are valued by.

K networks. The i-th never sees the i-th part of the episodes, and keeps its best weights on that part. With few
episodes a network memorizes their outcomes within some hundred steps.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_rl.core.progress import track
from vla_rl.core.validation import check_ranges
from vla_rl.policies.layers import EnsembleHead, ScaledInputs, scaled

_HIDDEN = (256, 256)  # widths of the hidden layers, each with a LayerNorm
_LOOK_EVERY = 25  # gradient steps between two looks at the parts that were left out
_BATCH_SIZE = 256
_LEARNING_RATE, _WEIGHT_DECAY = 1e-3, 0.05  # of AdamW
_INPUT_NOISE = 0.05  # standard deviation, on normalized inputs


@dataclass(frozen=True)
class OutcomeValueConfig:
    """How long the value learns.

    Attributes:
        steps: gradient steps at most.
    """

    steps: int = 125

    def __post_init__(self) -> None:
        check_ranges(self, "value", steps=">= 1")


class OutcomeValue(ScaledInputs):
    """P(success | features, tick), by K networks. The states that it will learn from, [N, I], give the scales."""

    def __init__(self, rows: Tensor, folds: int) -> None:
        super().__init__(rows.shape[1])
        self.fit_inputs(rows)
        self.head = EnsembleHead(folds, rows.shape[1], _HIDDEN, 1, normalized=True)

    def logits(self, rows: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """[K, B] of rows [B, I]; ``noise`` is added to the normalized rows."""
        return self.head(scaled(rows, self.mean, self.scale) + noise)[..., 0]

    @torch.no_grad()
    def forward(self, rows: Tensor, fold: Tensor) -> Tensor:
        """Return the chance [B] at rows [B, I], by the networks that have not learned from these folds, int64 [B]."""
        return self.head.of_member(scaled(rows, self.mean, self.scale), fold)[:, 0].sigmoid()


def fit_outcome_value(
    rows: Tensor, label: Tensor, fold: Tensor, folds: int, config: OutcomeValueConfig, generator: torch.Generator
) -> tuple[OutcomeValue, float]:
    """Train from scratch; the first weights follow from torch's own generator.

    Args:
        rows: [N, I], features and tick of states.
        label: float [N], 1 where the episode succeeded.
        fold: int64 [N], the part, below K, of each state's episode.
        folds: K, at least 2.
        config: see `OutcomeValueConfig`.
        generator: of the CPU, of batches and noise.

    Returns:
        the value, and its Brier score on what was left out.
    """
    value = OutcomeValue(rows, folds).to(rows.device)
    optimizer = torch.optim.AdamW(value.parameters(), _LEARNING_RATE, weight_decay=_WEIGHT_DECAY, fused=True)
    members = torch.arange(folds, device=rows.device)
    seen = (members[:, None] != fold).to(rows)
    best = torch.full((folds,), torch.inf, device=rows.device)
    kept = [parameter.detach().clone() for parameter in value.parameters()]
    for step in track(range(config.steps + 1), "value", "step"):
        if step % _LOOK_EVERY == 0:
            with torch.no_grad():
                error = (value.logits(rows).sigmoid() - label).square() * (1 - seen)
            brier = error.sum(1) / (1 - seen).sum(1).clamp(min=1)
            better = brier < best
            best = torch.where(better, brier, best)
            for parameter, keep in zip(value.parameters(), kept, strict=True):
                keep[better] = parameter.detach()[better]
        chosen = torch.randint(len(rows), (_BATCH_SIZE,), generator=generator)
        noise = _INPUT_NOISE * torch.randn(rows[chosen].shape, generator=generator).to(rows)
        logits = value.logits(rows[chosen], noise)
        loss = F.binary_cross_entropy_with_logits(logits, label[chosen].expand_as(logits), reduction="none")
        loss = (loss * seen[:, chosen]).sum() / seen[:, chosen].sum().clamp(min=1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for parameter, keep in zip(value.parameters(), kept, strict=True):
            parameter.copy_(keep)
    return value.eval(), float((value(rows, fold) - label).square().mean())
