"""The out-of-distribution check: whether a world model that has not seen them predicts the newest episodes.

It runs before any rollout, with a model that has seen neither the newest nor some older episodes: one that has would
have learned what is wrong with them. The imagined gain is no check, since it is as high in a wrong world.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from world_model.protocol import Observations, WorldModel

_LEAST_SCALE = 1e-3
# Errors at neighboring lags differ by a sixth where a chunk has six actions. A smaller difference is chance.
_CLEARLY = 0.9


@torch.no_grad()
def unexplained(
    world: WorldModel[Any], see: Callable[[Any], Tensor], before: Observations, actions: Tensor, after: Observations
) -> float:
    """Return the fraction of what B real chunks changed that a world model leaves unexplained (1 - R2).
    Features that never change are left out.

    Args:
        world: The model.
        see: State -> features [B, F].
        before, after: Where the chunks began and ended.
        actions: [B, C, A], raw units.
    """
    start, real = world.encode(before), see(world.encode(after))
    scale = (real - see(start)).std(0)
    error = (see(world.predict(start, actions).state) - real) / scale
    return float(error[:, scale > _LEAST_SCALE].square().mean())


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
