"""The alarm of branches: before anything is imagined, dynamics that have not seen the newest real chunks are asked what
these did.

A world is not believed if they explain clearly less of them than of older chunks that they have not seen either, as
where a camera was moved or colours changed; nor if they explain more with the actions of a tick earlier or later than
with those that were sent, as where pictures and actions went out of step. Dynamics that have learnt from the newest
chunks would have learnt what is wrong with them. A gain that is imagined is no alarm: it is as high in a world that is
wrong.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from world_model.feature_dynamics import FeatureDynamics

_LEAST_SCALE = 1e-3
# Neighbouring lags differ by a sixth where a chunk has six actions; by less, it is chance.
_CLEARLY = 0.9


class Happened(NamedTuple):
    """What real chunks did, N of them.

    Attributes:
        features: [N, F], what the policy saw when each began.
        chunks: by lag in ticks, [N, C, A]: what was sent from so many ticks later on, normalised; 0: the chunk itself.
        later: [N, F], what the policy saw after the chunk.
    """

    features: Tensor
    chunks: Mapping[int, Tensor]
    later: Tensor


@torch.no_grad()
def unexplained(dynamics: FeatureDynamics, happened: Happened) -> dict[int, float]:
    """By lag, the share of the features' change that the mean over members does not foretell: 0 is perfect, 1 nothing.
    Features that never change are left out.
    """
    change = happened.later - happened.features
    scale = change.std(0)
    varying = scale > _LEAST_SCALE
    found = {}
    for lag, chunk in happened.chunks.items():
        later = dynamics.expected(happened.features, chunk)
        found[lag] = float(((later - happened.later) / scale)[:, varying].square().mean())
    return found


def alarm(errors: Mapping[int, float], usual: float, ratio: float) -> str:
    """Why a world is not believed; empty if it is.

    Args:
        errors: of `unexplained`, of the newest chunks.
        usual: the share that is left unexplained of older ones, which were not seen either.
        ratio: of the former to the latter that is borne.
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
