"""The loss of each sample, for policies of lerobot that only give the mean over a batch, or that count steps without a
target.

lerobot's own ``forward`` runs unchanged, while a recorder listens to what its network is given and returns; the
reduction to samples is done here. So there is no copy of lerobot's training code to keep in step.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from vla_rl.core.errors import UserError, did_you_mean

ACTION, IS_PAD = "action", "action_is_pad"


class Call(NamedTuple):
    """One recorded call."""

    arguments: tuple[Any, ...]
    result: Any


StepErrors = tuple[Tensor, Tensor | float]
"""The error of each action, [B, H, A], and what the loss of each sample has beside it, [B]: a divergence, or 0."""


def per_sample_loss(policy: Any, batch: dict[str, Any], counted: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Return the loss of each sample of a lerobot policy in training mode.

    Args:
        batch: As the policy's own preprocessor gave it, with ``action`` [B, H, A].
        counted: bool [B, H, A], the actions that have a loss.

    Returns:
        [B], the policy's own loss with its mean taken over the counted actions of each sample, and logs.

    Raises:
        UserError: For a kind of policy that this function does not know.
    """
    if policy.name not in _READERS:
        raise UserError(
            f"lerobot's policy {policy.name!r} cannot be trained here.{did_you_mean(policy.name, _READERS)}"
        )
    padded = {**batch, IS_PAD: ~counted.any(-1)}
    error, extra = _READERS[policy.name](policy, padded)
    mean = (error * counted).sum((1, 2)) / counted.sum((1, 2)).clamp(min=1)
    # A sample without a counted action has no loss, not even its divergence.
    loss = mean + extra * counted.any(-1).any(-1)
    return loss, {"error": float(mean.detach().mean())}


def _read_act(policy: Any, batch: dict[str, Any]) -> StepErrors:
    with recorded(policy.model, "forward") as calls:
        policy.forward(batch)
    actions, (mean, log_variance) = calls[0].result
    error = (batch[ACTION] - actions).abs()
    if log_variance is None:
        return error, 0.0
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)  # [B]
    return error, policy.config.kl_weight * divergence


def _read_diffusion(policy: Any, batch: dict[str, Any]) -> StepErrors:
    model = policy.diffusion
    with recorded(model.unet, "forward") as predictions, recorded(model.noise_scheduler, "add_noise") as noisings:
        policy.forward(batch)
    target = noisings[0].arguments[1] if policy.config.prediction_type == "epsilon" else batch[ACTION]
    return (predictions[0].result - target).square(), 0.0


def _read_flow(policy: Any, batch: dict[str, Any]) -> StepErrors:
    with recorded(policy.model, "forward") as calls:
        policy.forward(batch)
    return calls[0].result[..., : batch[ACTION].shape[-1]], 0.0  # the others are filled up


_READERS: dict[str, Callable[[Any, dict[str, Any]], StepErrors]] = {
    "act": _read_act,
    "diffusion": _read_diffusion,
    "smolvla": _read_flow,
    "pi0": _read_flow,
    "pi05": _read_flow,
}


@contextlib.contextmanager
def recorded(owner: Any, name: str) -> Iterator[list[Call]]:
    """Record the calls of one object's method, which works as before."""
    calls: list[Call] = []
    method = getattr(owner, name)

    def listening(*arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        calls.append(Call(arguments, result))
        return result

    setattr(owner, name, listening)
    try:
        yield calls
    finally:
        delattr(owner, name)  # the class's own is seen again
