"""Ensembles that keep bootstrapped values bounded at states which data never correct: RAVL, arXiv 2402.12527.

A rollout that is cut after k steps leaves states that occur only as its end: they are bootstrap targets and are never
trained on. Whatever a network believes of them is carried into the values of real states and back, and grows. The
minimum over N critics is low exactly where they disagree, and the diversity term makes them disagree there.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from vla_rl.core.errors import ConfigError
from vla_rl.policies.heads import EnsembleHead


@dataclass(frozen=True)
class EnsembleConfig:
    """RAVL's critics, with its defaults.

    Attributes:
        members: N.
        diversity: eta, weight of the diversity term.
        hidden: widths of the hidden layers.
        discount: gamma.
    """

    members: int = 10
    diversity: float = 1.0
    hidden: tuple[int, ...] = (256, 256)
    discount: float = 0.99

    def __post_init__(self) -> None:
        if self.members < 1 or (self.diversity and self.members == 1):
            raise ConfigError(
                f"an ensemble of {self.members} has no diversity; set members to 2 or more, or diversity to 0"
            )


class ActionValueEnsemble(nn.Module):
    """N critics Q_i(s, a)."""

    def __init__(self, features: int, action_dim: int, config: EnsembleConfig) -> None:
        super().__init__()
        self.config = config
        self.head = EnsembleHead(config.members, features + action_dim, config.hidden, 1)

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Features [B, F] and actions [B, A] -> values [N, B]."""
        return self.head(torch.cat([features, action], -1))[..., 0]

    def target(self, reward: Tensor, done: Tensor, features: Tensor, action: Tensor) -> Tensor:
        """y [B] of transitions to features [B, F] and the policy's actions [B, A] there, see `pessimistic_target`."""
        with torch.no_grad():
            return pessimistic_target(reward, done, self(features, action), self.config.discount)

    def loss(self, features: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Squared error of every member against y [B], averaged, plus eta times the diversity term over actions."""
        error = (self(features, action) - target).square().mean()
        if not self.config.diversity:
            return error
        return error + self.config.diversity * diversity_loss(lambda point: self(features, point), action)


def pessimistic_target(reward: Tensor, done: Tensor, later: Tensor, discount: float) -> Tensor:
    """r + gamma (1 - d) min_i Q_i(s', a'), [B].

    Args:
        reward: [B].
        done: bool [B], the task ended; a rollout that was merely cut is not done.
        later: Q_i(s', a'), [N, B].
        discount: gamma.
    """
    return reward + discount * torch.where(done, 0.0, later.amin(0))


def diversity_loss(values: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    """1 / (N - 1) * mean over the batch of sum_{i != j} <g_i, g_j>, with g_i the unit-normalised gradient of member i.

    N for members with equal gradients, 0 for orthogonal ones. Multiply by eta and add to the critics' loss.

    Args:
        values: the members' values [N, B] of points [B, D]: actions (RAVL), or features for critics of states.
        point: [B, D], where the gradients are taken.
    """
    point = point.detach().requires_grad_()
    outputs = values(point)
    gradients = torch.stack(
        [torch.autograd.grad(member.sum(), point, create_graph=True)[0] for member in outputs]
    )  # [N, B, D]
    unit = nn.functional.normalize(gradients, dim=-1)
    squared_sum = unit.sum(0).square().sum(-1)  # sum over all i, j
    own = unit.square().sum((0, -1))
    return (squared_sum - own).mean() / (len(outputs) - 1)


def target_only_states(states: ArrayLike, next_states: ArrayLike, done: ArrayLike) -> NDArray[np.generic]:
    """The states that a data set only ever reaches: bootstrap targets that no sample corrects.

    Args:
        states: [N], discrete state numbers of the transitions.
        next_states: [N].
        done: bool [N]; what follows a finished task is no bootstrap target.

    Returns:
        sorted, each once.
    """
    targets = np.asarray(next_states)[~np.asarray(done, dtype=bool)]
    return np.setdiff1d(targets, np.asarray(states))
