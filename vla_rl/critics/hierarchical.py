"""The hierarchical critic: will it succeed from here, and if so, how soon? Two heads on one backbone.

Source: arXiv 2606.17043 (HABC). Viability: a logit z_v, p_v = sigmoid(z_v), learned from outcomes by cross-entropy.
Efficiency: V_e in steps, in [-T_max, 0], learned from successes by undiscounted temporal differences. Its value at the
terminal success step is 0, n steps before it -n.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.core.errors import ConfigError
from vla_rl.core.validation import check_ranges
from vla_rl.critics.backbones import Backbone
from vla_rl.policies.layers import EnsembleHead

FEATURE_WIDTH = 128
_HIDDEN = (128,)  # widths of each head's hidden layers, behind the features phi(s) that both heads share
HUBER_DELTA = 1.0  # the paper's, in units of ``efficiency_unit_steps``


@dataclass(frozen=True)
class ViabilityConfig:
    """Architecture. The paper states none of it.

    Attributes:
        backbone: ``own``: a small encoder of the critic's own; ``policy``: the policy's features, detached; ``state``:
            the state alone.
        target_tau: per-update rate at which the target network follows; None: bootstrap from the network itself.
    """

    backbone: Literal["own", "policy", "state"] = "own"
    target_tau: float | None = 0.01

    def __post_init__(self) -> None:
        if self.target_tau is not None and not 0 < self.target_tau <= 1:
            raise ConfigError(
                f"critic.target_tau is {self.target_tau}; it must be in (0, 1], or null for no target network"
            )


@dataclass(frozen=True)
class CriticConfig(ViabilityConfig):
    """Architecture, and targets of the efficiency value.

    Attributes:
        efficiency_unit_steps: the unit u of the efficiency head. Head and target are divided by u before the Huber
            loss, so it turns linear beyond u steps. Where targets scatter by more than that, V_e is pulled from their
            mean towards their median. 1 is the paper.
        efficiency_return_steps: n of the n-step target; 1 is the paper. The length of an episode or more gives the
            Monte-Carlo target, which needs no bootstrap and no second forward pass.
    """

    efficiency_unit_steps: float = 1.0
    efficiency_return_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, "critic", efficiency_unit_steps="> 0", efficiency_return_steps=">= 1")


class CriticOutput(NamedTuple):
    """What the heads say, [B] each.

    The efficiency is in steps, as the linear head gives it: not yet clamped to [-T_max, 0], so that gradients flow.
    """

    viability_logit: Tensor
    efficiency: Tensor


class HierarchicalCritic(nn.Module):
    """Observation -> viability logit and efficiency value, at least -``max_steps`` (T_max), on one of the `backbones`.

    A config without options of the efficiency value leaves its head untrained.
    """

    max_steps: Tensor

    def __init__(self, backbone: Backbone, config: ViabilityConfig, max_steps: int) -> None:
        super().__init__()
        self.config = config
        # A buffer, so that a resumed run keeps the range that its values were learned in.
        self.register_buffer("max_steps", torch.tensor(float(max_steps)))
        self.backbone = backbone
        self.efficiency_unit_steps = config.efficiency_unit_steps if isinstance(config, CriticConfig) else 1.0
        self.shared = nn.Sequential(nn.Linear(backbone.width, FEATURE_WIDTH), nn.ReLU())
        sizes = (1, FEATURE_WIDTH, _HIDDEN, 1)
        self.viability_head = EnsembleHead(*sizes)
        self.efficiency_head = EnsembleHead(*sizes)

    def forward(self, images: dict[str, Tensor], state: Tensor, text: Tensor) -> CriticOutput:
        """Inputs as `Backbone.__call__`."""
        features = self.shared(self.backbone(images, state, text))
        efficiency = self.efficiency_head(features)[0, :, 0] * self.efficiency_unit_steps
        return CriticOutput(self.viability_head(features)[0, :, 0], efficiency)

    def values(self, output: CriticOutput) -> tuple[Tensor, Tensor]:
        """z_v [B] and V_e [B] in [-T_max, 0]."""
        return output.viability_logit, output.efficiency.clamp(max=0.0).maximum(-self.max_steps)


def viability_loss(logit: Tensor, label: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy of z_v [B] over the labeled samples, 0 if there are none: labels [B] in [0, 1], mask bool [B]."""
    per_sample = F.binary_cross_entropy_with_logits(logit, label, reduction="none")
    return masked_mean(per_sample, mask)


def efficiency_target(later: Tensor, elapsed: Tensor, terminal: Tensor, max_steps: Tensor) -> Tensor:
    """y_e [B] in steps: -elapsed at the terminal success (0 on that step itself), otherwise -elapsed + V_e(s').

    Args:
        later, elapsed: V_e(s') and steps from s to s', [B].
        terminal: bool [B], the episode succeeded within the n steps, so that s' is its terminal success step.
        max_steps: T_max.
    """
    return (torch.where(terminal, 0.0, later) - elapsed).maximum(-max_steps)


def efficiency_loss(efficiency: Tensor, target: Tensor, mask: Tensor, unit_steps: float) -> Tensor:
    """Huber loss of V_e [B] against y_e [B] over the masked samples, 0 if there are none. See `CriticConfig`."""
    per_sample = F.huber_loss(efficiency / unit_steps, target / unit_steps, reduction="none", delta=HUBER_DELTA)
    return masked_mean(per_sample, mask)


def masked_mean(per_sample: Tensor, mask: Tensor) -> Tensor:
    """Mean of [B] over bool [B], 0 where it is empty."""
    return torch.where(mask, per_sample, 0.0).sum() / mask.sum().clamp(min=1)
