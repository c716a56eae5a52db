"""The graphs of lerobot's act, diffusion, smolvla and pi0, around lerobot's own modules.

Images enter as uint8 [1, H, W, 3]; scaling, resizing and normalizing them is inside the graphs, as each policy does it.
Flow time runs as in `vla_rl.core.flow_sampling`: 0 at noise, 1 at clean actions; lerobot's runs the other way.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def to_unit_range(image: Tensor) -> Tensor:
    """uint8 [B, H, W, 3] -> float32 [B, 3, H, W] in [0, 1]."""
    return image.float().permute(0, 3, 1, 2) / 255.0


class ImageNormalization(nn.Module):
    """(x - mean) / std per channel; mean and std are float32 [3], or 0 and 1."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", std.view(1, 3, 1, 1), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        return (to_unit_range(image) - self.mean) / self.std


class _Normalizing(nn.Module):
    """A graph that normalizes each camera's images."""

    def __init__(self, policy: Any, normalizations: Sequence[ImageNormalization]) -> None:
        super().__init__()
        self.policy = policy
        self.normalizations = nn.ModuleList(normalizations)

    def normalized(self, images: Sequence[Tensor]) -> list[Tensor]:
        return [normalize(image) for normalize, image in zip(self.normalizations, images, strict=True)]


class ActGraph(_Normalizing):
    """act: images and normalized state -> normalized actions [1, H, A], in one go."""

    def forward(self, *inputs: Tensor) -> Tensor:
        *images, state = inputs
        batch = {"observation.state": state, "observation.images": self.normalized(images)}
        actions: Tensor = self.policy.model(batch)[0]
        return actions


class DiffusionPrefix(_Normalizing):
    """diffusion: images and normalized state -> the condition of the U-Net, [1, C]."""

    def forward(self, *inputs: Tensor) -> Tensor:
        *images, state = inputs
        batch = {"observation.state": state[:, None]}
        if images:  # [B, 1 observation, cameras, 3, H, W]
            batch["observation.images"] = torch.stack(self.normalized(images), 1)[:, None]
        condition: Tensor = self.policy.diffusion._prepare_global_conditioning(batch)
        return condition


class DiffusionStep(nn.Module):
    """diffusion: one step of its scheduler, DDPM or DDIM, both linear but for the clipping.

    ``coefficients`` float32 [1, 6] begins with sqrt(a), sqrt(1 - a) of this step. Then come the weights of the clipped
    clean actions, of the actions, of the network's noise, and of ``step_noise``.
    """

    def __init__(self, policy: Any, stochastic: bool) -> None:
        super().__init__()
        self.policy = policy
        self.stochastic = stochastic

    def forward(
        self, actions: Tensor, timestep: Tensor, coefficients: Tensor, condition: Tensor, *step_noise: Tensor
    ) -> Tensor:
        config = self.policy.config
        signal, noise_level, of_clean, of_actions, of_noise, of_fresh = coefficients[:, :, None, None].unbind(1)
        output = self.policy.diffusion.unet(actions, timestep, global_cond=condition)
        if config.prediction_type == "epsilon":
            noise, clean = output, (actions - noise_level * output) / signal
        else:
            noise, clean = (actions - signal * output) / noise_level, output
        if config.clip_sample:
            clean = clean.clamp(-config.clip_sample_range, config.clip_sample_range)
        following = of_clean * clean + of_actions * actions + of_noise * noise
        return following + of_fresh * step_noise[0] if self.stochastic else following


class _Prefix(nn.Module):
    def __init__(self, policy: Any, image_keys: Sequence[str]) -> None:
        super().__init__()
        self.policy = policy
        self.image_keys = tuple(image_keys)

    def batch(self, images: Sequence[Tensor]) -> dict[str, Tensor]:
        """Images by lerobot's keys, in [0, 1]."""
        return {key: to_unit_range(image) for key, image in zip(self.image_keys, images, strict=True)}


class SmolVLAPrefix(_Prefix):
    """smolvla: images, normalized state and text -> keys and values of each layer, [1, heads, N, size], and mask."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        from lerobot.policies.common.vla_utils import make_att_2d_masks

        *images, state, text, text_mask = inputs
        policy, model = self.policy, self.policy.model
        seen, seen_masks = policy.prepare_images(self.batch(images))
        padded = policy.prepare_state({"observation.state": state})
        embedded, mask, attention = model.embed_prefix(seen, seen_masks, text, text_mask, state=padded)
        _, cache = model.vlm_with_expert.forward(
            attention_mask=make_att_2d_masks(mask, attention),
            position_ids=torch.cumsum(mask, dim=1) - 1,
            past_key_values=None,
            inputs_embeds=[embedded, None],
            use_cache=True,
        )
        return (*(layer.keys for layer in cache.layers), *(layer.values for layer in cache.layers), mask)


class Pi0Prefix(_Prefix):
    """pi0: as `SmolVLAPrefix`; the state, padded, goes on to the steps."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        from lerobot.policies.common.vla_utils import make_att_2d_masks, prepare_attention_masks_4d

        *images, state, text, text_mask = inputs
        policy, model = self.policy, self.policy.model
        seen, seen_masks = policy._preprocess_images(self.batch(images))
        embedded, mask, attention = model.embed_prefix(seen, seen_masks, text, text_mask)
        expert = model.paligemma_with_expert
        expert.paligemma.model.language_model.config._attn_implementation = "eager"
        _, cache = expert.forward(
            attention_mask=prepare_attention_masks_4d(make_att_2d_masks(mask, attention)),
            position_ids=torch.cumsum(mask, dim=1) - 1,
            past_key_values=None,
            inputs_embeds=[embedded, None],
            use_cache=True,
        )
        padded = policy.prepare_state({"observation.state": state})
        keys, values = [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]
        return (*keys, *values, mask, padded)


class VlaStep(nn.Module):
    """smolvla and pi0: one Euler step, its sum in float32."""

    def __init__(self, policy: Any, layers: int, steps: int) -> None:
        super().__init__()
        self.policy = policy
        self.layers, self.steps = layers, steps

    def forward(self, actions: Tensor, time: Tensor, *prefix: Tensor) -> tuple[Tensor, Tensor]:
        from transformers import DynamicCache

        keys, values = prefix[: self.layers], prefix[self.layers : 2 * self.layers]
        mask, *state = prefix[2 * self.layers :]
        cache = DynamicCache(tuple((key, value, None) for key, value in zip(keys, values, strict=True)))
        arguments = {"state": state[0]} if state else {}
        velocity = -self.policy.model.denoise_step(
            prefix_pad_masks=mask, past_key_values=cache, x_t=actions, timestep=1.0 - time, **arguments
        ).float()
        return velocity, actions + velocity / self.steps
