"""lerobot's configuration of our policy. lerobot finds the model and the processors by the name of this module."""

from dataclasses import dataclass, field
from typing import Any

from lerobot.configs import NormalizationMode, PreTrainedConfig
from lerobot.optim import AdamWConfig
from lerobot.policies.rtc.configuration_rtc import RTCConfig

from vla_rl.policies.flow_vla.config import FlowVLAConfig


@PreTrainedConfig.register_subclass("vla_rl")
@dataclass
class VlaRlConfig(PreTrainedConfig):
    """The built-in flow-matching VLA under lerobot.

    Attributes:
        flow: architecture and training options, as in ``configs/policy``.
        n_action_steps: actions that are executed of a chunk before the next one is planned.
        discrete_dims: action dimensions that have two levels (grippers).
        delta_dims: action dimensions that are steps, of which 0 holds still.
        control_hz: actions per second.
        env_id: the environment or robot.
        statistics: of the data, as `vla_rl.core.normalization.Statistics.to_dict` gives them; taken from the
            dataset by a new policy.
        optimizer_lr, optimizer_weight_decay: of AdamW.
        rtc_config: how chunks are guided to go on from the ones before; lerobot-rollout sets it for its engine ``rtc``.
        discover_packages_path: nothing of ours. lerobot passes its argument ``--policy.discover_packages_path`` to the
            config of a policy that is given by ``--policy.path``. It would stop if the config did not accept it.
    """

    n_obs_steps: int = 1
    flow: FlowVLAConfig = field(default_factory=FlowVLAConfig)
    n_action_steps: int = 8
    discrete_dims: tuple[int, ...] = ()
    delta_dims: tuple[int, ...] = ()
    control_hz: float = 20.0
    env_id: str = "lerobot"
    statistics: dict[str, Any] | None = None
    optimizer_lr: float = 5e-4
    optimizer_weight_decay: float = 1e-4
    rtc_config: RTCConfig | None = None
    discover_packages_path: str | None = None
    # The model normalizes by itself.
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: dict.fromkeys(("VISUAL", "STATE", "ACTION"), NormalizationMode.IDENTITY)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.n_action_steps <= self.flow.horizon:
            raise ValueError(f"n_action_steps is {self.n_action_steps}; expected 1 to flow.horizon={self.flow.horizon}")

    @property
    def chunk_size(self) -> int:
        """Actions in a chunk, under the name that lerobot's sample weighters ask for."""
        return self.flow.horizon

    @property
    def observation_delta_indices(self) -> None:
        return None

    @property
    def action_delta_indices(self) -> list[int]:
        return list(range(self.flow.horizon))

    @property
    def reward_delta_indices(self) -> None:
        return None

    def get_optimizer_preset(self) -> AdamWConfig:
        return AdamWConfig(lr=self.optimizer_lr, weight_decay=self.optimizer_weight_decay)

    def get_scheduler_preset(self) -> None:
        return None

    def validate_features(self) -> None:
        """Raise ValueError unless there are cameras of one size, a state and an action."""
        sizes = {tuple(feature.shape[1:]) for feature in self.image_features.values()}
        if len(sizes) != 1 or self.robot_state_feature is None or self.action_feature is None:
            raise ValueError(
                f"vla_rl needs cameras of one size, observation.state and action; found {self.input_features} and "
                f"{self.output_features}"
            )
