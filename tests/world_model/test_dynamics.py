"""The dynamics see no future, and a stream with a bounded cache gives what all frames at once give."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_world_model import make_batch, make_model
from torch import Tensor

from world_model.dynamics import WorldBatch, _is_fast_in_bfloat16
from world_model.model import VideoModel

ABLATIONS: list[dict[str, Any]] = [
    {},
    {"memory_frames": 0},
    {"state_frequencies": 3},
    {"joined_tokens": True, "state_frequencies": 2},
    {"window": 1, "memory_frames": 5, "memory_pool": 1},
]


@torch.no_grad()
def at_once(model: VideoModel, batch: WorldBatch) -> Tensor:
    """Everything that is predicted of every frame, [B, T, numbers]."""
    dynamics = model.dynamics
    latents, state = batch.latents[:, :-1], batch.state[:, :-1]
    context = dynamics.context(batch, latents, state)
    hidden, condition = dynamics.hidden(context)
    predicted = dynamics.predict(hidden, condition, latents, state)
    outcome = [part if part.ndim == 3 else part[..., None] for part in predicted.outcome]
    return torch.cat([predicted.latents.flatten(2), predicted.state, *outcome], -1)


@torch.no_grad()
def streamed(model: VideoModel, batch: WorldBatch) -> Tensor:
    dynamics = model.dynamics
    memory = dynamics.begin(batch.latents[:, 0], batch.state[:, 0])
    rows = []
    for frame in range(batch.action.shape[1]):
        latents, state = batch.latents[:, frame], batch.state[:, frame]
        step = dynamics.step(memory, latents, state, batch.action[:, frame])
        outcome = [part if part.ndim == 2 else part[..., None] for part in step.outcome]
        rows.append(torch.cat([step.latents.flatten(1), step.state, *outcome], -1))
    return torch.stack(rows, 1)


@pytest.mark.parametrize("changes", ABLATIONS, ids=str)
@pytest.mark.parametrize("column", ["latents", "state", "action"])
def test_no_frame_sees_the_future(changes: dict[str, Any], column: str) -> None:
    model = make_model(**changes)
    batch = make_batch(model)
    before = at_once(model, batch)
    for frame in (1, 4, 8):
        changed = getattr(batch, column).clone()
        changed[:, frame:] += 1.0
        after = at_once(model, replace(batch, **{column: changed}))
        assert torch.equal(after[:, :frame], before[:, :frame])
    present = getattr(batch, column).clone()
    present[:, 4] += 1.0
    seen = at_once(model, replace(batch, **{column: present}))[:, 4]
    assert not torch.equal(seen, before[:, 4])  # the test can fail: the present is seen


@pytest.mark.parametrize("changes", ABLATIONS, ids=str)
def test_a_stream_equals_all_frames_at_once(changes: dict[str, Any]) -> None:
    model = make_model(**changes)
    batch = make_batch(model, frames=11)
    torch.testing.assert_close(streamed(model, batch), at_once(model, batch), atol=1e-4, rtol=1e-4)


def test_streams_restart_one_by_one() -> None:
    model = make_model()
    dynamics, batch = model.dynamics, make_batch(model, size=2, frames=6)
    fresh = streamed(model, batch)
    with torch.no_grad():
        memory = dynamics.begin(batch.latents[:, 0], batch.state[:, 0])
        for frame in range(4):  # whatever stream 1 lived through before
            latents = torch.stack([batch.latents[0, frame], 3 * batch.latents[1, 5 - frame]])
            dynamics.push(memory, latents, batch.state[:, frame], batch.action[:, frame])
        memory.age[1] = 0
        for frame in range(6):
            other = min(frame + 4, 5)
            latents = torch.stack([batch.latents[0, other], batch.latents[1, frame]])
            state = torch.stack([batch.state[0, other], batch.state[1, frame]])
            action = torch.stack([batch.action[0, other], batch.action[1, frame]])
            step = dynamics.step(memory, latents, state, action)
            size = step.latents[1].numel()
            torch.testing.assert_close(step.latents[1].flatten(), fresh[1, frame, :size], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("remembered", "seen"), [(0, 4), (2, 6)])
def test_the_memory_reaches_beyond_the_window(remembered: int, seen: int) -> None:
    """By one frame more, since the frame after the changed one is told the change."""
    model = make_model(memory_frames=remembered, layers=1)
    batch = make_batch(model)
    changed = batch.latents.clone()
    changed[:, 0] += 1.0
    differs = (at_once(model, replace(batch, latents=changed)) != at_once(model, batch)).any(-1).any(0)
    assert differs.tolist() == [frame < seen for frame in range(9)]


@pytest.mark.slow
def test_the_cache_is_bounded() -> None:
    model = make_model()
    batch = make_batch(model, size=1)
    with torch.no_grad():
        memory = model.dynamics.begin(batch.latents[:, 0], batch.state[:, 0])

        def numbers() -> int:
            pairs = memory.recent + memory.compressed
            return sum(key.numel() + value.numel() for key, value in pairs)

        size = numbers()
        for _ in range(100):
            hidden, _ = model.dynamics.push(memory, batch.latents[:, 0], batch.state[:, 0], batch.action[:, 0])
        assert numbers() == size
        assert torch.isfinite(hidden).all()


@pytest.mark.slow
def test_the_loss_falls_and_every_mechanism_gets_a_gradient() -> None:
    model = make_model(self_context=1.0)
    batch = make_batch(model, size=4, frames=6)
    batch.success[:, -1] = 1.0
    optimizer = torch.optim.Adam(model.dynamics.parameters(), 3e-3)
    losses = []
    for step in range(60):
        loss, logs = model.dynamics.loss(batch, torch.Generator().manual_seed(step % 3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(logs["success_loss"] + logs["proprioception_loss"])
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])
    silent = [name for name, weight in model.dynamics.named_parameters() if not weight.grad.abs().sum() > 0]
    assert silent == []


@pytest.mark.parametrize("self_context", [0.0, 1.0])
def test_half_precision_gives_nearly_the_gradients_of_full(self_context: float) -> None:
    """Also after the context was imagined without gradients: weights that were cast there must not lose theirs."""
    gradients = []
    for bfloat16 in (False, True):
        model = make_model(self_context=self_context)
        model.dynamics.in_bfloat16 = bfloat16
        model.dynamics.loss(make_batch(model, size=8), torch.Generator().manual_seed(0))[0].backward()
        gradients.append({name: weight.grad for name, weight in model.dynamics.named_parameters()})
    fast = _is_fast_in_bfloat16(torch.device("cpu"))
    assert fast == any((gradients[1][name] != full).any() for name, full in gradients[0].items()), "was it used?"
    for name, full in gradients[0].items():
        difference = (gradients[1][name] - full).norm() / full.norm().clamp(min=1e-3)
        assert difference < 0.15, name


def test_the_waves_of_a_pose() -> None:
    """sin and cos of x / 2, x, 2 x, for the state in standard deviations and for where linear servos would take it."""
    model = make_model(state_frequencies=3)
    dynamics, batch = model.dynamics, make_batch(model)
    dynamics.state_mean.fill_(0.5)
    dynamics.state_std.fill_(2.0)
    dynamics.state_change_std.fill_(0.25)
    context = dynamics.context(batch, batch.latents[:, :-1], batch.state[:, :-1])
    state, change, sines, cosines = dynamics._poses(context).split([3, 3, 18, 18], -1)
    torch.testing.assert_close(state, (batch.state[:, :-1] - 0.5) / 2)
    servos = state + change * 0.25 / 2
    for dim in range(3):
        for index, place in enumerate((state, servos)):
            for octave, frequency in enumerate((0.5, 1.0, 2.0)):
                column = (dim * 2 + index) * 3 + octave
                torch.testing.assert_close(sines[..., column], (frequency * place[..., dim]).sin())
                torch.testing.assert_close(cosines[..., column], (frequency * place[..., dim]).cos())


def test_training_sees_the_errors_of_imagination() -> None:
    """Frames before the third are real; the others are what `step` gives, one after the other."""
    model = make_model(self_context=1.0, context_noise=0.0, state_noise=0.0)
    batch = make_batch(model, size=16, frames=6)
    latents, state = model.dynamics._imagine_context(
        batch, batch.latents[:, :-1], batch.state[:, :-1], torch.Generator().manual_seed(0)
    )
    assert torch.equal(latents[:, :2], batch.latents[:, :2])
    own = (latents != batch.latents[:, :-1]).any(-1).any(-1)  # [B, T]
    assert own.any()
    assert not own.all()
    assert (own.int().diff(dim=1) >= 0).all(), "once imagined, always imagined"
    row = int(own.sum(1).argmax())
    assert own[row].sum() == 4
    with torch.no_grad():
        memory = model.dynamics.begin(batch.latents[:, 0], batch.state[:, 0])
        frame = batch.latents[:, 0], batch.state[:, 0]
        for index in range(1, 6):
            step = model.dynamics.step(memory, *frame, batch.action[:, index - 1])
            real = torch.full((16, 1), index < 2)
            frame = (
                torch.where(real[..., None], batch.latents[:, index], step.latents),
                torch.where(real, batch.state[:, index], step.state),
            )
            torch.testing.assert_close(latents[row, index], frame[0][row])
            torch.testing.assert_close(state[row, index], frame[1][row])
