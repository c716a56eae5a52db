"""The flow-matching model: what the loss counts, what sampling keeps, what conditions it."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from tiny_policy import TINY, make_batch, make_model
from torch import Tensor

from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.policies.base import Indicator, PolicyBatch, random_shift
from vla_rl.policies.flow_vla import (
    BackboneConfig,
    ExpertConfig,
    FlowVLA,
    FlowVLAConfig,
    TextConfig,
    VisionConfig,
    preset,
)


def gradients(model: FlowVLA, batch: PolicyBatch, weights: Tensor | None = None) -> list[Tensor]:
    model.zero_grad()
    per_sample, _ = model.loss(batch, torch.Generator().manual_seed(7))
    (per_sample if weights is None else per_sample * weights).sum().backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def encode(model: FlowVLA, batch: PolicyBatch, indicator: Tensor | None = None):
    return model.encode(batch.images, batch.state, batch.text, indicator)


def noise_for(model: FlowVLA, size: int, seed: int = 1) -> Tensor:
    shape = (size, model.config.horizon, model.spec.action_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["cpu", "small"])
def test_presets_give_chunks_of_the_right_shape(name: str) -> None:
    spec = PolicySpec("toy", ("front", "top"), (64, 64), state_dim=5, action_dim=3)
    rng = np.random.default_rng(0)
    model = FlowVLA(preset(name), spec, Statistics.from_arrays(rng.normal(size=(9, 5)), rng.normal(size=(9, 3))))
    batch = make_batch(model, 2)
    per_sample, logs = model.loss(batch, torch.Generator().manual_seed(0))
    assert per_sample.shape == (2,)
    assert torch.isfinite(per_sample).all()
    assert "flow_loss" in logs
    prefix = encode(model, batch)
    assert model.sample(prefix, noise_for(model, 2)).shape == (2, preset(name).horizon, 3)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean 'small'"):
        preset("smal")


@pytest.mark.parametrize(
    "options",
    [
        {"vision": VisionConfig(widths=(8, 8), kernels=(3,), strides=(1,))},
        {"vision": VisionConfig(keypoints=0)},
        {"vision": VisionConfig(groups=5)},
        {"expert": ExpertConfig(width=33)},
        {"expert": ExpertConfig(actions_per_token=3)},
        {"prefix_max": 16},
        {"flow_samples": 0},
        {"text": TextConfig(film=True), "backbone": BackboneConfig(folder="models/smolvlm")},
    ],
)
def test_impossible_configs_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        FlowVLAConfig(**options)  # type: ignore[arg-type]


def test_steps_that_are_not_valid_have_no_loss_of_their_own() -> None:
    """The loss of all steps is the mean of the losses of two parts, each as long as it is; no valid step, no loss."""
    model = make_model()
    batch = make_batch(model)
    horizon, first = model.config.horizon, 3
    early = torch.zeros_like(batch.valid)
    early[:, :first] = True

    def loss(valid: torch.Tensor) -> torch.Tensor:
        return model.loss(dataclasses.replace(batch, valid=valid), torch.Generator().manual_seed(7))[0]

    both = (first * loss(early) + (horizon - first) * loss(~early)) / horizon
    torch.testing.assert_close(loss(torch.ones_like(early)), both, rtol=1e-5, atol=1e-6)
    assert (loss(torch.zeros_like(early)) == 0).all()


def test_the_loss_is_per_sample() -> None:
    """A weight of zero removes a sample exactly; losses of one sample do not depend on the others."""
    model = make_model()
    batch = make_batch(model)
    losses, _ = model.loss(batch, torch.Generator().manual_seed(3))
    changed = dataclasses.replace(batch, actions=batch.actions.clone())
    changed.actions[0] += 1.0
    others, _ = model.loss(changed, torch.Generator().manual_seed(3))
    assert losses[0] != others[0]
    torch.testing.assert_close(losses[1:], others[1:], rtol=1e-5, atol=1e-6)
    weights = torch.tensor([0.0, 1.0, 1.0, 1.0])
    for one, other in zip(gradients(model, batch, weights), gradients(model, changed, weights), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_loss_follows_the_generator_alone() -> None:
    model = make_model(prefix_max=3, time_distribution="beta")
    batch = make_batch(model)
    first, _ = model.loss(batch, torch.Generator().manual_seed(5))
    torch.manual_seed(99)
    again, _ = model.loss(batch, torch.Generator().manual_seed(5))
    assert torch.equal(first, again)
    other, _ = model.loss(batch, torch.Generator().manual_seed(6))
    assert not torch.equal(first, other)


@pytest.mark.parametrize("length", [1, 3, 8])
def test_committed_actions_are_kept_and_condition_the_rest(length: int) -> None:
    model = make_model(prefix_max=4)
    batch = make_batch(model)
    prefix, noise = encode(model, batch), noise_for(model, 4)
    committed = batch.actions[:, :length] * 3
    chunk = model.sample(prefix, noise, committed)
    assert (chunk[:, :length] - committed).abs().max() < 1e-6
    if length < model.config.horizon:
        other = model.sample(prefix, noise, committed + 0.5)
        assert (chunk[:, length:] - other[:, length:]).abs().max() > 1e-4


def test_two_graphs_equal_sampling() -> None:
    """Encode once, step N times, as the deployed policy does: bit for bit the same as `sample`."""
    model = make_model()
    batch = make_batch(model)
    noise = noise_for(model, 4)
    with torch.no_grad():
        prefix = encode(model, batch)
        actions = noise
        for step in range(5):
            time = torch.full((4, model.config.horizon), step / 5)
            actions = actions + model.velocity(actions, time, prefix) / 5
        expected = model.sample(prefix, noise, steps=5)
        assert torch.equal(model.to_raw_actions(actions), expected)


def test_every_input_matters() -> None:
    model = make_model()
    batch = make_batch(model)
    noise = noise_for(model, 4)
    reference = model.sample(encode(model, batch), noise)
    images = {name: image.clone() for name, image in batch.images.items()}
    images["top"] = 255 - images["top"]
    for changed in (
        dataclasses.replace(batch, images=images),
        dataclasses.replace(batch, state=batch.state + 1),
        dataclasses.replace(batch, text=model.tokenize(["open the door"] * 4)),
    ):
        assert (model.sample(encode(model, changed), noise) - reference).abs().max() > 1e-4
    assert (model.sample(encode(model, batch), noise_for(model, 4, 2)) - reference).abs().max() > 1e-4


def test_float_images_are_read_like_bytes_and_left_alone() -> None:
    model = make_model()
    batch = make_batch(model)
    floats = {name: image.float() for name, image in batch.images.items()}
    copies = {name: image.clone() for name, image in floats.items()}
    tokens, _ = model.features(floats, batch.state, batch.text)
    torch.testing.assert_close(tokens, model.features(batch.images, batch.state, batch.text)[0])
    assert all(torch.equal(floats[name], copies[name]) for name in floats)


def test_the_indicator_conditions_and_guidance_extrapolates() -> None:
    model = make_model(indicator=True, guidance_scale=2.0)
    batch = make_batch(model)
    noise = noise_for(model, 4)
    none = encode(model, batch)
    positive = encode(model, batch, torch.full((4,), int(Indicator.POSITIVE)))
    time = torch.full((4, 8), 0.3)
    plain, without = model.velocity(noise, time, positive), model.velocity(noise, time, none)
    assert (plain - without).abs().max() > 1e-4
    torch.testing.assert_close(model.guided_velocity(noise, time, positive, none), without + 2 * (plain - without))
    assert torch.equal(model.guided_velocity(noise, time, positive, None), plain)


@pytest.mark.parametrize("steps", [6, 10])
def test_imagined_draws_take_half_the_steps_and_are_nearly_as_exact(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The true flow to data around -1 and 1, of standard deviation .3; its end is known by many steps."""
    model, evaluations = make_model(sampling_steps=steps), []

    def velocity(actions: Tensor, time: Tensor, *_: object) -> Tensor:
        evaluations.append(time)
        tau = time[..., None]
        variance = (0.3 * tau).square() + (1 - tau).square()
        near = (tau * actions / variance).tanh()
        clean = near + 0.09 * tau / variance * (actions - tau * near)
        return (clean - actions) / (1 - tau)

    monkeypatch.setattr(model, "guided_velocity", velocity)
    prefix, noise = encode(model, make_batch(model)), noise_for(model, 256)
    free = torch.zeros(1, model.horizon, dtype=torch.bool)
    exact, euler = (model._integrate(noise, free, prefix, count) for count in (2000, steps))
    evaluations.clear()
    found = model._extrapolated(noise, prefix, None)
    assert len(evaluations) == steps // 2
    assert (found - exact).square().mean().sqrt() < 1.2 * (euler - exact).square().mean().sqrt()


@pytest.mark.parametrize("guidance_scale", [1.0, 2.0])
@pytest.mark.parametrize("expert", [{}, {"window": 4, "actions_per_token": 1, "rotary": True}])
def test_features_alone_ask_for_good_actions_too(guidance_scale: float, expert: dict[str, Any]) -> None:
    """What critics see carries no indicator; a policy that acts from it, real or imagined, asks for good actions."""
    config = ExpertConfig(width=32, layers=1, heads=2, **expert)
    model = make_model(indicator=True, guidance_scale=guidance_scale, expert=config)
    batch = make_batch(model)
    noise, inputs = noise_for(model, 4), (batch.images, batch.state, batch.text)
    none, positive = encode(model, batch), encode(model, batch, torch.full((4,), int(Indicator.POSITIVE)))
    expected = model.sample(positive, noise, unconditional=none if guidance_scale != 1 else None)
    torch.testing.assert_close(model.draw(*inputs, noise), expected)
    imagined = model.to_raw_actions(model._extrapolated(noise, positive, none if guidance_scale != 1 else None))
    torch.testing.assert_close(model.draw_from(*model.features(*inputs), noise), imagined)
    assert (model.sample(none, noise) - expected).abs().max() > 1e-4


def test_the_indicator_is_dropped_at_its_rate() -> None:
    model = make_model(indicator=True)
    batch = make_batch(model, 400)
    batch.indicator = torch.full((400,), int(Indicator.NEGATIVE))
    kept = model._drop_indicator(batch, torch.Generator().manual_seed(0))
    assert kept is not None
    assert (kept == Indicator.NEGATIVE).float().mean().item() == pytest.approx(0.7, abs=0.06)


def test_discrete_dimensions_come_out_at_their_levels() -> None:
    model = make_model(discrete_dims=(1,))
    batch = make_batch(model)
    chunk = model.sample(encode(model, batch), noise_for(model, 4))
    levels = torch.tensor([model.statistics.action.low[1], model.statistics.action.high[1]])
    assert torch.isin(chunk[..., 1], levels).all()
    assert not torch.isin(chunk[..., 0], levels).any()


def test_sentences_become_the_same_words_everywhere() -> None:
    model = make_model()
    ids = model.tokenize(["Pick up the CUBE.", "pick up the cube", "the cube pick up", ""])
    assert torch.equal(ids[0], ids[1])
    assert not torch.equal(ids[1], ids[2])
    assert ids.shape == (4, TINY["text"].max_words)
    assert (ids[3] == 0).all()
    assert torch.isfinite(model.text(ids)).all()
    assert ids[0, 0].item() == 1 + 2580352923 % 1023  # crc32 of "pick": saved policies rely on it


def test_random_shift_moves_and_repeats_edges() -> None:
    ramp = torch.arange(16, dtype=torch.uint8)[None, None, :, None].expand(6, 16, 16, 3).contiguous()
    shifted = random_shift({"front": ramp}, 2, torch.Generator().manual_seed(0))["front"]
    assert shifted.shape == ramp.shape
    moves = set()
    for image in shifted:
        row = image[0, :, 0].int()
        offset = int(row[8]) - 8
        moves.add(offset)
        assert abs(offset) <= 2
        assert torch.equal(row, (torch.arange(16) + offset).clamp(0, 15))
    assert len(moves) > 1
    assert random_shift({"front": ramp}, 0, torch.Generator())["front"] is ramp
