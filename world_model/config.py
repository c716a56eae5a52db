"""Options of a world model: sizes, mechanisms that can be switched off, and its training.

Presets are files in ``configs/world_model``: ``cpu-tiny``, ``gpu-small``, ``gpu-base``.
"""

from dataclasses import dataclass, field

from vla_rl.core.dimensions import UNDECLARED, Pair
from vla_rl.core.errors import ConfigError
from vla_rl.core.validation import check_ranges


@dataclass(frozen=True)
class AutoencoderConfig:
    """The convolutional autoencoder, shared by all cameras.

    Attributes:
        patch: pixels on a side that one cell of the first layer covers.
        widths: channels at 1/patch of the resolution and at half of that.
        latent_channels: channels of a cell of the latent grid, which is (image size / patch / 2) on a side.
        token_cells: cells on a side that make up one token, and all cameras' cells at a place share it; 0: a (square)
            picture is one token.
    """

    patch: int = 4
    widths: tuple[int, int] = (48, 96)
    latent_channels: int = 8
    token_cells: int = 2

    def __post_init__(self) -> None:
        check_ranges(self, "autoencoder", token_cells=">= 0")


@dataclass(frozen=True)
class DynamicsConfig:
    """The block-causal latent transformer with its flow head.

    Attributes:
        width: of all tokens.
        layers: of the transformer.
        heads: of attention.
        flow_layers: blocks of the flow head, which attend within one frame.
        flow_steps: K Euler steps of sampling.
        window: frames that are attended to in full, the present one included.
        memory_frames: frames before the window that are attended to in compressed form; 0 switches the memory off.
        memory_pool: tokens on a side of the grid that are averaged into one in compressed frames.
        joined_tokens: proprioception and action are added to the tokens of the picture instead of being tokens of their
            own; cheaper where a picture has few.
        state_frequencies: Number of sines and cosines of the proprioception in tokens, here and at the linear servos'
            prediction. The first has a wavelength of 4 pi standard deviations, each other half of the previous one.
            Where an edge of an arm is drawn depends on its pose that sharply (arXiv 2006.10739).
        context_noise: largest standard deviation of the noise on latents of the context in training, drawn per window.
        state_noise: the same for proprioception, in its standard deviations.
        self_context: share of the training steps whose context is what the model itself imagines, open loop.
    """

    width: int = 128
    layers: int = 4
    heads: int = 4
    flow_layers: int = 1
    flow_steps: int = 4
    window: int = 6
    memory_frames: int = 8
    memory_pool: int = 2
    joined_tokens: bool = False
    state_frequencies: int = 0
    context_noise: float = 0.15
    state_noise: float = 0.01
    self_context: float = 0.5

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(f"dynamics.width {self.width} is not a multiple of dynamics.heads {self.heads}")
        least = dict.fromkeys(("layers", "flow_layers", "flow_steps", "window"), ">= 1")
        check_ranges(self, "dynamics", **least, memory_frames=">= 0", state_frequencies=">= 0")


@dataclass(frozen=True)
class HeadsConfig:
    """Outcome heads: reward, success, termination and proprioception, learnt together with the dynamics.

    Attributes:
        hidden: units of their hidden layer.
    """

    hidden: int = 128


@dataclass(frozen=True)
class TrainingConfig:
    """Training of the autoencoder, then of the dynamics and heads on its latents.

    Attributes:
        autoencoder_steps: gradient steps of the autoencoder.
        autoencoder_batch: frames in each (every one with all cameras).
        dynamics_steps: gradient steps of dynamics and heads.
        dynamics_batch: windows in each.
        window_frames: frames of a window.
        dynamics_learning_rate: of AdamW.
        warmup_steps: over which a learning rate rises; afterwards a cosine brings it down to a twentieth.
        bfloat16: Precision of the matrix products in the dynamics' training. It holds on a GPU and on processors with
            instructions for it (AVX512-BF16, AMX), where they are several times faster.
        ema_decay: of the average of the weights that is used; shorter at first.
        checkpoint_every: gradient steps between checkpoints.
        cpu_seconds: processor time for both stages, counted over all resumptions; 0: no bound.
        autoencoder_share: of ``cpu_seconds`` that the autoencoder may use; the dynamics get what it leaves.
    """

    autoencoder_steps: int = 1500
    autoencoder_batch: int = 16
    dynamics_steps: int = 4000
    dynamics_batch: int = 8
    window_frames: int = 16
    dynamics_learning_rate: float = 1e-3
    warmup_steps: int = 100
    bfloat16: bool = False
    ema_decay: float = 0.995
    checkpoint_every: int = 250
    cpu_seconds: float = 0.0
    autoencoder_share: float = 0.3


@dataclass(frozen=True)
class WorldModelConfig:
    """Everything that decides a world model, beside its data.

    Attributes:
        seed: of initial weights, batches and noise.
    """

    autoencoder: AutoencoderConfig = field(default_factory=AutoencoderConfig)
    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: int = 0


@dataclass(frozen=True)
class WorldSpec:
    """The robot and task that a world model imagines.

    Attributes:
        env_id: the environment or robot.
        task: the task sentence.
        cameras: names, in the order of the latent channels.
        image_size: height and width, pixels, equal for all cameras.
        state_dim: S.
        action_dim: A.
        control_hz: frames per second.
        max_steps: where imagined episodes are truncated.
        action_low, action_high: bounds of the actions, A numbers each.
        action_kind: per action dimension, ``absolute`` (a target) or ``delta`` (a step); empty: all absolute.
        gripper_dims: action dimensions that are grippers.
        dimensions: Names and units of state and action, which imagined episodes carry too.
    """

    env_id: str
    task: str
    cameras: tuple[str, ...]
    image_size: tuple[int, int]
    state_dim: int
    action_dim: int
    control_hz: float
    max_steps: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    action_kind: tuple[str, ...] = ()
    gripper_dims: tuple[int, ...] = ()
    dimensions: Pair = (UNDECLARED, UNDECLARED)
