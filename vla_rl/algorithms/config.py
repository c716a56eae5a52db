"""The sections that algorithms share, and the options of their kinds composed of them.

An algorithm's ``config_class`` holds what the algorithm reads and nothing else; a section of its own stands in its
file. Algorithms that share a section share its name, so that comparisons change nothing but the algorithm.
"""

from dataclasses import dataclass, field
from typing import Literal

from vla_rl.core.errors import ConfigError
from vla_rl.core.validation import check_ranges
from vla_rl.credit import CreditConfig


@dataclass(frozen=True)
class MixtureConfig:
    """What the actor's batches are made of. The paper does not state its mixing ratio.

    The weights are of any scale; the share of a group without frames goes to the others.

    Attributes:
        demonstrations: weight of demonstration steps.
        interventions: weight of intervention steps.
        rollouts: weight of the policy's own steps.
        largest_oversampling: no step is drawn more than so many times as often as if all steps that may be drawn were
            drawn alike; what a small group (a single rescue) then leaves of its share goes to the others. 0: no bound.
    """

    demonstrations: float = 0.4
    interventions: float = 0.2
    rollouts: float = 0.4
    largest_oversampling: float = 0.0

    def __post_init__(self) -> None:
        for name in ("demonstrations", "interventions", "rollouts"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"mixture.{name} is {getattr(self, name)}; weights cannot be negative")
        if not self.demonstrations + self.interventions + self.rollouts > 0:
            raise ConfigError("mixture: every weight is 0; the actor would have nothing to learn from")
        if self.largest_oversampling and not self.largest_oversampling >= 1:
            raise ConfigError(
                f"mixture.largest_oversampling is {self.largest_oversampling}; it must be 0 (no bound) or at least 1"
            )


@dataclass(frozen=True)
class ActorConfig:
    """The actor's optimisation. None of it is stated in the paper but the batch size of 256.

    Attributes:
        batch_size: samples per gradient step.
        learning_rate: of AdamW, after the warm-up.
        warmup_steps: gradient steps over which the learning rate rises linearly.
        decay_steps: gradient steps after which a cosine has brought the learning rate down to a tenth; 0: constant.
        schedule_every_round: warm-up and cosine start anew in every round, so that each round ends with small steps.
        precision: of the matrix products and convolutions of the policy's loss and its gradient, and of what is learnt
            for imagination; weights, optimiser and average are float32. ``auto`` is bfloat16 where the device computes
            in it (GPUs since Ampere; processors with avx512_bf16 or amx_bf16), where it saves about a third of the
            time, else float32.
    """

    batch_size: int = 64
    learning_rate: float = 5e-4
    warmup_steps: int = 100
    decay_steps: int = 0
    schedule_every_round: bool = False
    precision: Literal["float32", "bfloat16", "auto"] = "float32"

    def __post_init__(self) -> None:
        check_ranges(self, "actor", batch_size=">= 1", learning_rate="> 0", warmup_steps=">= 0", decay_steps=">= 0")


@dataclass(frozen=True)
class Learning:
    """What every algorithm may be told."""

    actor: ActorConfig = field(default_factory=ActorConfig)

    @property
    def trains_policy(self) -> bool:
        """Whether gradients reach the policy itself."""
        return True

    @property
    def chunk_ticks(self) -> int:
        """Actions of a chunk that are judged or corrected as one; 0: single steps."""
        return 0

    def check_steps(self, steps: int, option: str) -> None:
        """Refuse options that a round of so many gradient steps, by that option, is too short for."""


@dataclass(frozen=True)
class CloningLearning(Learning):
    """What an algorithm may be told that imitates a mixture."""

    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)
