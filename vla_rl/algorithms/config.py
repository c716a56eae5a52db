"""What an algorithm may be told. One configuration for all of them, so that comparisons change the name and nothing
else.

Sections that an algorithm has no use for are ignored by it.
"""

from dataclasses import dataclass, field

from vla_rl.advantage import AdvantageConfig
from vla_rl.core.errors import ConfigError
from vla_rl.credit import CreditConfig
from vla_rl.critics.hierarchical import CriticConfig


@dataclass(frozen=True)
class MixtureConfig:
    """What the actor's batches are made of. The paper does not state its mixing ratio.

    The weights are of any scale; the share of a group without frames goes to the others.

    Attributes:
        demonstrations: weight of demonstration steps.
        interventions: weight of intervention steps.
        rollouts: weight of the policy's own steps.
        max_staleness: rollouts whose policy version is older than the newest one by more than this drop out, for the
            actor and the critics; None keeps all. What people did stays.
        skip_failures: do not draw steps that must weigh 0 (failed rollouts), which would cost encoder time and give no
            gradient. The rollouts' weight is multiplied by their fraction of successful steps and, together with the
            interventions, scaled back to their common share, so that the expected gradient is that of drawing all steps
            and normalising the weights to unit mean over rollouts and interventions.
    """

    demonstrations: float = 0.4
    interventions: float = 0.2
    rollouts: float = 0.4
    max_staleness: int | None = None
    skip_failures: bool = True


@dataclass(frozen=True)
class ActorConfig:
    """The actor's optimisation. None of it is stated in the paper but the batch size of 256.

    Attributes:
        batch_size: samples per gradient step.
        learning_rate: of AdamW, after the warm-up.
        warmup_steps: gradient steps over which the learning rate rises linearly.
        decay_steps: gradient steps after which a cosine has brought the learning rate down to ``final_fraction``; 0:
            constant.
        final_fraction: of the learning rate, at the end of the cosine and after it.
        weight_decay: of matrices and kernels, not of biases and norms.
        max_gradient_norm: longer gradients are shortened to it.
        ema_decay: of the average of the weights that acts; shorter at first. 0: the last weights act.
        random_shift: pixels of the random-shift augmentation.
    """

    batch_size: int = 64
    learning_rate: float = 5e-4
    warmup_steps: int = 100
    decay_steps: int = 0
    final_fraction: float = 0.1
    weight_decay: float = 1e-4
    max_gradient_norm: float = 1.0
    ema_decay: float = 0.995
    random_shift: int = 3

    def __post_init__(self) -> None:
        if self.batch_size < 1 or not self.learning_rate > 0 or not self.max_gradient_norm > 0:
            raise ConfigError("actor: batch_size, learning_rate and max_gradient_norm must be positive")
        if not 0 <= self.ema_decay < 1:
            raise ConfigError(f"actor.ema_decay is {self.ema_decay}; it must be in [0, 1)")


@dataclass(frozen=True)
class CriticTrainingConfig:
    """The critics' optimisation and batches. Unstated in the paper.

    Attributes:
        batch_size: samples per gradient step.
        interval: a critic step every so many actor steps.
        learning_rate: of AdamW.
        weight_decay: of matrices and kernels.
        max_gradient_norm: longer gradients are shortened to it.
        random_shift: pixels of the random-shift augmentation; few labels are overfitted quickly.
        balanced: draw successes and failures equally often; p_v stays calibrated (see `viability_loss`).
        efficiency_only: fraction of a batch that is drawn from steps without a viability label (demonstrations,
            interventions), which train V_e alone.
    """

    batch_size: int = 64
    interval: int = 1
    learning_rate: float = 5e-4
    weight_decay: float = 1e-2
    max_gradient_norm: float = 10.0
    random_shift: int = 3
    balanced: bool = False
    efficiency_only: float = 0.25

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.interval < 1 or not self.learning_rate > 0:
            raise ConfigError("critic_training: batch_size, interval and learning_rate must be positive")
        if not 0 <= self.efficiency_only < 1:
            raise ConfigError(f"critic_training.efficiency_only is {self.efficiency_only}; it must be in [0, 1)")


@dataclass(frozen=True)
class AlgorithmConfig:
    """Everything that an algorithm may be told, section by section."""

    actor: ActorConfig = field(default_factory=ActorConfig)
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    critic_training: CriticTrainingConfig = field(default_factory=CriticTrainingConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
