"""Values -> advantages -> gate -> weights of the actor's samples. Pure functions of numpy arrays or torch tensors.

Source: arXiv 2606.17043 (HABC). With the viability logit z_v (p_v = sigmoid(z_v)) and the efficiency value V_e:

    A_v = z_v(s') - z_v(s)                                    in logits
    A_e = -n + V_e(s') - V_e(s)                               in steps, s' is n steps after s
    g   = 1 + tanh((1 - p_v(s)) A_v + p_v(s) A_e)             0 < g < 2
    pre = g: successful rollout, 0: failed rollout, 1: demonstration or intervention (or g, `weighs_people`)
    w   = pre / mean(pre)

No gradient flows through weights: callers that use torch evaluate the critics under ``torch.no_grad``. Torch is not
imported here; the functions call the methods of whichever array type they are given.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_rl.core.validation import check_ranges

type Array = Any
"""A numpy array or a torch tensor."""

SATURATED_TANH = 0.95
# eps in w = pre / max(mean(pre), eps). Not too small: 1 + tanh(very negative) is rounding error, which must not be
# blown up to a mean of 1.
SMALLEST_MEAN = 1e-3


@dataclass(frozen=True)
class WeightingConfig:
    """When samples are weighed.

    Attributes:
        warmup_steps: successes weigh 1 for so many gradient steps, while the critics are young.
    """

    warmup_steps: int = 500

    def __post_init__(self) -> None:
        check_ranges(self, "advantage", warmup_steps=">= 0")


@dataclass(frozen=True)
class HorizonConfig(WeightingConfig):
    """Options of algorithms whose advantage compares two states of an episode.

    Attributes:
        advantage_horizon: n, the steps between s and s'. The paper leaves open whether its step is a frame (1) or a
            chunk (the executed chunk length; with ``efficiency_scale`` 1/n, A_e then counts chunks).
    """

    advantage_horizon: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, "advantage", advantage_horizon=">= 1")


@dataclass(frozen=True)
class AdvantageConfig(HorizonConfig):
    """The choices between HABC's values and its weights.

    Attributes:
        efficiency_scale: multiplies A_e; 1 is the paper. A_e is in raw steps inside a tanh, which saturates at about 2.
        weighs_people: Demonstrations and interventions weigh their gate as well, where the paper has 1. Not every step
            of an imperfect person is worth as much.
    """

    efficiency_scale: float = 1.0
    weighs_people: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, "advantage", efficiency_scale=">= 0")


@dataclass(frozen=True, slots=True)
class Values:
    """What the critics say of B samples, [B] each and finite.

    They are the logits z_v(s) and z_v(s'), and V_e(s) and V_e(s') in steps.
    """

    viability_logit: Array
    viability_logit_later: Array
    efficiency: Array
    efficiency_later: Array


@dataclass(frozen=True, slots=True)
class Samples:
    """What is known of B samples. All [B]; a sample that is none of the three kinds has weight 0.

    Attributes:
        rollout, intervention, demonstration: bool, the kind of the sample.
        success: bool, the episode succeeded.
        elapsed: float, steps from s to s': the horizon, or fewer where the episode ended before.
        ended: bool, the episode ended before the horizon, so that s' is its last state.
    """

    rollout: Array
    intervention: Array
    demonstration: Array
    success: Array
    elapsed: Array
    ended: Array


def viability(logit: Array) -> Array:
    """p_v = sigmoid(z_v), without overflow for any logit."""
    return 0.5 * (1.0 + _library(logit).tanh(0.5 * logit))


def advantages(values: Values, samples: Samples) -> tuple[Array, Array]:
    """(A_v in logits, A_e in steps), float [B] each.

    The last step has no s' (unstated in the paper): s' is then the last state. After a success its V_e is 0, its
    training target, so A_e is the TD error.
    """
    later = _library(values.efficiency).where(samples.ended & samples.success, 0.0, values.efficiency_later)
    return (
        values.viability_logit_later - values.viability_logit,
        later - samples.elapsed - values.efficiency,
    )


def advantage_gate(
    viability_logit: Array, viability_advantage: Array, efficiency_advantage: Array, config: AdvantageConfig
) -> Array:
    """g of each sample, float [B], between 0 and 2."""
    p_v = viability(viability_logit)
    argument = (1.0 - p_v) * viability_advantage + p_v * (config.efficiency_scale * efficiency_advantage)
    return 1.0 + _library(argument).tanh(argument)


def gated(samples: Samples, config: AdvantageConfig) -> Array:
    """Return the samples that weigh their gate, bool [B]."""
    rollouts = samples.rollout & samples.success
    return rollouts | samples.demonstration | samples.intervention if config.weighs_people else rollouts


def pre_weights(gates: Array, samples: Samples, config: AdvantageConfig) -> Array:
    """Weights before normalization, float [B]."""
    library = _library(gates)
    by_person = library.where(samples.demonstration | samples.intervention, library.ones_like(gates), 0.0)
    return library.where(gated(samples, config), gates, by_person)


def normalize(weight: Array, samples: Samples) -> Array:
    """Weights with mean 1 over rollouts and interventions, and over demonstrations among themselves, float [B].

    The share of demonstrations in the loss so does not depend on how well the rollouts went. If all samples of a kind
    weigh 0 (a batch of failures), they stay 0.
    """
    practiced = samples.rollout | samples.intervention
    demonstrated = weight / _mean(weight, samples.demonstration).clip(min=SMALLEST_MEAN)
    return _library(weight).where(practiced, weight / _mean(weight, practiced).clip(min=SMALLEST_MEAN), demonstrated)


def weights(values: Values, samples: Samples, config: AdvantageConfig, step: int) -> tuple[Array, dict[str, float]]:
    """Return the weight of each sample in the actor's loss, float [B], and `diagnostics`.

    Values are detached. ``step`` counts gradient steps since the critics began to learn, for the warm-up.
    """
    gates = advantage_gate(values.viability_logit, *advantages(values, samples), config)
    if step < config.warmup_steps:
        gates = _library(gates).ones_like(gates)
    weight = normalize(pre_weights(gates, samples, config), samples)
    return weight, diagnostics(gates, weight, samples, config)


def diagnostics(gates: Array, weight: Array, samples: Samples, config: AdvantageConfig) -> dict[str, float]:
    """Return how the weights came out.

    Returns:
        ``gate_mean`` and ``gate_saturated`` (the fraction with |g - 1| > 0.95) over the samples that the gate weighs; 1
        and 0 where there are none. ``kept``: the fraction of the rollouts and interventions that weigh anything.
        ``effective_samples``: (sum w)^2 / (B sum w^2), 1 for equal weights.
    """
    weighed = gated(samples, config)
    practiced = samples.rollout | samples.intervention
    saturated = abs(gates - 1.0) > SATURATED_TANH
    return {
        "gate_mean": float(_mean(gates, weighed)) if weighed.any() else 1.0,
        "gate_saturated": float(_mean(saturated, weighed)),
        "kept": float(_mean(weight > 0, practiced)),
        "effective_samples": effective_samples(weight),
    }


def effective_samples(weight: Array) -> float:
    """(sum w)^2 / (B sum w^2): the fraction of the samples that would do as well at equal weight; 0 if all weigh 0."""
    square = float((weight * weight).sum()) * len(weight)
    return float(weight.sum()) ** 2 / square if square > 0 else 0.0


def _mean(column: Array, mask: Array) -> Array:
    """Return the mean over a mask, 0 where it is empty."""
    return (column * mask).sum() / max(int(mask.sum()), 1)


def _library(array: Array) -> Any:
    return np if isinstance(array, np.ndarray | np.generic) else sys.modules["torch"]
