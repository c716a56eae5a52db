"""Real-time chunking: guide a flow policy's sampling towards actions that are already scheduled (RTC, arXiv
2506.07339). Torch.

Everything here takes a callable ``velocity(actions [B, H, A], tau) -> [B, H, A]`` with tau = 0 at noise and tau = 1 at
clean data, so that it serves any flow policy. Policies that count time the other way round (lerobot's SmolVLA and pi0)
go through `from_noise_time`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vla_rl.core.flow_sampling import guidance_strength

Velocity = Callable[[Tensor, float], Tensor]


def guided_velocity(
    velocity: Velocity, actions: Tensor, tau: float, target: Tensor, weights: Tensor, beta: float, exact_gradient: bool
) -> Tensor:
    """Return the velocity with its pull towards the target, v + min(beta, ...) (Y - A_hat)^T diag(W) dA_hat/dA_tau with
    A_hat = A_tau + (1 - tau) v.

    Args:
        velocity: of the policy.
        actions: A_tau, [B, H, A].
        tau: flow time in [0, 1).
        target: Y, [B, H, A]; rows of weight 0 are not read.
        weights: W, [H], from `vla_rl.core.flow_sampling.guidance_weights`.
        beta: largest strength; the paper uses 5.
        exact_gradient: True: the vector-Jacobian product through the network. False: the Jacobian replaced by the
            identity, which spares the backward pass and is another algorithm.

    Returns:
        [B, H, A], without a graph.
    """
    rows = weights[:, None]
    with torch.set_grad_enabled(exact_gradient):
        point = actions.detach().requires_grad_(exact_gradient)
        speed = velocity(point, tau)
        clean = point + (1 - tau) * speed
        pull = torch.where(rows > 0, rows * (target - clean.detach()), 0.0)
        if exact_gradient:
            # Of a scalar: with grad_outputs torch imports its symbolic mathematics, seconds in the middle of a
            # control loop.
            (pull,) = torch.autograd.grad((clean * pull).sum(), point)
    return speed.detach() + guidance_strength(tau, beta) * pull


def sample_guided(
    velocity: Velocity,
    noise: Tensor,
    target: Tensor,
    weights: Tensor,
    steps: int = 5,
    beta: float = 5.0,
    exact_gradient: bool = True,
) -> Tensor:
    """Integrate the guided flow with Euler steps, noise [B, H, A] -> actions [B, H, A], normalized units."""
    actions = noise
    for step in range(steps):
        pulled = guided_velocity(velocity, actions, step / steps, target, weights, beta, exact_gradient)
        actions = actions + pulled / steps
    return actions


def from_noise_time(velocity: Velocity) -> Velocity:
    """Turn a velocity field in time from 1 (noise) to 0 (data), as lerobot's, into one of this module."""
    return lambda actions, tau: -velocity(actions, 1.0 - tau)
