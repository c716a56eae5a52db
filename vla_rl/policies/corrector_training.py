"""Training of the residual head of A2C2 (arXiv 2509.23224), see `corrector`. Torch.

The policy is frozen. The policy plans a chunk from every frame. At each of its actions the head sees the observation of
the action's tick. It learns the difference between demonstrated and planned action. Only the head's images are shifted,
never the policy's: a plan that is wrong by the shift would train the head to mistrust plans. Episodes that are held out
decide which weights are kept, so that a head with nothing to add adds nothing.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from vla_rl.core.errors import UserError
from vla_rl.core.types import Episode
from vla_rl.core.validation import check_ranges
from vla_rl.policies.base import Indicator, random_shift
from vla_rl.policies.corrector import CorrectorSpec, ResidualCorrector, age_features
from vla_rl.policies.encoders import CameraEncoder
from vla_rl.policies.flow_vla.model import FlowVLA, need_flow_vla
from vla_rl.policies.layers import Normalizer, zero_network
from vla_rl.policies.trainable import TrainablePolicy

_FRAMES_AT_ONCE = 256


@dataclass(frozen=True)
class CorrectorConfig:
    """The head and its training. The paper's own head is a network of a few layers, sized for its robot.

    Attributes:
        width: Of the hidden layers.
        layers: Linear layers, the last one included.
        steps: Gradient steps.
        batch_size: Planned actions per step.
        learning_rate, weight_decay: Of AdamW.
        plans_per_frame: Chunks that the policy plans from every frame, each with its own noise.
        random_shift: Pixels of the random-shift augmentation of what the head sees.
        held_out: Fraction of the episodes that decides which weights are kept.
    """

    width: int = 256
    layers: int = 3
    steps: int = 1500
    batch_size: int = 512
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    plans_per_frame: int = 4
    random_shift: int = 3
    held_out: float = 0.15

    def __post_init__(self) -> None:
        check_ranges(self, "", width=">= 1", layers=">= 2", steps=">= 1", batch_size=">= 1", plans_per_frame=">= 1")
        check_ranges(self, "", held_out="(0, 1)", learning_rate="> 0")


@dataclass(frozen=True)
class CorrectorFit:
    """Mean squared error of the held-out actions in normalized units, as planned and after correction."""

    planned_error: float
    corrected_error: float


def train_corrector(
    model: TrainablePolicy, episodes: Sequence[Episode], config: CorrectorConfig, seed: int
) -> tuple[ResidualCorrector, CorrectorFit]:
    """Train the corrector of a frozen policy, on the CPU, on at least two demonstrations for its robot.

    Raises:
        UserError: for too few episodes, or a policy whose image encoder has no keypoints.
    """
    model = need_keypoints(model)
    if len(episodes) < 2:
        raise UserError(f"a corrector needs at least 2 demonstrations, found {len(episodes)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        samples = [_samples_of(model, episode, config, generator) for episode in episodes]
        held = max(1, round(config.held_out * len(episodes)))
        training, validation = _join(samples[held:]), _join(samples[:held])
        widths = [training[0].shape[1], *[config.width] * (config.layers - 1)]
        head = zero_network(widths, model.spec.action_dim)
        fit = _fit(head, training, validation, config, generator)
    return exported(model, head), fit


def need_keypoints(model: TrainablePolicy) -> FlowVLA:
    """Return the policy, if its image encoder has keypoints; UserError otherwise."""
    model = need_flow_vla(model, "a residual head, which sees through the keypoints of its policy,")
    vision = model.config.vision
    if model.config.backbone.folder or not vision.keypoints or vision.groups:
        raise UserError("a corrector sees through convolutions and keypoints; this policy's encoder is of another kind")
    return model


Samples = tuple[Tensor, Tensor]
"""Inputs [N, F] and residuals [N, A], normalized; constant dimensions have none."""


@torch.no_grad()
def _samples_of(model: FlowVLA, episode: Episode, config: CorrectorConfig, generator: torch.Generator) -> Samples:
    """Every planned action of an episode, with what was observed when it was due."""
    wanted = model.action_normalizer.normalize(torch.from_numpy(episode.imitation_action()))  # [T, A]
    state = torch.from_numpy(episode.state)
    moving = model.action_normalizer.scale > 0
    inputs, residuals = [], []
    for _ in range(config.plans_per_frame):
        planned, keypoints = _plan_every_frame(model, episode, config.random_shift, generator)  # [T, H, A], [T, F]
        frame, age = np.nonzero(np.add.outer(np.arange(len(episode)), np.arange(planned.shape[1])) < len(episode))
        due = frame + age
        row = [
            keypoints[due],
            model.state_normalizer.network_input(state[due]),
            model.action_normalizer.limited(planned[frame, age]),
            torch.from_numpy(age_features(age, planned.shape[1])),
        ]
        inputs.append(torch.cat(row, 1))
        residuals.append((wanted[due] - planned[frame, age]) * moving)
    return torch.cat(inputs), torch.cat(residuals)


def _plan_every_frame(
    model: FlowVLA, episode: Episode, shift: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return a chunk from every frame, normalized [T, H, A], and the keypoints of the frame, shifted, [T, F]."""
    text = model.tokenize([episode.task])
    indicator = torch.tensor([int(Indicator.POSITIVE)])
    chunks, keypoints = [], []
    for start in range(0, len(episode), _FRAMES_AT_ONCE):
        part = slice(start, start + _FRAMES_AT_ONCE)
        images = {camera: torch.from_numpy(episode.images[camera][part]) for camera in model.spec.cameras}
        rows = len(episode.state[part])
        prefix = model.encode(
            images, torch.from_numpy(episode.state[part]), text.expand(rows, -1), indicator.expand(rows)
        )
        noise = torch.randn(rows, model.config.horizon, model.spec.action_dim, generator=generator)
        chunks.append(model.action_normalizer.normalize(model.sample(prefix, noise)))
        seen = keypoints_of(model, random_shift(images, shift, generator)) if images else torch.zeros(rows, 0)
        keypoints.append(seen)
    return torch.cat(chunks), torch.cat(keypoints)


def keypoints_of(model: FlowVLA, images: dict[str, Tensor]) -> Tensor:
    """Keypoints of all cameras, [B, cameras x 2 K], as `ResidualCorrector` computes them in numpy."""
    seen = []
    for index, camera in enumerate(model.spec.cameras):
        encoder = _encoder(model, index)
        image = images[camera].permute(0, 3, 1, 2) * (1 / 127.5) - 1.0
        seen.append(encoder.keypoints(encoder.stack(image)))
    return torch.cat(seen, 1)


def _encoder(model: FlowVLA, camera: int) -> CameraEncoder:
    encoder = model.vision.encoders[camera]
    assert isinstance(encoder, CameraEncoder)
    return encoder


def _fit(
    head: nn.Sequential, training: Samples, validation: Samples, config: CorrectorConfig, generator: torch.Generator
) -> CorrectorFit:
    """AdamW with a cosine; ``head`` ends with the weights that were best on the held-out episodes."""
    optimizer = torch.optim.AdamW(head.parameters(), config.learning_rate, weight_decay=config.weight_decay, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    planned_error = best = validation[1].square().mean().item()
    weights = copy.deepcopy(head.state_dict())
    for step in range(config.steps):
        rows = torch.randint(len(training[0]), (config.batch_size,), generator=generator)
        loss = (head(training[0][rows]) - training[1][rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % max(config.steps // 15, 1) == 0:
            with torch.no_grad():
                error = (head(validation[0]) - validation[1]).square().mean().item()
            if error < best:
                best, weights = error, copy.deepcopy(head.state_dict())
    head.load_state_dict(weights)
    return CorrectorFit(planned_error, best)


def exported(model: FlowVLA, head: nn.Sequential) -> ResidualCorrector:
    """Return the head [keypoints, state, planned action, age] -> correction, in numpy, with the policy's eyes.

    The head is linear layers with ReLU between them.
    """
    tensors: dict[str, Tensor] = {}
    for index, camera in enumerate(model.spec.cameras):
        encoder = _encoder(model, index)
        convolutions = [layer for layer in encoder.stack if isinstance(layer, nn.Conv2d)]
        for layer, convolution in enumerate(convolutions):
            tensors[f"{camera}.conv{layer}.weight"] = convolution.weight
            assert convolution.bias is not None
            tensors[f"{camera}.conv{layer}.bias"] = convolution.bias
        tensors[f"{camera}.keypoints"] = encoder.keypoints.logits.weight
    layers = [part for part in head if isinstance(part, nn.Linear)]
    for layer, linear in enumerate(layers):
        tensors[f"head{layer}.weight"], tensors[f"head{layer}.bias"] = linear.weight, linear.bias
    for name, normalizer in (("state", model.state_normalizer), ("action", model.action_normalizer)):
        assert isinstance(normalizer, Normalizer)
        tensors[f"{name}.offset"], tensors[f"{name}.scale"] = normalizer.offset, normalizer.inverse_scale
        tensors[f"{name}.limit"] = normalizer.limit
    levels = {"action.low": model.statistics.action.low, "action.high": model.statistics.action.high}
    tensors |= {name: torch.tensor(level, dtype=torch.float32) for name, level in levels.items()}
    spec = CorrectorSpec(
        model.spec.cameras,
        model.spec.image_size,
        model.config.vision.strides,
        len(layers),
        model.config.horizon,
    )
    weights = {name: tensor.detach().cpu().contiguous().numpy().copy() for name, tensor in tensors.items()}
    return ResidualCorrector(spec, weights)


def _join(samples: Sequence[Samples]) -> Samples:
    inputs, residuals = zip(*samples, strict=True)
    return torch.cat(inputs), torch.cat(residuals)
