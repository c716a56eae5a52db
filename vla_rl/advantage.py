"""Values -> advantages -> gate -> weights of the actor's samples. Pure functions of numpy arrays or torch tensors.

Source: arXiv 2606.17043 (HABC). With the viability logit z_v (p_v = sigmoid(z_v)) and the efficiency value V_e:

    A_v = z_v(s') - z_v(s)                                    in logits
    A_e = -n + V_e(s') - V_e(s)                               in steps, s' is n steps after s
    g   = 1 + tanh((1 - p_v(s)) A_v + p_v(s) A_e)             0 < g < 2, see `AdvantageConfig.gate_form`
    pre = g: successful rollout, 0: failed rollout, 1: demonstration or intervention (or g, `weighs_people`)
    w   = pre / mean(pre)

No gradient flows through weights: callers that use torch evaluate the critics under ``torch.no_grad``. Torch is not
imported here; the functions call the methods of whichever array type they are given.
"""

import math
import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vla_rl.core.errors import ConfigError, did_you_mean

type Array = Any
"""A numpy array or a torch tensor."""

GATES = ("hierarchical", "viability", "viability_weighted")
GATE_FORMS = ("tanh", "exponential")
LAST_STEPS = ("target", "neutral", "repeat")
SATURATED_TANH = 0.95
# eps in w = pre / max(mean(pre), eps). Not too small: 1 + tanh(very negative) is rounding error, which must not be
# blown up to a mean of 1.
SMALLEST_MEAN = 1e-3
FEWEST_IN_BIN = 8
"""There are fewer bins where one would have fewer samples; advantages of fewer in all are 0: so few say nothing about
each other."""
_SMALLEST_SPREAD = 1e-2  # of the advantages in a bin, in their own unit: less is rounding error


@dataclass(frozen=True)
class WeightingConfig:
    """When samples are weighed, and over which of them the mean weight is 1.

    Attributes:
        normalise_over: the samples over which the mean weight becomes 1. ``non_demonstration``: rollouts and
            interventions; demonstrations keep their weight of 1. ``valid``: all samples that the actor may use.
        warmup_steps: successes weigh 1 for so many gradient steps, while the critics are young.
    """

    normalise_over: Literal["non_demonstration", "valid"] = "non_demonstration"
    warmup_steps: int = 500

    def __post_init__(self) -> None:
        if self.normalise_over not in ("non_demonstration", "valid"):
            raise ConfigError(
                f"advantage.normalise_over is {self.normalise_over!r}; expected 'non_demonstration' or 'valid'"
            )
        if self.warmup_steps < 0:
            raise ConfigError(f"advantage.warmup_steps is {self.warmup_steps}; it cannot be negative")


@dataclass(frozen=True)
class HorizonConfig(WeightingConfig):
    """The same, of algorithms whose advantage compares two states of an episode.

    Attributes:
        advantage_horizon: n, the steps between s and s'. The paper leaves open whether its step is a frame (1) or a
            chunk (the executed chunk length; with ``efficiency_scale`` 1/n, A_e then counts chunks).
    """

    advantage_horizon: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.advantage_horizon < 1:
            raise ConfigError(f"advantage.advantage_horizon is {self.advantage_horizon}; it must be at least 1")


@dataclass(frozen=True)
class AdvantageConfig(HorizonConfig):
    """The choices between HABC's values and its weights.

    Attributes:
        gate: argument of the gate. ``hierarchical``: the paper's. Without V_e (the paper does not say how the term is
            removed): ``viability``: A_v alone; ``viability_weighted``: (1 - p_v) A_v.
        gate_form: of an argument x, ``tanh``: g = 1 + tanh(x), the paper's; ``exponential``: g = exp(x) in [0, 2], a
            soft exponential. Both are 1 with slope 1 at 0; below, the second forgets less: .37 in place of .24 at -1.
        value_bins: each advantage is compared within so many bins of its own value, of equally many samples (at least
            `FEWEST_IN_BIN`, in fewer bins if need be): A_v of p_v, A_e of V_e, less the mean of its bin and over its
            standard deviation, both of the samples of the batch that the gate weighs. Both are in standard deviations
            then, so that an ``efficiency_scale`` of 1 weighs them alike. 0 is the paper: no bins.
        gate_floor: lower gates are raised to it; 0 is the paper, 1 prefers good steps without forgetting others: what
            is slow in a success may be a recovery, of which there are few.
        efficiency_scale: multiplies A_e; 1 is the paper. A_e is in raw steps inside a tanh, which saturates at about 2.
        certainty_cost: subtracted from the scaled A_e, so that steps from which success is nearly sure weigh less: at
            p_v = 1 and an even pace 1 - tanh(cost). 0 is the paper. A V_e that has hardly learnt does that unasked: it
            is the same everywhere, so A_e is -1 at every step.
        last_step: where s' would lie behind the end of the episode (unstated in the paper), s' is the last state, and
            ``target``: its V_e is taken as the 0 of its training target if the episode succeeded, so that the A_e of
            the last step is its TD error; ``neutral``: as the network says, so that the last step has g = 1;
            ``repeat``: as ``neutral``, but n steps are charged although fewer were taken (what clipped indices do).
        weighs_people: demonstrations and interventions weigh their gate as well, where the paper has 1: of people who
            pause, miss and go astray, not every step is worth as much.
    """

    gate: Literal["hierarchical", "viability", "viability_weighted"] = "hierarchical"
    gate_form: Literal["tanh", "exponential"] = "tanh"
    value_bins: int = 0
    gate_floor: float = 0.0
    efficiency_scale: float = 1.0
    certainty_cost: float = 0.0
    last_step: Literal["target", "neutral", "repeat"] = "target"
    weighs_people: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("gate", GATES), ("gate_form", GATE_FORMS), ("last_step", LAST_STEPS)):
            if getattr(self, name) not in known:
                value = getattr(self, name)
                raise ConfigError(f"advantage.{name} is {value!r}.{did_you_mean(str(value), known)}")
        if self.value_bins < 0:
            raise ConfigError(f"advantage.value_bins is {self.value_bins}; it cannot be negative")
        if not 0 <= self.gate_floor <= 1:
            raise ConfigError(f"advantage.gate_floor is {self.gate_floor}; expected a number from 0 to 1")
        for name in ("efficiency_scale", "certainty_cost"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"advantage.{name} is {getattr(self, name)}; expected a number from 0 on")


@dataclass(frozen=True, slots=True)
class Values:
    """What the critics say of B samples. All floats [B], finite.

    Attributes:
        viability_logit: z_v(s).
        viability_logit_later: z_v(s').
        efficiency: V_e(s), steps.
        efficiency_later: V_e(s'), steps.
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


def advantages(values: Values, samples: Samples, config: AdvantageConfig) -> tuple[Array, Array]:
    """(A_v in logits, A_e in steps), float [B] each. See `AdvantageConfig.last_step` for the end of an episode."""
    library = _library(values.efficiency)
    steps, later = samples.elapsed, values.efficiency_later
    if config.last_step == "repeat":
        steps = library.full_like(values.efficiency, config.advantage_horizon)
    elif config.last_step == "target":
        later = library.where(samples.ended & samples.success, 0.0, later)
    return values.viability_logit_later - values.viability_logit, later - steps - values.efficiency


def compared(
    viability_advantage: Array, efficiency_advantage: Array, values: Values, counted: Array, config: AdvantageConfig
) -> tuple[Array, Array]:
    """(A_v, A_e) as `AdvantageConfig.value_bins` compares them, in standard deviations; as they are without bins.

    Args:
        viability_advantage, efficiency_advantage: float [B], see `advantages`.
        values: of the critics.
        counted: bool [B], the samples that make the bins and their statistics; the others are only placed in them.
        config: the choices.
    """
    if not config.value_bins:
        return viability_advantage, efficiency_advantage
    by_viability = _within_bins(viability_advantage, values.viability_logit, counted, config.value_bins)
    return by_viability, _within_bins(efficiency_advantage, values.efficiency, counted, config.value_bins)


def _within_bins(advantage: Array, value: Array, counted: Array, bins: int) -> Array:
    below = (value[counted][None] < value[:, None]).sum(1)  # [B], so that equal values share a bin
    total = int(counted.sum())
    bins = max(1, min(bins, total // FEWEST_IN_BIN))
    place = (below * bins // max(total, 1)).clip(max=bins - 1)
    result = _library(advantage).zeros_like(advantage)
    for number in range(bins):
        inside = place == number
        own = advantage[inside & counted]
        if len(own) >= FEWEST_IN_BIN:
            off = advantage[inside] - own.mean()
            result[inside] = off / (((own - own.mean()) ** 2).mean() ** 0.5).clip(min=_SMALLEST_SPREAD)
    return result


def advantage_gate(
    viability_logit: Array, viability_advantage: Array, efficiency_advantage: Array, config: AdvantageConfig
) -> Array:
    """g of each sample, float [B], between the floor and 2."""
    p_v = viability(viability_logit)
    pace = config.efficiency_scale * efficiency_advantage - config.certainty_cost
    argument = {
        "hierarchical": (1.0 - p_v) * viability_advantage + p_v * pace,
        "viability": viability_advantage,
        "viability_weighted": (1.0 - p_v) * viability_advantage,
    }[config.gate]
    library = _library(argument)
    if config.gate_form == "exponential":
        return library.exp(argument.clip(max=math.log(2.0))).clip(min=config.gate_floor, max=2.0)
    return (1.0 + library.tanh(argument)).clip(min=config.gate_floor)


def gated(samples: Samples, config: AdvantageConfig) -> Array:
    """The samples that weigh their gate, bool [B]."""
    rollouts = samples.rollout & samples.success
    return rollouts | samples.demonstration | samples.intervention if config.weighs_people else rollouts


def pre_weights(gates: Array, samples: Samples, config: AdvantageConfig) -> Array:
    """Weights before normalisation, float [B]."""
    library = _library(gates)
    by_person = library.where(samples.demonstration | samples.intervention, library.ones_like(gates), 0.0)
    return library.where(gated(samples, config), gates, by_person)


def normalise(weight: Array, samples: Samples, config: WeightingConfig) -> Array:
    """Weights with mean 1 over the samples that `WeightingConfig.normalise_over` names, float [B].

    If all of these weigh 0 (a batch of failures), they stay 0. Under ``non_demonstration``, demonstrations have a mean
    of 1 among themselves, so that their share in the loss does not depend on how well the rollouts went.
    """
    library = _library(weight)
    practised = samples.rollout | samples.intervention
    if config.normalise_over == "valid":
        return weight / _mean(weight, practised | samples.demonstration).clip(min=SMALLEST_MEAN)
    demonstrated = weight / _mean(weight, samples.demonstration).clip(min=SMALLEST_MEAN)
    return library.where(practised, weight / _mean(weight, practised).clip(min=SMALLEST_MEAN), demonstrated)


def weights(values: Values, samples: Samples, config: AdvantageConfig, step: int) -> tuple[Array, dict[str, float]]:
    """The weight of each sample in the actor's loss, and diagnostics.

    Args:
        values: of the critics, detached.
        samples: what the samples are.
        config: the choices.
        step: gradient steps since the critics began to learn, for the warm-up.

    Returns:
        float [B], and `diagnostics`.
    """
    found = compared(*advantages(values, samples, config), values, gated(samples, config), config)
    gates = advantage_gate(values.viability_logit, *found, config)
    if step < config.warmup_steps:
        gates = _library(gates).ones_like(gates)
    weight = normalise(pre_weights(gates, samples, config), samples, config)
    return weight, diagnostics(gates, weight, samples, config)


def diagnostics(gates: Array, weight: Array, samples: Samples, config: AdvantageConfig) -> dict[str, float]:
    """How the weights came out.

    Returns:
        ``gate_mean`` and ``gate_saturated`` (the fraction with |g - 1| > 0.95) over the samples that the gate weighs; 1
        and 0 where there are none. ``kept``: the fraction of the rollouts and interventions that weigh anything.
        ``effective_samples``: (sum w)^2 / (B sum w^2), 1 for equal weights.
    """
    weighed = gated(samples, config)
    practised = samples.rollout | samples.intervention
    saturated = abs(gates - 1.0) > SATURATED_TANH
    return {
        "gate_mean": float(_mean(gates, weighed)) if weighed.any() else 1.0,
        "gate_saturated": float(_mean(saturated, weighed)),
        "kept": float(_mean(weight > 0, practised)),
        "effective_samples": effective_samples(weight),
    }


def effective_samples(weight: Array) -> float:
    """(sum w)^2 / (B sum w^2): the fraction of the samples that would do as well at equal weight; 0 if all weigh 0."""
    square = float((weight * weight).sum()) * len(weight)
    return float(weight.sum()) ** 2 / square if square > 0 else 0.0


def _mean(column: Array, mask: Array) -> Array:
    """The mean over a mask, 0 where it is empty."""
    return (column * mask).sum() / max(int(mask.sum()), 1)


def _library(array: Array) -> Any:
    return np if isinstance(array, np.ndarray | np.generic) else sys.modules["torch"]
