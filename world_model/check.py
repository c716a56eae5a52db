"""The out-of-distribution check: whether a world model that has not seen them predicts the newest episodes.

It runs before any rollout. Its model has seen neither the newest nor some older episodes. One that has would have
learned what is wrong with them. The imagined gain is no check, since it is as high in a wrong world.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from world_model.protocol import Observations, WorldModel

_LEAST_SCALE = 1e-3
_CLEARLY = 0.88  # a smaller difference between the errors at neighboring lags is chance


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


def out_of_distribution(newest: Mapping[int, float], older: Mapping[int, float], ratio: float) -> str:
    """Say why the newest chunks are out of distribution; empty if they are not.

    Either the model explains clearly less of the newest chunks than of older unseen ones: a camera was moved, say. Or
    the actions of a tick earlier or later explain clearly more of them than of the older ones. Then pictures and
    actions are out of step. Errors are compared with those at lag 0, since some episodes are easier to predict.

    Args:
        newest, older: By lag of the actions in ticks, -1 to 1, the fraction of each group that is left unexplained. The
            model has seen neither.
        ratio: Largest accepted ratio of the two at lag 0.
    """
    change = {lag: newest[lag] / older[lag] for lag in (-1, 0, 1)}
    lag = min((-1, 1), key=lambda lag: change[lag])
    if change[lag] < _CLEARLY * change[0] and (change[lag] < _CLEARLY or change[0] <= ratio):
        when = f"a tick {'later' if lag > 0 else 'earlier'}"
        lower = 1 - change[lag] / change[0]
        return f"pictures and actions are out of step: with actions {when} the error is {lower:.0%} lower than expected"
    if newest[0] > ratio * older[0]:
        return (
            f"the episodes before leave {newest[0]:.0%} of what the newest chunks did unexplained, and {older[0]:.0%} "
            f"of what older ones did: more than {ratio:g} times as much"
        )
    return ""
