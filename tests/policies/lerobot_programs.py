"""lerobot's programs in this process, and tiny policies for them."""

import shlex
from pathlib import Path

import torch

from benchmarks.docs_commands import commands
from vla_rl.policies.lerobot_adapter.model import IMAGENET

REPOSITORY = Path(__file__).resolve().parents[2]
TASK, SIZE, DIMS = "vla_rl/PegInsert-v0", 64, 8  # the documented task, the side of its pictures, its state and action


def documented(program: str, *words: str) -> list[str]:
    """The arguments of the one line in the docs that runs ``program`` and holds all ``words``."""
    page = REPOSITORY / "docs" / "lerobot.md"
    lines = [shlex.split(command.text) for command in commands(page) if not command.python]
    found = [line for line in lines if line[:1] == [program] and all(word in " ".join(line) for word in words)]
    assert len(found) == 1, f"docs/lerobot.md has {len(found)} lines of {program} with {words}"
    return found[0][1:]


def write_policy(kind: str, folder: Path, size: int, dims: int) -> None:
    """A tiny, random policy of lerobot's with its processors."""
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

    sizes = {
        "act": {
            "dim_model": 16, "n_heads": 2, "dim_feedforward": 16, "n_encoder_layers": 1, "n_vae_encoder_layers": 1,
            "latent_dim": 4, "chunk_size": 4, "n_action_steps": 4,
        },
        "diffusion": {
            "down_dims": (8, 16), "n_groups": 2, "diffusion_step_embed_dim": 8, "spatial_softmax_num_keypoints": 4,
            "num_train_timesteps": 4, "horizon": 8,
        },
    }  # fmt: skip
    cameras = {
        f"observation.images.{camera}": PolicyFeature(FeatureType.VISUAL, (3, size, size))
        for camera in ("front", "top")
    }
    config = make_policy_config(
        kind,
        input_features={**cameras, "observation.state": PolicyFeature(FeatureType.STATE, (dims,))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (dims,))},
        pretrained_backbone_weights=None,
        device="cpu",
        **sizes[kind],
    )
    vector = {"mean": torch.zeros(dims), "std": torch.ones(dims), "min": -torch.ones(dims), "max": torch.ones(dims)}
    picture = {name: torch.tensor(values)[:, None, None] for name, values in IMAGENET.items()}
    statistics = {"observation.state": vector, "action": vector, **dict.fromkeys(cameras, picture)}
    get_policy_class(kind)(config).save_pretrained(folder)
    for pipeline in make_pre_post_processors(config, dataset_stats=statistics):
        pipeline.save_pretrained(folder)
