"""Configuration of the built-in VLA: its architecture and the options of its training."""

from dataclasses import dataclass, field
from typing import Literal

from vla_rl.core.config import load_config
from vla_rl.core.config_files import CONFIGS
from vla_rl.core.errors import ConfigError, UserError, did_you_mean
from vla_rl.core.validation import check_ranges
from vla_rl.policies.base import PolicyConfig
from vla_rl.policies.encoders import TextConfig, VisionConfig


@dataclass(frozen=True)
class BackboneConfig:
    """A pretrained vision-language model, frozen, in place of the small vision and text encoders.

    Attributes:
        folder: a local folder with a model of the SmolVLM family; empty: none, the small encoders are used.
        layers: layers of the language model that are kept, 0: all. Features of a middle layer act better and faster.
        dtype: of its weights.
    """

    folder: str = ""
    layers: int = 0
    dtype: Literal["float32", "bfloat16"] = "float32"


@dataclass(frozen=True)
class ExpertConfig:
    """The action expert: a transformer over the action tokens that reads the prefix by cross-attention.

    Attributes:
        width: size of a token, of the prefix tokens too.
        layers: number of layers.
        heads: attention heads.
        mlp_ratio: hidden width of the feed-forward part, in widths.
        actions_per_token: neighboring actions that share a token; more is faster.
        window: an action looks at itself and the ``window - 1`` before it, and always at the prefix and a learned sink:
            a Lambda-shaped mask. 0: at all actions. Xiaomi-Robotics-0 (arXiv 2602.12684) has 4.
        rotary: rotary instead of learned positions, with actions that are not committed `NOISY_SHIFT` further along.
    """

    width: int = 96
    layers: int = 3
    heads: int = 4
    mlp_ratio: int = 2
    actions_per_token: int = 4
    window: int = 0
    rotary: bool = False


@dataclass(frozen=True)
class FlowVLAConfig(PolicyConfig):
    """Architecture and training options of the built-in VLA.

    Attributes:
        kind: names this policy.
        horizon: H, actions in a chunk.
        flow_samples: noise and time draws per encoded observation; the encoder dominates the cost.
        time_distribution: of the flow time in training. ``beta``: Beta(1.5, 1) towards the noise, as in pi0 (arXiv
            2410.24164, eq. in B).
        sampling_steps: Euler steps of inference.
        prefix_max: longest committed prefix seen in training, 0: off.
        prefix_law: Distribution of prefix lengths. ``linear``: P(d) falls linearly. ``exponential``: P(d) ~ exp(-d).
            ``xiaomi``: 0 half of the time, else any length up to ``prefix_max`` (Xiaomi-Robotics-0, arXiv 2602.12684).
            For prefixes longer than 2 it hides half of the committed actions but the last 2 from the others. The policy
            then looks at the scene. And it weighs actions by the error of a 5-step rollout of the policy, which doubles
            the cost.
        future_state_max: Longest time, in actions, by which state and actions of a training sample may be ahead of its
            images; 0: off. The policy can then run on the state that will hold when its plan takes over (VLASH, arXiv
            2512.01031).
        indicator: a prefix token for an advantage indicator (see `Indicator`), for classifier-free guidance.
        guidance_scale: weight of the indicator's classifier-free guidance at inference; 1: no extrapolation.
    """

    kind: str = "flow_vla"
    horizon: int = 16
    vision: VisionConfig = field(default_factory=VisionConfig)
    text: TextConfig = field(default_factory=TextConfig)
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    expert: ExpertConfig = field(default_factory=ExpertConfig)
    flow_samples: int = 2
    time_distribution: Literal["uniform", "beta", "logit_normal"] = "uniform"
    sampling_steps: int = 6
    prefix_max: int = 0
    prefix_law: Literal["linear", "exponential", "xiaomi"] = "linear"
    future_state_max: int = 0
    indicator: bool = False
    guidance_scale: float = 1.0

    def __post_init__(self) -> None:
        vision, expert = self.vision, self.expert
        check_ranges(self, "policy", horizon=">= 1", flow_samples=">= 1", sampling_steps=">= 1")
        check_ranges(self, "policy", guidance_scale=">= 0", future_state_max=">= 0")
        sizes = ("width", "layers", "heads", "mlp_ratio", "actions_per_token")
        check_ranges(expert, "policy.expert", **dict.fromkeys(sizes, ">= 1"))
        check_ranges(self.text, "policy.text", max_words=">= 1")
        check_ranges(vision, "policy.vision", widths=">= 1", kernels=">= 1", strides=">= 1")
        if not len(vision.widths) == len(vision.kernels) == len(vision.strides):
            raise ConfigError(
                "vision: widths, kernels and strides must have the same length, one entry per convolution"
            )
        if vision.keypoints == 0 and vision.patches == 0:
            raise ConfigError("vision: with keypoints=0 and patches=0 the policy is blind; switch one of them on")
        if vision.groups and any(width % vision.groups for width in vision.widths):
            raise ConfigError(
                f"vision: every width of {list(vision.widths)} must be a multiple of groups={vision.groups}"
            )
        if self.text.film and self.backbone.folder:
            raise ConfigError(
                "text.film modulates the small image encoder; a pretrained backbone (backbone.folder) reads sentence "
                "and pictures together anyway. Leave one of them out"
            )
        if expert.width % expert.heads:
            raise ConfigError(f"expert: width={expert.width} must be a multiple of heads={expert.heads}")
        if self.horizon % expert.actions_per_token:
            raise ConfigError(
                f"horizon={self.horizon} must be a multiple of actions_per_token={expert.actions_per_token}"
            )
        if expert.actions_per_token > 1 and (expert.window or expert.rotary or self.prefix_law == "xiaomi"):
            raise ConfigError(
                "expert.window, expert.rotary and prefix_law=xiaomi distinguish single actions; set "
                "expert.actions_per_token=1"
            )
        if expert.rotary and (expert.width // expert.heads) % 2:
            raise ConfigError(f"rotary positions need an even head size, found {expert.width // expert.heads}")
        if not 0 <= self.prefix_max < self.horizon:
            raise ConfigError(f"prefix_max={self.prefix_max} must lie in 0 .. horizon-1 = {self.horizon - 1}")


def preset(name: str) -> FlowVLAConfig:
    """The configuration of a named size, one of the files in ``configs/policy``.

    Raises:
        UserError: for an unknown name.

    Example:
        >>> preset("cpu").horizon
        16
    """
    files = {file.stem: file for file in (CONFIGS / "policy").glob("*.yaml")}
    if name not in files:
        raise UserError(f"unknown policy preset {name!r}.{did_you_mean(name, files)}")
    return load_config(FlowVLAConfig, files[name])
