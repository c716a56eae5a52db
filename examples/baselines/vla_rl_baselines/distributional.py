"""RECAP's value function: a distribution over returns in 201 bins. arXiv 2511.14759 (pi*0.6).

The reward is -1 per step, 0 at the terminal success and -C, a large constant, at the end of a failure. The return to
the end of the episode is divided by the length of the task's longest episode and clipped to [-1, 0]. A success is worth
minus the fraction of the time that it still takes, a failure -1.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.core.errors import ConfigError
from vla_rl.critics.backbones import Backbone
from vla_rl.policies.layers import EnsembleHead


@dataclass(frozen=True)
class DistributionalConfig:
    """Architecture and returns.

    Attributes:
        backbone: see `vla_rl.critics.backbones`.
        hidden: widths of the head's hidden layers.
        bins: number of bins over [-1, 0].
    """

    backbone: Literal["own", "policy", "state"] = "own"
    hidden: tuple[int, ...] = (128, 128)
    bins: int = 201

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise ConfigError(f"bins is {self.bins}; a distribution needs at least 2")


class DistributionalCritic(nn.Module):
    """Observation -> logits of the bins of the return.

    Args:
        backbone: see `vla_rl.critics.backbones`.
        config: architecture.
    """

    centers: Tensor

    def __init__(self, backbone: Backbone, config: DistributionalConfig) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = EnsembleHead(1, backbone.width, config.hidden, config.bins)
        self.register_buffer("centers", bin_centres(config.bins), persistent=False)

    def forward(self, images: dict[str, Tensor], state: Tensor, text: Tensor) -> Tensor:
        """Logits [B, bins]. Inputs as `Backbone.__call__`."""
        return self.head(self.backbone(images, state, text))[0]

    def value(self, logits: Tensor) -> Tensor:
        """The expected return [B], in (-1, 0)."""
        return logits.softmax(-1) @ self.centers


def bin_centres(bins: int) -> Tensor:
    """Centers of equally wide bins of [-1, 0], [bins]."""
    return (torch.arange(bins) + 0.5) / bins - 1.0


def bin_of(returns: Tensor, bins: int) -> Tensor:
    """The bin that a normalized return falls into, int64; returns outside [-1, 0] go to the outermost bins."""
    return ((returns + 1.0) * bins).floor().long().clamp(0, bins - 1)


def distributional_loss(logits: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy of the bin of the return over the masked samples, 0 if there are none.

    Args:
        logits: [B, bins].
        returns: normalized Monte-Carlo returns, [B].
        mask: bool [B].
    """
    per_sample = F.cross_entropy(logits, bin_of(returns, logits.shape[-1]), reduction="none")
    return torch.where(mask, per_sample, 0.0).sum() / mask.sum().clamp(min=1)


def normalized_return(steps_left: Tensor, success: Tensor, task_steps: Tensor) -> Tensor:
    """The Monte-Carlo return in [-1, 0], [B].

    Args:
        steps_left: steps from here to the last step of the episode, 0 on it.
        success: bool, the outcome.
        task_steps: the length of the task's longest episode.
    """
    return torch.where(success, -(steps_left / task_steps).clamp(max=1.0), -1.0)
