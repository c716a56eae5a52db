"""Ensembles that keep bootstrapped values bounded at states which data never correct: RAVL, arXiv 2402.12527.

A rollout that is cut after k steps leaves states that occur only as its end: they are bootstrap targets and are never
trained on. Whatever a network believes of them is carried into the values of real states and back, and grows. The
minimum over N critics is low exactly where they disagree, and the diversity term makes them disagree there.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


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
