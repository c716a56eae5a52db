"""lerobot's processors around our policy: batching and device only, since the model normalizes by itself."""

from typing import Any

from lerobot.processor import make_default_pre_post_processors

from lerobot_policy_vla_rl.configuration_vla_rl import VlaRlConfig


def make_vla_rl_pre_post_processors(config: VlaRlConfig, dataset_stats: dict[str, Any] | None = None) -> Any:
    """Return the pipelines in front of the policy and behind it; lerobot finds this function by its name."""
    return make_default_pre_post_processors(config, dataset_stats, normalizer_device=config.device)
