"""The short-range world model in features, and a residual that is improved on branches in it."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vla_rl.algorithms.model_rollouts import BranchConfig, Imagination, Starts, imagine, improve
from vla_rl.core.errors import ConfigError
from world_model import feature_dynamics
from world_model.feature_dynamics import FeatureDynamics, FeatureDynamicsConfig, Transitions, fit_dynamics
from world_model.protocol import Observations, OneStep, Prediction

CHUNK, ACTIONS, TICKS = 3, 2, 6


def toy_transitions(seed: int = 0, shuffled: bool = False, count: int = 600) -> Transitions:
    """Two features move with the mean action, one of them not linearly; a third never changes."""
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(count, 2, generator=generator)
    actions = torch.randn(count, CHUNK, ACTIONS, generator=generator)
    mean = actions.mean(1)
    change = torch.stack([mean[:, 0], state[:, 0].sign() * mean[:, 1]], 1)
    if shuffled:
        change = change[torch.randperm(count, generator=generator)]
    constant = torch.full((count, 1), 5.0)
    lasted = torch.arange(count) % 7 > 0
    return Transitions(
        torch.cat([state, constant], 1),
        actions,
        torch.full((count,), CHUNK),
        torch.cat([state + change, constant], 1),
        lasted,
        ~lasted & (state[:, 1] > 0),
        torch.ones_like(lasted),
    )


def fitted(data: Transitions):
    torch.manual_seed(0)
    return fit_dynamics(
        data,
        FeatureDynamicsConfig(members=2, steps=400),
        torch.Generator().manual_seed(1),
    )


@pytest.fixture(scope="module")
def learned() -> tuple[Transitions, FeatureDynamics]:
    """Transitions, and the dynamics that were fitted to them. Read only."""
    data = toy_transitions()
    return data, fitted(data)


def test_dynamics_go_on_from_older_ones_in_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    data, taken = toy_transitions(400), []
    monkeypatch.setattr(feature_dynamics, "fit", lambda module, loss, name, steps, *rates: taken.append(steps))
    config, generator = FeatureDynamicsConfig(members=2, steps=10), torch.Generator()
    older = fit_dynamics(data._replace(features=2 * data.features), config, generator)
    newer = fit_dynamics(data, config, generator, before=older)
    assert all(map(torch.equal, newer.head.state_dict().values(), older.head.state_dict().values()))
    assert torch.equal(newer.linear, FeatureDynamics.of(data, config).linear), (
        "the linear part is fitted to the new data"
    )
    others = data._replace(features=data.features[:, :2], later=data.later[:, :2] * torch.tensor([1.0, 0.0]))
    others.features[:, 1] = 0
    assert len(fit_dynamics(others, config, generator, before=older).varying) == 1
    assert taken == [10, 3, 10], "other features vary there, so it begins anew"


def test_an_end_that_nobody_knows_teaches_nothing() -> None:
    data = toy_transitions(200)
    dynamics = FeatureDynamics.of(data, FeatureDynamicsConfig(members=2))

    def loss(of: Transitions) -> float:
        return float(dynamics.loss(of, torch.Generator().manual_seed(2)).detach())

    turned = data._replace(succeeded=~data.succeeded & ~data.lasted)
    assert loss(data) != pytest.approx(loss(turned))
    assert loss(data._replace(known=data.lasted)) == pytest.approx(loss(turned._replace(known=data.lasted)))


@pytest.mark.slow
def test_features_after_a_chunk_are_learnt_and_what_is_constant_stays(
    learned: tuple[Transitions, FeatureDynamics],
) -> None:
    data, dynamics = learned
    fresh = toy_transitions(seed=1)
    assert unexplained(dynamics, fresh) < 0.25, "what is linear is half of it"
    assert unexplained(fitted(toy_transitions(shuffled=True)), fresh) > 0.9
    later, success = dynamics(data.features, data.actions, torch.zeros(len(data.features), dtype=torch.int64))
    assert torch.equal(later[:, 2], data.features[:, 2])
    ends = ~data.lasted
    assert success[ends & data.succeeded].mean() > success[ends & ~data.succeeded].mean() + 0.1


def unexplained(dynamics: FeatureDynamics, data: Transitions) -> float:
    change, wrong = data.later - data.features, dynamics(data.features, data.actions)[0] - data.later
    return float((wrong.square().mean(0) / change.var(0).clamp(min=1e-9))[:2].mean())


def test_each_member_is_a_world_of_its_own(learned: tuple[Transitions, FeatureDynamics]) -> None:
    data, dynamics = learned
    both = [dynamics(data.features[:4], data.actions[:4], torch.full((4,), member))[0] for member in (0, 1)]
    mixed, _ = dynamics(data.features[:4], data.actions[:4], torch.tensor([0, 1, 0, 1]))
    assert not torch.equal(both[0], both[1])
    torch.testing.assert_close(mixed[0::2], both[0][0::2])
    torch.testing.assert_close(mixed[1::2], both[1][1::2])


class Offset(nn.Module):
    """A residual that proposes the same everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(ACTIONS))
        self.moved = torch.tensor([1.0, 0.0])

    def rows(self, features: Tensor, tick: Tensor, chunk: Tensor) -> Tensor:
        del tick, chunk
        return features

    def raw(self, offset: Tensor) -> Tensor:
        return 10 * offset

    def forward(self, rows: Tensor) -> Tensor:
        return (self.offset * self.moved).expand(len(rows), -1)


SEEN = Observations(OneStep({}, np.zeros((20, 1), np.float32)), np.arange(20))
STARTS = Starts(SEEN, torch.zeros(20), torch.zeros(20, dtype=torch.int64))


@dataclass
class Adding:
    """The only feature adds up what was sent in the first dimension."""

    success: float
    useful: float
    members: int = 1

    def encode(self, observations: Observations, member: Tensor | None = None) -> Tensor:
        del member
        return torch.from_numpy(observations.steps.state[observations.frames])

    def predict(self, state: Tensor, actions: Tensor) -> Prediction[Tensor]:
        later = state + self.useful * actions[:, :, :1].mean(1) / 10
        return Prediction(later, torch.full((len(state),), self.success), lambda: torch.zeros(len(state)))

    def decode(self, state: Tensor) -> Tensor:
        raise NotImplementedError


def world(success: float = 0.0, last_tick: int = 100, useful: float = 1.0, discount: float = 1.0) -> Imagination:
    """The feature is the logit of the chance of success."""
    return Imagination(
        Adding(success, useful),
        lambda state: state,
        lambda features: torch.zeros(len(features), CHUNK, ACTIONS),
        lambda features, tick, fold: features[:, 0].sigmoid(),
        chunk_ticks=TICKS,
        last_tick=last_tick,
        discount=discount,
    )


@pytest.fixture(autouse=True)
def plain_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advantages are whole sums of rises, and residuals learn in a few updates."""
    monkeypatch.setattr("vla_rl.ppo.GAE_LAMBDA", 1.0)
    monkeypatch.setattr("vla_rl.ppo.LEARNING_RATE", 1e-2)


def branches(**changes: float):
    return imagine(Offset(), world(**changes), STARTS, BranchConfig(branches=4), torch.Generator().manual_seed(0))


def test_an_advantage_is_what_the_value_rises_by_from_there_on() -> None:
    found, gain = branches()
    assert found.advantage.shape == (12,)
    assert not found.offset[:, 1].any(), "nothing is tried in a dimension that is not moved"
    logit = torch.stack([torch.zeros(4), *found.offset[:, 0].unflatten(0, (3, 4)).cumsum(0)])
    value = logit.sigmoid()
    torch.testing.assert_close(found.advantage.unflatten(0, (3, 4)), value[-1] - value[:-1])
    assert gain == pytest.approx(float((value[-1] - 0.5).mean()))


def test_a_branch_ends_with_success_or_with_the_time() -> None:
    torch.testing.assert_close(branches(success=1.0)[0].advantage, torch.full((4,), 0.5))
    torch.testing.assert_close(branches(last_tick=TICKS)[0].advantage, torch.full((4,), -0.5))
    assert len(branches(last_tick=2 * TICKS)[0].advantage) == 8


def test_members_disagree_where_they_have_not_been(learned: tuple[Transitions, FeatureDynamics]) -> None:
    data, dynamics = learned

    def disagreement(features: Tensor) -> float:
        one, two = (dynamics(features, data.actions, torch.full((len(features),), member))[0] for member in (0, 1))
        return float((one - two).norm(dim=1).median())

    far = torch.cat([data.features[:, :2] + 20, data.features[:, 2:]], 1)
    assert disagreement(far) > 2 * disagreement(data.features)


def test_with_a_discount_what_comes_later_is_worth_less() -> None:
    """gamma^C of each chunk: a success after the first one, and a value that is waited for."""
    gamma = 0.99**TICKS
    torch.testing.assert_close(branches(success=1.0, discount=0.99)[0].advantage, torch.full((4,), gamma - 0.5))
    waited = branches(useful=0.0, discount=0.99)[0].advantage.unflatten(0, (3, 4))
    torch.testing.assert_close(waited[:, 0], torch.tensor([gamma**3, gamma**2, gamma]) / 2 - 0.5)


@pytest.mark.parametrize(
    ("useful", "kl_coef", "least", "most"), [(1, 0, 0.2, 9), (-1, 0, -9, -0.2), (1, 30, -0.05, 0.05)]
)
def test_an_edit_goes_where_the_value_rises_and_not_far_if_that_costs(
    useful: float, kl_coef: float, least: float, most: float
) -> None:
    residual = Offset()
    config = BranchConfig(updates=15, branches=128, kl_coef=kl_coef)
    logs = improve(residual, world(useful=useful), STARTS, config, torch.Generator().manual_seed(0))
    assert least < float(residual.offset[0].detach()) < most
    assert float(residual.offset[1].detach()) == 0
    assert (logs["gain"] > 0.05) == (kl_coef == 0)


def test_an_alarm_that_would_ring_at_what_is_usual_is_refused() -> None:
    with pytest.raises(ConfigError, match="ood_ratio is"):
        BranchConfig(ood_ratio=0.5)
