"""What an algorithm may be told. One configuration for all of them, so that comparisons change nothing but the name.

Sections that an algorithm has no use for are ignored by it.
"""

from dataclasses import dataclass, field

from vla_rl.advantage import AdvantageConfig
from vla_rl.core.errors import ConfigError
from vla_rl.credit import CreditConfig
from vla_rl.critics.distributional import DistributionalConfig
from vla_rl.critics.hierarchical import CriticConfig


@dataclass(frozen=True)
class MixtureConfig:
    """What the actor's batches are made of. The paper does not state its mixing ratio.

    The weights are of any scale; the share of a group without frames goes to the others.

    Attributes:
        demonstrations: weight of demonstration steps.
        interventions: weight of intervention steps.
        rollouts: weight of the policy's own steps.
        imagined: weight of its steps in imagined episodes (`world_model`), apart from real ones: however many are
            imagined, they do not crowd out what really happened.
        largest_oversampling: no step is drawn more than so many times as often as if all steps that may be drawn were
            drawn alike; what a small group (a single rescue) then leaves of its share goes to the others. 0: no bound.
        max_staleness: rollouts whose policy version is older than the newest one by more than this drop out, for the
            actor and the critics; None keeps all. What people did in them stays for the actor.
        episodes_equal: draw every episode of a group equally often, instead of every step: long episodes, the slow ones
            among them, do not outweigh short ones.
        skip_failures: do not draw steps that must weigh 0 (failed rollouts), which would cost encoder time and give no
            gradient. The weights of rollouts and imagined ones are each multiplied by their fraction of successful
            steps and, together with the interventions, scaled back to their common share, so that the expected gradient
            is that of drawing all steps and normalising the weights to unit mean over these three.
    """

    demonstrations: float = 0.4
    interventions: float = 0.2
    rollouts: float = 0.4
    imagined: float = 0.1
    largest_oversampling: float = 0.0
    max_staleness: int | None = None
    episodes_equal: bool = False
    skip_failures: bool = True

    def __post_init__(self) -> None:
        for name in ("demonstrations", "interventions", "rollouts", "imagined"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"mixture.{name} is {getattr(self, name)}; weights cannot be negative")
        if not self.demonstrations + self.interventions + self.rollouts > 0:
            raise ConfigError("mixture: every weight is 0; the actor would have nothing to learn from")
        if self.largest_oversampling and not self.largest_oversampling >= 1:
            raise ConfigError(
                f"mixture.largest_oversampling is {self.largest_oversampling}; it must be 0 (no bound) or at least 1"
            )
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ConfigError(f"mixture.max_staleness is {self.max_staleness}; it cannot be negative")


@dataclass(frozen=True)
class ActorConfig:
    """The actor's optimisation. None of it is stated in the paper but the batch size of 256.

    Attributes:
        batch_size: samples per gradient step.
        learning_rate: of AdamW, after the warm-up.
        warmup_steps: gradient steps over which the learning rate rises linearly.
        decay_steps: gradient steps after which a cosine has brought the learning rate down to ``final_fraction``;
            0: constant.
        final_fraction: of the learning rate, at the end of the cosine and after it.
        schedule_every_round: warm-up and cosine start anew in every round, so that each round ends with small steps.
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
    schedule_every_round: bool = False
    weight_decay: float = 1e-4
    max_gradient_norm: float = 1.0
    ema_decay: float = 0.995
    random_shift: int = 3

    def __post_init__(self) -> None:
        if self.batch_size < 1 or not self.learning_rate > 0 or not self.max_gradient_norm > 0:
            raise ConfigError("actor: batch_size, learning_rate and max_gradient_norm must be positive")
        for name in ("warmup_steps", "decay_steps", "weight_decay", "random_shift"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"actor.{name} is {getattr(self, name)}; it cannot be negative")
        if not 0 <= self.final_fraction <= 1:
            raise ConfigError(f"actor.final_fraction is {self.final_fraction}; it must be in [0, 1]")
        if not 0 <= self.ema_decay < 1:
            raise ConfigError(f"actor.ema_decay is {self.ema_decay}; it must be in [0, 1)")


@dataclass(frozen=True)
class ReplayRatioConfig:
    """Adaptive replay ratio (arXiv 2310.07418): few critic steps while the critic still changes, more once it is
    settled.

    Attributes:
        adaptive: start with ``low`` critic steps per actor step, and change to ``high``, once and for good, when the
            fraction of active units has settled.
        low: critic steps per actor step at first.
        high: and after the change.
        check_every_episodes: practice episodes between two measurements.
        tolerance: the fraction has settled when it differs from the measurement before by at most this.
    """

    adaptive: bool = False
    low: float = 0.5
    high: float = 2.0
    check_every_episodes: int = 100
    tolerance: float = 0.001

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise ConfigError(f"replay_ratio: expected 0 < low < high, found {self.low} and {self.high}")


@dataclass(frozen=True)
class CriticTrainingConfig:
    """The critics' optimisation and batches. Unstated in the paper.

    Attributes:
        batch_size: samples per gradient step.
        folds: K > 1 trains K critics in turn, each without a K-th of the episodes, and lets each judge only these (see
            `cross_fitting`); 1, one critic that judges what it was trained on, is the paper.
        steps_per_actor_step: gradient steps for each one of the actor; below 1 the critics pause in between.
        steps_before_round: gradient steps before the first one of the actor in each round, so that nobody is weighed by
            critics that know less than the round's episodes.
        replay_ratio: lets ``steps_per_actor_step`` adapt, and then replaces it.
        learning_rate: of AdamW.
        weight_decay: of matrices and kernels.
        max_gradient_norm: longer gradients are shortened to it.
        random_shift: pixels of the random-shift augmentation; few labels are overfitted quickly.
        balanced: draw successes and failures equally often; p_v stays calibrated (see `viability_loss`).
        efficiency_only: fraction of a batch that is drawn from steps without a viability label (demonstrations,
            interventions), which train V_e alone.
        bootstrap_imagined: imagined episodes that were cut before their outcome are drawn as well, and labelled with
            the minimum over the ensemble of p_v at their last step (RAVL's rule for target-only states).
    """

    batch_size: int = 64
    folds: int = 1
    steps_per_actor_step: float = 1.0
    steps_before_round: int = 0
    replay_ratio: ReplayRatioConfig = field(default_factory=ReplayRatioConfig)
    learning_rate: float = 5e-4
    weight_decay: float = 1e-2
    max_gradient_norm: float = 10.0
    random_shift: int = 3
    balanced: bool = False
    efficiency_only: float = 0.25
    bootstrap_imagined: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1 or not self.steps_per_actor_step > 0 or not self.learning_rate > 0:
            raise ConfigError("critic_training: batch_size, steps_per_actor_step and learning_rate must be positive")
        for name in ("weight_decay", "random_shift", "steps_before_round"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"critic_training.{name} is {getattr(self, name)}; it cannot be negative")
        if not self.max_gradient_norm > 0:
            raise ConfigError(f"critic_training.max_gradient_norm is {self.max_gradient_norm}; it must be positive")
        if self.folds < 1:
            raise ConfigError(f"critic_training.folds is {self.folds}; it must be at least 1")
        if not 0 <= self.efficiency_only < 1:
            raise ConfigError(f"critic_training.efficiency_only is {self.efficiency_only}; it must be in [0, 1)")


@dataclass(frozen=True)
class AwrConfig:
    """Advantage-weighted regression, arXiv 1910.00177.

    Attributes:
        temperature: beta of exp(A / beta).
        max_weight: the exponential is clipped to it.
        discount: gamma of the return gamma^(steps to success) of a success; a failure returns 0.
        baseline: False gives reward-weighted regression, exp(R / beta).
    """

    temperature: float = 0.2
    max_weight: float = 20.0
    discount: float = 0.99
    baseline: bool = True

    def __post_init__(self) -> None:
        if not self.temperature > 0 or not self.max_weight > 0 or not 0 < self.discount <= 1:
            raise ConfigError("awr: expected temperature > 0, max_weight > 0 and 0 < discount <= 1")


@dataclass(frozen=True)
class ThresholdConfig:
    """The threshold filter: a step is kept if its temporal-difference advantage reaches a threshold.

    Attributes:
        epsilon: the threshold, in units of the value, which lies in [0, 1].
        discount: gamma; the reward is 1 at success.
    """

    epsilon: float = 0.0
    discount: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.discount <= 1:
            raise ConfigError(f"threshold.discount is {self.discount}; it must be in (0, 1]")


@dataclass(frozen=True)
class RecapConfig:
    """RECAP, arXiv 2511.14759. Dropout and guidance of the indicator belong to the policy (`FlowVLAConfig`).

    Attributes:
        critic: the distributional value function.
        lookahead: N of the N-step advantage.
        positive_fraction: of the policy's steps of each task that are called good.
        threshold_every: updates between two estimates of the quantiles that these are.
        threshold_frames: steps of each task behind an estimate.
        warmup_steps: updates before the first estimate; the policy's own steps carry no indicator until then.
    """

    critic: DistributionalConfig = field(default_factory=DistributionalConfig)
    lookahead: int = 50
    positive_fraction: float = 0.4
    threshold_every: int = 250
    threshold_frames: int = 512
    warmup_steps: int = 500

    def __post_init__(self) -> None:
        if not 0 < self.positive_fraction < 1:
            raise ConfigError(f"recap.positive_fraction is {self.positive_fraction}; it must be in (0, 1)")
        if self.warmup_steps < 0:
            raise ConfigError(f"recap.warmup_steps is {self.warmup_steps}; it cannot be negative")
        if min(self.lookahead, self.threshold_every, self.threshold_frames) < 1:
            raise ConfigError("recap: lookahead, threshold_every and threshold_frames must be at least 1")


@dataclass(frozen=True)
class NextLatentConfig:
    """The auxiliary loss of the policy's encoder, see `vla_rl.algorithms.next_latent`. It needs imagination, whose
    world model gives the latents.

    Attributes:
        weight: beside the actor's loss; 0 switches it off.
        ahead: steps between observation and target.
        hidden: units of the head.
        learning_rate: of the head's AdamW.
    """

    weight: float = 0.0
    ahead: int = 6
    hidden: int = 256
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if not self.weight >= 0 or self.ahead < 1:
            raise ConfigError(
                f"next_latent: weight is {self.weight} and ahead {self.ahead}; expected weight >= 0 and ahead >= 1"
            )


@dataclass(frozen=True)
class AlgorithmConfig:
    """Everything that an algorithm may be told, section by section."""

    actor: ActorConfig = field(default_factory=ActorConfig)
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    critic_training: CriticTrainingConfig = field(default_factory=CriticTrainingConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    awr: AwrConfig = field(default_factory=AwrConfig)
    threshold: ThresholdConfig = field(default_factory=ThresholdConfig)
    recap: RecapConfig = field(default_factory=RecapConfig)
    next_latent: NextLatentConfig = field(default_factory=NextLatentConfig)
