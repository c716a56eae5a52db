"""The alarm of branches: before anything is imagined in a world, it is asked what the newest real chunks did.

It is not believed if it explains clearly less than of what it learnt from, as where a camera was moved or colours
changed; nor if it explains more with the actions of a tick earlier or later than with those that were sent, as where
pictures and actions went out of step. A gain that is imagined is no alarm: it is as high in a world that is wrong.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from world_model.branches import World

_LEAST_SCALE = 1e-3
# Neighbouring lags differ by a sixth where a chunk has six actions; by less, it is chance.
_CLEARLY = 0.9


class Happened(NamedTuple):
    """What real chunks did, N of them.

    Attributes:
        features: [N, F], what the policy saw when each began.
        chunks: by lag in ticks, [N, C, A]: what was sent from so many ticks later on, raw units; 0: the chunk itself.
        later: [N, F], what the policy saw after the chunk.
    """

    features: Tensor
    chunks: Mapping[int, Tensor]
    later: Tensor


@torch.no_grad()
def unexplained(world: World, happened: Happened) -> dict[int, float]:
    """By lag, the share of the features' change that the mean over a world's members does not foretell: 0 is perfect, 1
    nothing. Features that never change are left out.
    """
    change = happened.later - happened.features
    scale = change.std(0)
    varying = scale > _LEAST_SCALE
    found = {}
    for lag, chunk in happened.chunks.items():
        members = (torch.full((len(chunk),), member, device=chunk.device) for member in range(world.members))
        later = torch.stack([world.step(happened.features, chunk, member)[0] for member in members]).mean(0)
        found[lag] = float(((later - happened.later) / scale)[:, varying].square().mean())
    return found


def alarm(errors: Mapping[int, float], usual: float, ratio: float) -> str:
    """Why a world is not believed; empty if it is.

    Args:
        errors: of `unexplained`.
        usual: the share that is left unexplained of what it learnt from.
        ratio: of the former to the latter that is borne; infinite: every world is believed.
    """
    if ratio == float("inf"):
        return ""
    best = min(errors, key=lambda lag: errors[lag])
    if errors[best] < _CLEARLY * errors[0]:
        when = f"{abs(best)} tick {'later' if best > 0 else 'earlier'}"
        return f"with actions {when} it explains more than with those that were sent: it is out of step with the robot"
    if errors[0] > ratio * usual:
        return (
            f"it leaves {errors[0]:.0%} of what the newest chunks did unexplained, and {usual:.0%} of what it learnt "
            f"from: more than {ratio:g} times as much"
        )
    return ""
