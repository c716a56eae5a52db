"""The weighted loss: what the actor converges to."""

import pytest
import torch
from tiny_world import make_model, tiny
from torch import nn

from vla_rl.algorithms import actor
from vla_rl.algorithms.actor import (
    ActorConfig,
    ActorLearner,
    load_optimizer,
    make_optimizer,
    scheduled_learning_rate,
    weighted_loss,
)
from vla_rl.core.errors import UserError
from vla_rl.policies.base import PolicyBatch


class GaussianActor(nn.Module):
    """A Gaussian of fixed width around one action: its negative log-likelihood is half the squared distance."""

    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(2))

    def loss(self, batch, generator):
        del generator
        return 0.5 * (batch.actions[:, 0] - self.mean).square().sum(-1), {}


def action_batch(actions):
    count = len(actions)
    state, text = torch.zeros(count, 2), torch.zeros(count, 1, dtype=torch.int64)
    return PolicyBatch({}, state, text, actions[:, None], torch.ones(count, 1, 1, dtype=torch.bool))


def converge(actions, weight, updates=800):
    options = {"learning_rate": 2e-2, "decay_steps": updates}
    learner = ActorLearner(GaussianActor(), tiny("sft", actor=options).actor, seed=0)
    for step in range(updates):
        learner.update(action_batch(actions), weight, step)
    return learner.model.mean


@pytest.mark.slow
def test_gaussian_actor_converges_to_the_weighted_mean():
    actions = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 2.0]])
    weight = torch.tensor([2.0, 0.75, 0.25])
    expected = (weight[:, None] * actions).sum(0) / weight.sum()
    torch.testing.assert_close(converge(actions, weight), expected, atol=5e-3, rtol=0)


def gradients(model, batch, weight):
    model.zero_grad()
    weighted_loss(model.loss(batch, torch.Generator().manual_seed(1))[0], weight).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def vla_batch(model, rows):
    generator = torch.Generator().manual_seed(0)
    count = 3
    images = {"front": torch.randint(0, 255, (count, 8, 8, 3), dtype=torch.uint8, generator=generator)}
    columns = [torch.randn(count, 2, generator=generator), model.tokenize(["put it in"] * count)]
    columns += [torch.randn(count, 4, 2, generator=generator), torch.ones(count, 4, 1, dtype=torch.bool)]
    return PolicyBatch({"front": images["front"][rows]}, *(column[rows] for column in columns))


def test_unit_weights_are_behavior_cloning():
    model = make_model()
    batch = vla_batch(model, [0, 1, 2])
    weighted = gradients(model, batch, torch.ones(3))
    model.zero_grad()
    model.loss(batch, torch.Generator().manual_seed(1))[0].mean().backward()
    cloned = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert torch.equal(weighted, cloned)


def test_a_duplicated_sample_equals_a_doubled_weight():
    actions = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    doubled = gradients(GaussianActor(), action_batch(actions), torch.tensor([4.0, 2.0]) / 3)
    duplicated = gradients(GaussianActor(), action_batch(actions[[0, 0, 1]]), torch.ones(3))
    torch.testing.assert_close(doubled, duplicated)


def test_a_sample_of_weight_zero_is_as_if_it_were_not_there():
    actions = torch.tensor([[1.0, 0.0], [0.0, 3.0], [100.0, 100.0]])
    found = gradients(GaussianActor(), action_batch(actions), torch.tensor([1.5, 1.5, 0.0]))
    torch.testing.assert_close(found, gradients(GaussianActor(), action_batch(actions[:2]), torch.ones(2)))


@pytest.mark.parametrize("shape", [(), (3, 1), (2,)])
def test_losses_and_weights_that_are_not_one_number_a_sample_are_refused(shape):
    """They would broadcast, and no sample would weigh more than another."""
    batch = action_batch(torch.zeros(3, 2))
    with pytest.raises(UserError, match=r"the weights of the algorithm for 3 samples: found .*, expected \[3\]"):
        ActorLearner(GaussianActor(), ActorConfig(), seed=0).update(batch, torch.ones(shape), 0)

    class Other(GaussianActor):
        def loss(self, batch, generator):
            return super().loss(batch, generator)[0].mean() * torch.ones(shape), {}

    with pytest.raises(UserError, match=r"the loss of the policy for 3 samples: found .*, expected \[3\]"):
        ActorLearner(Other(), ActorConfig(), seed=0).update(batch, torch.ones(3), 0)


def test_no_gradient_flows_through_weights():
    weight = torch.ones(2, requires_grad=True)
    per_sample = torch.ones(2, requires_grad=True)
    weighted_loss(per_sample, weight).backward()
    assert weight.grad is None
    assert per_sample.grad is not None


def test_average_follows_and_is_what_acts():
    learner = ActorLearner(GaussianActor(), tiny("sft").actor, seed=0)
    for step in range(30):
        learner.update(action_batch(torch.ones(2, 2)), torch.ones(2), step)
    assert learner.policy() is learner.average
    assert 0 < learner.average.mean[0] < learner.model.mean[0]
    assert not learner.average.mean.requires_grad


def test_learning_rate_rises_and_falls():
    config = ActorConfig(learning_rate=1.0, warmup_steps=10, decay_steps=100)
    rates = [scheduled_learning_rate(config, update) for update in (0, 9, 50, 100, 1000)]
    assert rates == pytest.approx([0.1, 0.98, 0.55, 0.1, 0.1], abs=0.01)


def test_moments_from_a_checkpoint_get_back_the_layout_of_their_weights():
    """The fused AdamW pairs weights and moments by memory order, which a checkpoint of plain tensors does not keep."""
    weights = torch.randn(4, 3, 2, 2)
    gradient = torch.randn(4, 3, 2, 2)
    results = []
    for through_checkpoint in (False, True):
        kernel = nn.Parameter(weights.clone().to(memory_format=torch.channels_last))
        module = nn.ParameterList([kernel])
        optimizer = make_optimizer(module, 0.1, 0.0)
        for _ in range(3):
            kernel.grad = gradient.to(memory_format=torch.channels_last)
            optimizer.step()
            if through_checkpoint:
                state = optimizer.state_dict()
                state["state"][0] = {name: value.contiguous().clone() for name, value in state["state"][0].items()}
                load_optimizer(optimizer, state)
            gradient = gradient.flip(0)
        gradient = gradient.flip(0)
        results.append(kernel.detach().contiguous())
    assert torch.equal(*results)


def test_half_of_the_bits_are_in_the_products_and_never_in_the_weights():
    def learned(precision):
        learner = ActorLearner(make_model(), tiny("sft", actor={"precision": precision}).actor, seed=0)
        batch, weight = vla_batch(learner.model, [0, 1, 2]), torch.ones(3)
        losses = [learner.update(batch, weight, step)["actor_loss"] for step in range(5)]
        assert all(parameter.dtype == torch.float32 for parameter in learner.model.parameters())
        return losses

    whole, half = learned("float32"), learned("bfloat16")
    assert half == pytest.approx(whole, rel=0.03)
    assert half != whole


@pytest.mark.parametrize("computes", [True, False])
def test_auto_is_bfloat16_where_the_device_computes_in_it(monkeypatch, computes):
    monkeypatch.setattr(actor, "computes_bfloat16", lambda device: computes)
    learner, seen = ActorLearner(GaussianActor(), ActorConfig(precision="auto"), seed=0), []
    loss = learner.model.loss
    monkeypatch.setattr(
        learner.model, "loss", lambda *batch: seen.append(torch.is_autocast_enabled("cpu")) or loss(*batch)
    )
    learner.update(action_batch(torch.ones(3, 2)), torch.ones(3), 0)
    assert seen == [computes]
