"""Configs of lerobot's policies so small that they train in seconds; their features are left to whoever builds them.

pi0 and pi0.5 have no small size of their own: see `shrink_pi`.
"""

from pathlib import Path
from typing import Any

import pytest

WORDS = {word: index for index, word in enumerate(["<pad>", "<unk>", "push", "open", "it", "Task", ":"])}


def tiny_config(kind: str, folder: Path) -> Any:
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.pi0.configuration_pi0 import PI0Config
    from lerobot.policies.pi05.configuration_pi05 import PI05Config
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig

    if kind == "act":
        small = {"dim_model": 16, "n_heads": 2, "dim_feedforward": 16, "n_encoder_layers": 1, "n_vae_encoder_layers": 1}
        return ACTConfig(
            chunk_size=4, n_action_steps=4, latent_dim=4, pretrained_backbone_weights=None, device="cpu", **small
        )
    if kind == "diffusion":
        return DiffusionConfig(
            n_obs_steps=1, horizon=4, n_action_steps=4, down_dims=(8, 16), n_groups=2, diffusion_step_embed_dim=8,
            spatial_softmax_num_keypoints=4, num_train_timesteps=4, pretrained_backbone_weights=None,
            use_group_norm=True, drop_n_last_frames=0, device="cpu",
        )  # fmt: skip
    if kind == "smolvla":
        return SmolVLAConfig(
            vlm_model_name=str(smolvlm_folder(folder)), load_vlm_weights=False, chunk_size=4, n_action_steps=4,
            resize_imgs_with_padding=(32, 32), tokenizer_max_length=8, num_vlm_layers=2, max_state_dim=8,
            max_action_dim=8, num_steps=2, device="cpu", freeze_vision_encoder=False, train_expert_only=False,
        )  # fmt: skip
    pi = PI0Config if kind == "pi0" else PI05Config
    return pi(
        chunk_size=4, n_action_steps=4, max_state_dim=9, max_action_dim=8, num_inference_steps=2, dtype="float32",
        image_resolution=(32, 32), tokenizer_max_length=16, device="cpu",
    )  # fmt: skip


def shrink_resnet(patch: pytest.MonkeyPatch) -> None:
    """Put a stand-in for resnet18, which has 11 million weights and is the smallest backbone that lerobot knows."""
    import torchvision
    from torch import nn

    class TinyResNet(nn.Module):
        def __init__(self, norm_layer: Any = nn.BatchNorm2d, **_: Any) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 16, 8, 4)
            self.bn1 = norm_layer(16)
            self.layer4 = nn.Sequential(nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1))
            self.avgpool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(32, 1)

    patch.setattr(torchvision.models, "resnet18", TinyResNet)


def shrink_pi(patch: pytest.MonkeyPatch) -> None:
    """lerobot builds pi0 at full size only: its sizes are caught where it asks for them."""
    from lerobot.policies.pi0 import modeling_pi0
    from lerobot.policies.pi05 import modeling_pi05
    from transformers import AutoTokenizer

    def shrunk(whole: Any) -> Any:
        def build(config: Any) -> Any:
            config.text_config.vocab_size = 64
            vision = config.vision_config
            vision.hidden_size = vision.intermediate_size = vision.projection_dim = vision.patch_size = 16
            vision.num_hidden_layers, vision.num_attention_heads = 1, 2
            return whole(config=config)

        return build

    for module in (modeling_pi0, modeling_pi05):
        whole = module.PaliGemmaForConditionalGenerationWithPiGemma
        patch.setattr(module, "PaliGemmaForConditionalGenerationWithPiGemma", shrunk(whole))
        patch.setattr(
            module,
            "get_gemma_config",
            lambda _: modeling_pi0.GemmaConfig(width=16, depth=1, mlp_dim=16, num_heads=8, num_kv_heads=1, head_dim=8),
        )
    patch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: tokenizer())


def tokenizer(**options: Any) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", **options)


def smolvlm_folder(folder: Path) -> Path:
    from transformers import SmolVLMConfig, SmolVLMImageProcessor, SmolVLMProcessor, SmolVLMVideoProcessor

    text = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 64, "pad_token_id": 0}
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    SmolVLMConfig(
        vision_config=vision | {"image_size": 32, "patch_size": 8},
        text_config=text,
        scale_factor=2,
        image_token_id=63,
        pad_token_id=0,
    ).save_pretrained(folder)
    names = {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}
    names |= {"global_image_token": "<global-img>", "end_of_utterance_token": "<end_of_utterance>"}
    words = tokenizer(extra_special_tokens=names)
    SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(),
        tokenizer=words,
        video_processor=SmolVLMVideoProcessor(),
        image_seq_len=4,
    ).save_pretrained(folder)
    return folder
