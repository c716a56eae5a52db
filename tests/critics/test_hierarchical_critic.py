"""The hierarchical critic against worlds whose values are known in closed form."""

import copy

import numpy as np
import pytest
import torch

from vla_rl.core.errors import ConfigError
from vla_rl.core.types import Origin, Source
from vla_rl.credit import CreditConfig, assign_batch
from vla_rl.critics.backbones import StateBackbone
from vla_rl.critics.hierarchical import (
    CriticConfig,
    HierarchicalCritic,
    efficiency_loss,
    efficiency_target,
    viability_loss,
)

P, H = Source.POLICY, Source.HUMAN
NO_TEXT = torch.zeros(0)


def make_critic(states: int, max_steps: int = 1000, **options) -> HierarchicalCritic:
    """A critic over one-hot states."""
    torch.manual_seed(0)
    return HierarchicalCritic(StateBackbone(states), CriticConfig(**options), max_steps)


def table(critic: HierarchicalCritic, states: int):
    """The critic's output at every state."""
    return critic({}, torch.eye(states), NO_TEXT)


def fit(critic, loss, steps, learning_rate=1e-2):
    optimizer = torch.optim.Adam(critic.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        schedule.step()


N = 6
"""Gambler's ruin: a fair coin moves the gambler by one between 0 (ruin) and N (success)."""


def ruin_rows():
    """Exact frequencies: outcomes of each state, and the moves of the walks that succeed (Doob's transform)."""
    outcome = [(i, 1.0) for i in range(1, N) for _ in range(i)] + [(i, 0.0) for i in range(1, N) for _ in range(N - i)]
    ups = [(i, i + 1) for i in range(1, N) for _ in range(i + 1)]
    downs = [(i, i - 1) for i in range(1, N) for _ in range(i - 1)]
    # 2 i moves of state i, so that each state weighs the same after repetition.
    return outcome, [move for move in ups + downs for _ in range(120 // (2 * move[0]))]


def fitted_ruin(**options):
    critic = make_critic(N + 1, **options)
    outcome, moves = ruin_rows()
    state, label = torch.tensor([row[0] for row in outcome]), torch.tensor([row[1] for row in outcome])
    here, there = torch.tensor(moves).T
    terminal = there == N
    elapsed = (~terminal).float()  # the step that reaches N is the terminal one: its target is 0

    def loss():
        output = table(critic, N + 1)
        _, efficiency = critic.values(output)
        target = efficiency_target(efficiency.detach()[there], elapsed, terminal, critic.max_steps)
        everything = torch.ones_like(here, dtype=torch.bool)
        return viability_loss(output.viability_logit[state], label, torch.ones_like(state, dtype=torch.bool)) + (
            efficiency_loss(output.efficiency[here], target, everything, critic.efficiency_unit_steps)
        )

    fit(critic, loss, 1200)
    with torch.no_grad():
        logit, efficiency = critic.values(table(critic, N + 1))
    return logit.sigmoid().numpy(), efficiency.numpy(), moves


@pytest.mark.slow
def test_gamblers_ruin():
    viability, efficiency, moves = fitted_ruin(efficiency_unit_steps=20.0)
    i = np.arange(1, N)
    np.testing.assert_allclose(viability[1:N], i / N, atol=0.01)
    np.testing.assert_allclose(efficiency[1:N], 1 - (N**2 - i**2) / 3, atol=0.25)
    for state in range(1, N - 1):
        advantage = [efficiency[there] - 1 - efficiency[here] for here, there in moves if here == state]
        assert np.mean(advantage) == pytest.approx(0.0, abs=0.1)


@pytest.mark.slow
def test_a_small_huber_delta_pulls_the_value_from_the_mean_towards_the_median():
    """Why ``efficiency_unit_steps`` exists: with delta = 1 step the fixed point is not the expectation."""
    _, efficiency, _ = fitted_ruin(efficiency_unit_steps=1.0)
    i = np.arange(1, N)
    assert np.abs(efficiency[1:N] - (1 - (N**2 - i**2) / 3)).max() > 1.5


START, BROKEN, REPAIRED = 0, 1, 2


def leak_episodes(rescued: int, lost: int):
    """From START the policy always errs and reaches BROKEN. A person repairs some of these, and the policy finishes."""
    rescue = ([START, BROKEN, *[BROKEN] * 10, REPAIRED], [P, P, *[H] * 10, P], True)
    loss = ([START, BROKEN, BROKEN], [P, P, P], False)
    return [rescue] * rescued + [loss] * lost


@pytest.mark.parametrize("rule", ["naive", "paper", "takeover_is_failure"])
def test_a_repair_does_not_make_the_mistake_look_viable(rule):
    states, sources, success = zip(*leak_episodes(rescued=30, lost=10), strict=True)
    state = torch.tensor(np.concatenate(states))
    if rule == "naive":
        label = torch.tensor(np.repeat(np.float32(success), [len(s) for s in states]))
        mask = torch.ones_like(state, dtype=torch.bool)
    else:
        count = len(states)
        lengths, flat = [len(s) for s in states], np.concatenate(sources)
        credit = assign_batch(flat, lengths, success, [Origin.SIM] * count, CreditConfig(rule))
        label, mask = torch.from_numpy(credit.viability_label), torch.from_numpy(credit.viability_mask)
    critic = make_critic(3)
    fit(critic, lambda: viability_loss(table(critic, 3).viability_logit[state], label, mask), 200)
    p_v = table(critic, 3).viability_logit.sigmoid()
    if rule == "naive":
        assert p_v[BROKEN] > 0.7
    else:
        assert p_v[BROKEN] < 0.02
        assert p_v[REPAIRED] > 0.98


@pytest.mark.parametrize(("rule", "expected"), [("paper", 0.36 / (0.36 + 0.32)), ("takeover_is_failure", 0.36)])
def test_label_bias_of_the_learnt_initial_value(rule, expected):
    """s = .36 of the episodes succeed alone, f = .5 of the others are rescued."""
    episodes = [([P] * 12, True)] * 36 + [([P, *[H] * 11], True)] * 32 + [([P] * 12, False)] * 32
    flat, success = np.concatenate([source for source, _ in episodes]), [won for _, won in episodes]
    credit = assign_batch(flat, [12] * 100, success, [Origin.SIM] * 100, CreditConfig(rule))
    label, mask = (torch.from_numpy(column[::12].copy()) for column in (credit.viability_label, credit.viability_mask))
    critic = make_critic(1)
    fit(critic, lambda: viability_loss(table(critic, 1).viability_logit.expand(100), label, mask), 200)
    assert learnt_probability(critic) == pytest.approx(expected, abs=0.005)


def learnt_probability(critic):
    return float(table(critic, 1).viability_logit.detach().sigmoid())


def test_targets_of_one_and_several_steps_agree_on_a_certain_path():
    """Three steps to the terminal one: values -3, -2, -1, 0 are a fixed point of every n-step target."""
    exact = torch.tensor([-3.0, -2.0, -1.0, 0.0])
    ceiling = torch.tensor(100.0)
    for steps in (1, 2, 3, 50):
        later = torch.arange(4).add(steps)
        ended = later > 3
        elapsed = later.clamp(max=3) - torch.arange(4)
        target = efficiency_target(exact[later.clamp(max=3)], elapsed.float(), ended, ceiling)
        assert torch.equal(target, exact)


def test_efficiency_stays_in_its_range():
    critic = make_critic(3, max_steps=5, efficiency_unit_steps=100.0)
    with torch.no_grad():
        critic.efficiency_head.out.bias.fill_(-9.0)
    _, efficiency = critic.values(table(critic, 3))
    assert (efficiency == -5).all()
    target = efficiency_target(efficiency, torch.ones(3), torch.zeros(3, dtype=torch.bool), critic.max_steps)
    assert (target == -5).all()


def test_nothing_labelled_gives_zero_loss_and_zero_gradient():
    critic = make_critic(3)
    output = table(critic, 3)
    nothing = torch.zeros(3, dtype=torch.bool)
    loss = viability_loss(output.viability_logit, torch.zeros(3), nothing)
    loss = loss + efficiency_loss(output.efficiency, torch.zeros(3), nothing, critic.efficiency_unit_steps)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all((p.grad is None) or not p.grad.any() for p in critic.parameters())


def test_range_is_saved_with_the_weights():
    critic = make_critic(3, max_steps=7)
    other = copy.deepcopy(critic)
    other.max_steps.fill_(9)
    critic.load_state_dict(other.state_dict())
    assert float(critic.max_steps) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_tau": 0.0}, "target_tau"),
        ({"efficiency_unit_steps": 0.0}, "efficiency_unit_steps"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        CriticConfig(**options)
