"""lerobot's act, diffusion, smolvla and pi0 so small that they export in seconds, with weights from seeds."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec

SPEC = PolicySpec("toy", ("front", "top"), (32, 32), state_dim=3, action_dim=2)
IMAGE_STATISTICS = {"front": ((0.5, 0.4, 0.3), (0.2, 0.3, 0.2)), "top": ((0.1, 0.2, 0.3), (0.3, 0.2, 0.1))}
WORDS = [
    "<pad>",
    "<unk>",
    "<end_of_utterance>",
    "<fake_token_around_image>",
    "<image>",
    "<global-img>",
    "push",
    "block",
]
TEXT_LENGTH = 6


def statistics() -> Statistics:
    rng = np.random.default_rng(0)
    return Statistics.from_arrays(rng.normal(2, 3, (50, 3)), rng.normal(-1, 2, (50, 2)))


def make(kind: str, folder: Path, **options: Any) -> Any:
    """A tiny policy in evaluation mode; ``folder`` keeps the tiny language model of smolvla."""
    torch.manual_seed(0)
    policy = _MAKERS[kind](folder, options).eval()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return policy


def write_tokenizer(file: Path) -> Any:
    """A tokenizer of a few words, as HF writes it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(file))
    return tokenizer


def features() -> dict[str, Any]:
    from lerobot.configs.types import FeatureType, PolicyFeature

    inputs = {
        f"observation.images.{camera}": PolicyFeature(FeatureType.VISUAL, (3, *SPEC.image_size))
        for camera in SPEC.cameras
    }
    inputs["observation.state"] = PolicyFeature(FeatureType.STATE, (SPEC.state_dim,))
    return {
        "input_features": inputs,
        "output_features": {"action": PolicyFeature(FeatureType.ACTION, (SPEC.action_dim,))},
        "device": "cpu",
    }


def _act(_: Path, options: dict[str, Any]) -> Any:
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    sizes = {"chunk_size": 6, "n_action_steps": 6, "dim_model": 32, "n_heads": 2, "dim_feedforward": 64}
    layers = {"n_encoder_layers": 1, "n_vae_encoder_layers": 1, "latent_dim": 8}
    return ACTPolicy(ACTConfig(pretrained_backbone_weights=None, **sizes, **layers, **features(), **options))


def _diffusion(_: Path, options: dict[str, Any]) -> Any:
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    sizes: dict[str, Any] = {
        "n_obs_steps": 1,
        "horizon": 8,
        "n_action_steps": 8,
        "down_dims": (16, 32),
        "diffusion_step_embed_dim": 16,
        "spatial_softmax_num_keypoints": 4,
        "n_groups": 4,
        "crop_shape": None,
        "resize_shape": None,
        "num_train_timesteps": 20,
    }
    return DiffusionPolicy(
        DiffusionConfig(pretrained_backbone_weights=None, use_group_norm=True, **{**sizes, **features(), **options})
    )


def _smolvla(folder: Path, options: dict[str, Any]) -> Any:
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

    write_vlm(folder)
    sizes = {"chunk_size": 6, "n_action_steps": 6, "max_state_dim": 5, "max_action_dim": 4, "num_steps": 3}
    text = {"tokenizer_max_length": TEXT_LENGTH, "resize_imgs_with_padding": (32, 32), "num_vlm_layers": 2}
    local = {"vlm_model_name": str(folder), "load_vlm_weights": False}
    return SmolVLAPolicy(SmolVLAConfig(**sizes, **text, **local, **features(), **options))


def write_vlm(folder: Path) -> None:
    """A processor with a word-level tokenizer and a config, as SmolVLA reads them."""
    import transformers as typed

    transformers: Any = typed  # its types lag behind it

    special = {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}
    special |= {"global_image_token": "<global-img>", "end_of_utterance_token": "<end_of_utterance>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=write_tokenizer(folder / "tokenizer.json"),
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens=special,
    )
    images = transformers.SmolVLMImageProcessor(size={"longest_edge": 32}, max_image_size={"longest_edge": 32})
    transformers.SmolVLMProcessor(images, tokenizer, transformers.SmolVLMVideoProcessor()).save_pretrained(folder)
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    transformers.SmolVLMConfig(
        vision_config={**vision, "image_size": 32, "patch_size": 8},
        text_config={**text, **heads, "vocab_size": 16, "pad_token_id": 0},
        scale_factor=2,
        image_token_id=WORDS.index("<image>"),
        pad_token_id=0,
    ).save_pretrained(folder)


def _pi0(_: Path, options: dict[str, Any]) -> Any:
    from lerobot.policies.pi0 import modeling_pi0
    from lerobot.policies.pi0.configuration_pi0 import PI0Config

    sizes: dict[str, Any] = {"chunk_size": 6, "n_action_steps": 6, "max_state_dim": 5, "max_action_dim": 4}
    sizes |= {"num_inference_steps": 3, "dtype": "float32"}
    with _tiny_gemma(modeling_pi0):
        return modeling_pi0.PI0Policy(
            PI0Config(tokenizer_max_length=TEXT_LENGTH, image_resolution=(28, 28), **sizes, **features(), **options)
        )


@contextlib.contextmanager
def _tiny_gemma(module: Any) -> Iterator[None]:
    """lerobot knows only two sizes of Gemma and one of SigLIP; these are a thousand times smaller."""
    names = ("get_gemma_config", "PaliGemmaForConditionalGenerationWithPiGemma", "PiGemmaForCausalLM")
    kept = {name: getattr(module, name) for name in names}

    def paligemma(config: Any) -> Any:
        config._vocab_size = config.image_token_index = config.text_config.vocab_size = 16
        vision = config.vision_config
        vision.hidden_size, vision.intermediate_size, vision.num_hidden_layers = 16, 32, 1
        vision.num_attention_heads, vision.patch_size, vision.projection_dim = 2, 14, 16
        return kept["PaliGemmaForConditionalGenerationWithPiGemma"](config=config)

    def gemma(config: Any) -> Any:
        config.vocab_size = 16
        return kept["PiGemmaForCausalLM"](config=config)

    tiny = SimpleNamespace(width=16, depth=2, mlp_dim=32, num_heads=2, num_kv_heads=1, head_dim=8)
    replacements = (lambda *_: tiny, paligemma, gemma)
    for name, replacement in zip(names, replacements, strict=True):
        setattr(module, name, replacement)
    try:
        yield
    finally:
        for name, original in kept.items():
            setattr(module, name, original)


_MAKERS = {"act": _act, "diffusion": _diffusion, "smolvla": _smolvla, "pi0": _pi0}
