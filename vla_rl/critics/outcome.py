"""The chance of success at a state, on real outcomes: what imagined branches are valued by.

K networks, the i-th of which never sees the i-th part of the episodes, and is kept as it was when it judged that part
best: with few episodes a network knows their outcomes by heart within some hundred steps.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.core.progress import track
from vla_rl.core.ranges import check_ranges
from vla_rl.policies.heads import EnsembleHead, scaled

_LEAST_SCALE = 1e-2


@dataclass(frozen=True)
class OutcomeValueConfig:
    """Architecture and optimisation.

    Attributes:
        hidden: widths of the hidden layers, each with a LayerNorm.
        steps: gradient steps at most.
        look_every: gradient steps between two looks at the parts that were left out.
        batch_size: states per step.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
        input_noise: standard deviation of the noise on normalised inputs.
    """

    hidden: tuple[int, ...] = (256, 256)
    steps: int = 125
    look_every: int = 25
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    input_noise: float = 0.05

    def __post_init__(self) -> None:
        check_ranges(self, "value", steps=">= 1", look_every=">= 1", batch_size=">= 1", hidden=">= 1")
        check_ranges(self, "value", learning_rate="> 0", weight_decay=">= 0", input_noise=">= 0")


class OutcomeValue(nn.Module):
    """P(success | features, tick), by K networks.

    Args:
        rows: [N, I], the states that it will learn from, for their scales.
        folds: K.
        config: see `OutcomeValueConfig`.
    """

    def __init__(self, rows: Tensor, folds: int, config: OutcomeValueConfig) -> None:
        super().__init__()
        self.config = config
        self._mean, self._scale = rows.mean(0), rows.std(0, correction=0) + _LEAST_SCALE
        self.head = EnsembleHead(folds, rows.shape[1], config.hidden, 1, normalised=True)

    def logits(self, rows: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """[K, B] of rows [B, I]; ``noise`` is added to the normalised rows."""
        return self.head(scaled(rows, self._mean, self._scale) + noise)[..., 0]

    @torch.no_grad()
    def forward(self, rows: Tensor, fold: Tensor) -> Tensor:
        """The chance [B] at rows [B, I], by the networks that have not learnt from these folds, int64 [B]."""
        return self.head.of_member(scaled(rows, self._mean, self._scale), fold)[:, 0].sigmoid()


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
    value = OutcomeValue(rows, folds, config).to(rows.device)
    optimizer = torch.optim.AdamW(value.parameters(), config.learning_rate, weight_decay=config.weight_decay)
    members = torch.arange(folds, device=rows.device)
    seen = (members[:, None] != fold).to(rows)
    best = torch.full((folds,), torch.inf, device=rows.device)
    kept = [parameter.detach().clone() for parameter in value.parameters()]
    for step in track(range(config.steps + 1), "value", "step"):
        if step % config.look_every == 0:
            with torch.no_grad():
                error = (value.logits(rows).sigmoid() - label).square() * (1 - seen)
            brier = error.sum(1) / (1 - seen).sum(1).clamp(min=1)
            better = brier < best
            best = torch.where(better, brier, best)
            for parameter, keep in zip(value.parameters(), kept, strict=True):
                keep[better] = parameter.detach()[better]
        chosen = torch.randint(len(rows), (config.batch_size,), generator=generator)
        noise = config.input_noise * torch.randn(rows[chosen].shape, generator=generator).to(rows)
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
