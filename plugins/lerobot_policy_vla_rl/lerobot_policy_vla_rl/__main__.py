"""A policy of ours as a folder that lerobot-eval and lerobot-rollout load.

Example: python -m lerobot_policy_vla_rl runs/demo/policies/version_0003 runs/demo/lerobot
"""

import sys
from pathlib import Path

from vla_rl.core.errors import UserError
from vla_rl.policies.flow_vla.model import need_flow_vla
from vla_rl.policies.folders import load_model


def convert(policy: Path, out: Path) -> None:
    """Write a policy folder of ours as one of lerobot's.

    Raises:
        UserError: for a folder that holds no policy of ours, or one of another kind than the built-in.
    """
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.factory import make_pre_post_processors

    from lerobot_policy_vla_rl.configuration_vla_rl import VlaRlConfig
    from lerobot_policy_vla_rl.modeling_vla_rl import VlaRlPolicy

    model = need_flow_vla(load_model(policy)[0], "lerobot's plugin")
    spec = model.spec
    pictures = {
        f"observation.images.{camera}": PolicyFeature(FeatureType.VISUAL, (3, *spec.image_size))
        for camera in spec.cameras
    }
    config = VlaRlConfig(
        input_features={"observation.state": PolicyFeature(FeatureType.STATE, (spec.state_dim,)), **pictures},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (spec.action_dim,))},
        device="cpu",
        flow=model.config,
        n_action_steps=min(8, model.config.horizon),
        discrete_dims=model.statistics.discrete_dims,
        delta_dims=spec.delta_dims,
        control_hz=spec.control_hz,
        env_id=spec.env_id,
        statistics=model.statistics.to_dict(),
    )
    theirs = VlaRlPolicy(config)
    theirs.model.load_state_dict(model.state_dict())
    theirs.save_pretrained(out)
    for pipeline in make_pre_post_processors(config):
        pipeline.save_pretrained(out)


if __name__ == "__main__":
    try:
        convert(*map(Path, sys.argv[1:3]))
    except (UserError, TypeError) as error:
        sys.exit(f"usage: python -m lerobot_policy_vla_rl POLICY OUT ({error})")
