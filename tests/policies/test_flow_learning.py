"""What training must bring about, on problems with a known answer: modes, weights, prefixes, sentences, places in
images.
"""

from collections.abc import Callable

import pytest
import torch
from tiny_policy import make_model
from torch import Tensor

from vla_rl.policies.base import Indicator, PolicyBatch
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, TextConfig, VisionConfig

BLIND = VisionConfig(widths=(4,), kernels=(8,), strides=(8,), keypoints=2)
SIZE = 32  # of a batch of training
DrawBatch = Callable[[FlowVLA, torch.Generator], tuple[PolicyBatch, Tensor]]


def blank_batch(model: FlowVLA, actions: Tensor, sentences: list[str] | None = None) -> PolicyBatch:
    size, spec = len(actions), model.spec
    images = {camera: torch.zeros(size, *spec.image_size, 3, dtype=torch.uint8) for camera in spec.cameras}
    text = model.tokenize(sentences or ["go"] * size)
    valid = torch.ones(actions.shape, dtype=torch.bool)
    return PolicyBatch(images, torch.zeros(size, spec.state_dim), text, actions, valid)


def train(model: FlowVLA, draw: DrawBatch, steps: int, learning_rate: float = 3e-3) -> None:
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    for _ in range(steps):
        batch, weights = draw(model, generator)
        per_sample, _ = model.loss(batch, generator)
        optimizer.zero_grad()
        (per_sample * weights).mean().backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def sample(model: FlowVLA, batch: PolicyBatch, committed: Tensor | None = None) -> Tensor:
    size = len(batch.state)
    noise = torch.randn(size, model.config.horizon, model.spec.action_dim, generator=torch.Generator().manual_seed(9))
    prefix = model.encode(batch.images, batch.state, batch.text, batch.indicator)
    return model.sample(prefix, noise, committed, steps=10)


def two_modes(model: FlowVLA, generator: torch.Generator, size: int = SIZE) -> PolicyBatch:
    """Every chunk stays at (1, -1) or at (-1, 1), by a coin."""
    sign = torch.randint(0, 2, (size, 1, 1), generator=generator) * 2.0 - 1.0
    actions = sign * torch.tensor([1.0, -1.0]).expand(size, model.config.horizon, 2)
    return blank_batch(model, actions)


@pytest.mark.slow
def test_both_modes_are_sampled_as_often_as_they_weigh() -> None:
    """Samples lie at the modes, not between them, and their mean is the weighted mean of the data."""
    positive_weight = 3.0
    model = make_model(vision=BLIND, flow_samples=4)

    def draw(model: FlowVLA, generator: torch.Generator) -> tuple[PolicyBatch, Tensor]:
        batch = two_modes(model, generator)
        return batch, torch.where(batch.actions[:, 0, 0] > 0, positive_weight, 1.0)

    train(model, draw, 200)
    chunks = sample(model, blank_batch(model, torch.zeros(256, 8, 2)))
    assert (chunks.abs() - 1).abs().mean() < 0.25
    assert (chunks[..., 0] * chunks[..., 1] < 0).float().mean() > 0.95
    share = (chunks[:, 0, 0] > 0).float().mean().item()
    expected = positive_weight / (positive_weight + 1)
    assert share == pytest.approx(expected, abs=0.12)
    assert chunks[..., 0].mean().item() == pytest.approx(2 * expected - 1, abs=0.25)


@pytest.mark.slow
def test_a_committed_prefix_decides_the_mode() -> None:
    model = make_model(vision=BLIND, flow_samples=4, prefix_max=3)
    train(model, lambda model, generator: (two_modes(model, generator), torch.ones(SIZE)), 200)
    for sign in (1.0, -1.0):
        committed = sign * torch.tensor([1.0, -1.0]).expand(64, 2, 2)
        chunks = sample(model, blank_batch(model, torch.zeros(64, 8, 2)), committed)
        assert (chunks[:, 2:, 0] * sign > 0).float().mean() > 0.9


@pytest.mark.slow
def test_the_indicator_decides_between_good_and_bad() -> None:
    model = make_model(vision=BLIND, flow_samples=4, indicator=True)

    def draw(model: FlowVLA, generator: torch.Generator) -> tuple[PolicyBatch, Tensor]:
        batch = two_modes(model, generator)
        good = batch.actions[:, 0, 0] > 0
        batch.indicator = torch.where(good, int(Indicator.POSITIVE), int(Indicator.NEGATIVE))
        return batch, torch.ones(SIZE)

    train(model, draw, 200)
    batch = blank_batch(model, torch.zeros(128, 8, 2))
    share = {}
    for indicator in Indicator:
        batch.indicator = torch.full((128,), int(indicator))
        share[indicator] = (sample(model, batch)[:, 0, 0] > 0).float().mean().item()
    assert share[Indicator.POSITIVE] > 0.9
    assert share[Indicator.NEGATIVE] < 0.1
    assert 0.25 < share[Indicator.NONE] < 0.75


@pytest.mark.slow
def test_the_sentence_decides_between_two_tasks() -> None:
    model = make_model(vision=BLIND, flow_samples=4)
    sentences = ["put the peg on the lid", "put the lid on the peg"]  # the same words: their order decides

    def draw(model: FlowVLA, generator: torch.Generator) -> tuple[PolicyBatch, Tensor]:
        batch = two_modes(model, generator)
        chosen = (batch.actions[:, 0, 0] > 0).long()
        batch.text = model.tokenize(sentences)[chosen]
        return batch, torch.ones(SIZE)

    train(model, draw, 200)
    for index, sign in ((0, -1.0), (1, 1.0)):
        chunks = sample(model, blank_batch(model, torch.zeros(64, 8, 2), [sentences[index]] * 64))
        assert (chunks[..., 0] * sign > 0).float().mean() > 0.95


@pytest.mark.slow
def test_a_place_in_the_image_becomes_a_place_to_go() -> None:
    """A bright square at random places, the chunk goes there: the error must be well below a pixel of the feature
    map.
    """
    vision = VisionConfig(widths=(16, 16), kernels=(4, 3), strides=(2, 1), keypoints=8)
    model = make_model(
        vision=vision, flow_samples=4, expert=ExpertConfig(width=32, layers=2, heads=2, actions_per_token=8)
    )

    def draw(model: FlowVLA, generator: torch.Generator, size: int = SIZE) -> tuple[PolicyBatch, Tensor]:
        corner = torch.randint(0, 13, (size, 2), generator=generator)
        batch = blank_batch(model, ((corner - 6.0) / 6.0)[:, None].repeat(1, 8, 1))
        for index, (y, x) in enumerate(corner.tolist()):
            batch.images["top"][index, y : y + 4, x : x + 4] = 255
        return batch, torch.ones(size)

    train(model, draw, 280)
    batch, _ = draw(model, torch.Generator().manual_seed(5), 200)
    error_pixels = (sample(model, batch) - batch.actions).abs().mean() * 6
    assert error_pixels < 1.0


@pytest.mark.slow
def test_a_sentence_names_one_of_several_objects_of_the_same_picture() -> None:
    """Three squares of different colors in changing order, the chunk goes to the one that is named: what neither the
    picture nor the sentence says alone.
    """
    vision = VisionConfig(widths=(16, 16), kernels=(4, 3), strides=(2, 1), keypoints=12)
    text = TextConfig(max_words=6, film=True)
    expert = ExpertConfig(width=48, layers=2, heads=2, actions_per_token=8)
    model = make_model(vision=vision, text=text, flow_samples=4, expert=expert)

    def draw(model: FlowVLA, generator: torch.Generator, size: int = SIZE) -> tuple[PolicyBatch, Tensor]:
        lanes = torch.stack([torch.randperm(3, generator=generator) for _ in range(size)])  # of every color
        named = torch.randint(0, 3, (size,), generator=generator)
        goal = lanes[torch.arange(size), named] - 1.0
        sentences = [f"take the {('red', 'green', 'blue')[color]} square" for color in named.tolist()]
        batch = blank_batch(model, goal[:, None, None].expand(-1, 8, 2).clone(), sentences)
        for index, places in enumerate(lanes.tolist()):
            for color, lane in enumerate(places):
                batch.images["top"][index, 5 * lane + 1 : 5 * lane + 5, 6:10, color] = 255
        return batch, torch.ones(size)

    train(model, draw, 600)
    batch, _ = draw(model, torch.Generator().manual_seed(5), 200)
    there = ((sample(model, batch) - batch.actions)[..., 0].abs() < 0.5).float().mean()
    assert there > 0.55  # who does not put both together makes a third
