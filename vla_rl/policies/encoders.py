"""Images and the task sentence to tokens: encoders of the built-in policy, and of critics with weights of their own."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.core.flow_sampling import PADDING


@dataclass(frozen=True)
class VisionConfig:
    """A convolution stack per camera, then tokens.

    Attributes:
        widths: output channels of each convolution.
        kernels: side of each kernel.
        strides: stride of each convolution.
        groups: groups of the GroupNorm after each convolution; 0: no norm.
        keypoints: number of learned image points per camera (spatial soft-argmax), which make one token; 0: none.
            They localize well from few data.
        patches: side of the grid of patch tokens per camera, 0: none.
    """

    widths: tuple[int, ...] = (32, 32)
    kernels: tuple[int, ...] = (8, 3)
    strides: tuple[int, ...] = (4, 1)
    groups: int = 0
    keypoints: int = 48
    patches: int = 0


VOCABULARY = 1024  # hash buckets of words
_WORD_WIDTH = 64  # size of a word's embedding


@dataclass(frozen=True)
class TextConfig:
    """The task sentence as hashed words.

    Attributes:
        max_words: words that are read; also the fixed, exported length.
        film: the sentence modulates the tokens of the pictures (see `FiLM`). Switch it on for tasks of one scene that
            differ only in the sentence.
    """

    max_words: int = 16
    film: bool = False


class ConvStack(nn.Sequential):
    """Strided convolutions, images [B, 3, H, W] in [-1, 1] -> features [B, C, h, w]."""

    def __init__(self, config: VisionConfig) -> None:
        layers: list[nn.Module] = []
        channels = 3
        for width, kernel, stride in zip(config.widths, config.kernels, config.strides, strict=True):
            layers.append(nn.Conv2d(channels, width, kernel, stride, padding=(kernel - 1) // 2))
            if config.groups:
                layers.append(nn.GroupNorm(config.groups, width))
            layers.append(nn.ReLU())
            channels = width
        super().__init__(*layers)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it


class Keypoints(nn.Module):
    """Where each of K learned features is in the image: spatial soft-argmax (Levine et al. 2016, arXiv 1504.00702).

    Features [B, C, h, w] -> [B, 2 K]: x and y of each keypoint, in [-1, 1].
    """

    grid: Tensor

    def __init__(self, channels: int, keypoints: int, height: int, width: int) -> None:
        super().__init__()
        self.logits = nn.Linear(channels, keypoints, bias=False)
        # Peaked from the start: near-uniform attention puts every keypoint in the middle, with hardly a gradient.
        nn.init.normal_(self.logits.weight, std=1.5)
        y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
        self.register_buffer("grid", torch.stack([x.flatten(), y.flatten()], -1), persistent=False)  # [h w, 2]

    def forward(self, features: Tensor) -> Tensor:
        # Written as weight @ features so that the softmax runs over a contiguous dimension: 3 x faster on a CPU.
        logits = self.logits.weight @ features.flatten(2)  # [B, K, h w]
        return (logits.softmax(-1) @ self.grid).flatten(1)


class CameraEncoder(nn.Module):
    """One camera's image -> tokens [B, N, width]."""

    def __init__(self, config: VisionConfig, image_size: tuple[int, int], width: int) -> None:
        super().__init__()
        self.stack = ConvStack(config)
        with torch.no_grad():
            _, channels, rows, columns = self.stack(torch.zeros(1, 3, *image_size)).shape
        self.has_keypoints, self.patches = config.keypoints > 0, config.patches
        if config.keypoints:
            self.keypoints = Keypoints(channels, config.keypoints, rows, columns)
            self.keypoint_token = nn.Linear(2 * config.keypoints, width)
        if config.patches:
            self.patch_token = nn.Linear(channels, width)
            self.patch_position = nn.Parameter(0.02 * torch.randn(config.patches**2, width))

    def forward(self, image: Tensor) -> Tensor:
        """Args: image: [B, 3, H, W] in [-1, 1], channels_last."""
        features = self.stack(image)
        tokens = []
        if self.has_keypoints:
            tokens.append(self.keypoint_token(self.keypoints(features))[:, None])
        if self.patches:
            grid = F.adaptive_avg_pool2d(features, self.patches).flatten(2).transpose(1, 2)
            tokens.append(self.patch_token(grid) + self.patch_position)
        return torch.cat(tokens, 1)


class VisionEncoder(nn.Module):
    """All cameras, of one height and width, in their order -> tokens [B, cameras x N, width]."""

    def __init__(self, config: VisionConfig, cameras: tuple[str, ...], image_size: tuple[int, int], width: int) -> None:
        super().__init__()
        self.cameras = cameras
        self.encoders = nn.ModuleList(CameraEncoder(config, image_size, width) for _ in cameras)
        self.token_count = len(cameras) * (int(config.keypoints > 0) + config.patches**2)
        self.camera_embedding = nn.Parameter(0.02 * torch.randn(len(cameras), 1, width))

    def forward(self, images: dict[str, Tensor]) -> Tensor:
        """Args: images: camera -> uint8 [B, H, W, 3], or float of the same shape in [0, 255]."""
        tokens = []
        for index, (camera, encoder) in enumerate(zip(self.cameras, self.encoders, strict=True)):
            image = images[camera].permute(0, 3, 1, 2)  # channels_last without a copy
            pixels = image if image.is_floating_point() else image.float()  # faster than uint8 times a number
            tokens.append(encoder((pixels * (1 / 127.5)).sub_(1.0)) + self.camera_embedding[index])
        return torch.cat(tokens, 1)


class TextEncoder(nn.Module):
    """Word ids [B, L] -> one token [B, 1, width]. A nonlinear layer sees words with their position: order counts."""

    def __init__(self, max_words: int, width: int, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, _WORD_WIDTH)
        self.position = nn.Parameter(0.5 * torch.randn(max_words, _WORD_WIDTH))
        self.mix = nn.Linear(_WORD_WIDTH, 2 * _WORD_WIDTH)
        self.out = nn.Linear(2 * _WORD_WIDTH, width)

    def forward(self, ids: Tensor) -> Tensor:
        present = (ids != PADDING)[..., None].to(self.position.dtype)  # [B, L, 1]
        words = torch.nn.functional.gelu(self.mix(self.word(ids) + self.position))
        pooled = (words * present).sum(1) / present.sum(1).clamp(min=1.0)
        return self.out(pooled)[:, None]


class FiLM(nn.Module):
    """Feature-wise linear modulation (Perez et al. 2018, arXiv 1709.07871): the words of the sentence scale and shift
    what is seen.

    Words are summed, not averaged, and the scales are far from one another from the start. Near the identity, the
    product of picture and sentence has almost no gradient, and a policy of one scene ignores the sentence. (By hand, on
    the
    first observations of 20 scenes, after 500 steps: .98 of unseen scenes right; from the identity .4, by chance a
    third.)
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, _WORD_WIDTH, padding_idx=PADDING)
        self.scale_and_shift = nn.Linear(_WORD_WIDTH, 2 * width)

    def forward(self, seen: Tensor, ids: Tensor) -> Tensor:
        """Args: seen: tokens [B, N, width]; ids: words [B, L]."""
        scale, shift = self.scale_and_shift(self.word(ids).sum(1, keepdim=True)).chunk(2, -1)
        return seen * (1 + scale) + shift
