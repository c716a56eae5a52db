"""RAVL: target-only states, divergence of the base, and boundedness of the ensemble minimum."""

import pytest
import torch

from vla_rl.critics.outcome import pessimistic
from vla_rl.policies.layers import EnsembleHead, EnsembleLinear

REWARD, DISCOUNT = 0.1, 0.99


def truncated_chain(length: int, starts: tuple[int, ...], steps: int):
    """Transitions 0 -> 1 -> 2 ... of rollouts that are cut after some steps. The chain ends far behind."""
    states = [start + step for start in starts for step in range(steps)]
    return states, [state + 1 for state in states], [state + 1 == length for state in states]


def target_only_states(states: list[int], later: list[int], done: list[bool]) -> set[int]:
    """Bootstrap targets that no sample corrects; what follows a finished task is none."""
    return {state for state, ends in zip(later, done, strict=True) if not ends} - set(states)


def test_target_only_states_of_a_chain():
    assert target_only_states(*truncated_chain(20, starts=(0, 1), steps=2)) == {3}
    assert target_only_states(*truncated_chain(20, starts=(0, 1, 8), steps=2)) == {3, 10}
    assert target_only_states(*truncated_chain(3, starts=(0, 1), steps=2)) == set()


def value_iteration(generalization: torch.Tensor, iterations: int) -> torch.Tensor:
    """Fitted values of the chain 0 -> 1 -> 2 -> 3, where 3 is target-only; [M, 4].

    Each member is exact on the states with data. What it believes of state 3 is what it has learned of state 2 times
    its own factor: how a network generalizes to where no data corrects it.
    """
    members = len(generalization)
    critic = EnsembleLinear(members, 3, 1)
    with torch.no_grad():
        critic.weight.fill_(1.0)
        critic.bias.zero_()
    features = torch.zeros(members, 4, 3)
    features[:, :3] = torch.eye(3)
    features[:, 3, 2] = generalization
    for _ in range(iterations):
        with torch.no_grad():
            values = critic(features)[..., 0]
            target = REWARD + DISCOUNT * pessimistic(values[:, 1:])
            critic.weight.copy_(target[None, :, None].expand_as(critic.weight))
    return critic(features)[..., 0].detach()


def test_base_diverges_where_the_ensemble_minimum_stays_bounded():
    spread = torch.linspace(0.6, 1.6, 10)
    ceiling = REWARD / (1 - DISCOUNT)  # nothing can be worth more
    assert value_iteration(spread.mean()[None], 200).max() > 100 * ceiling
    bounded = value_iteration(spread, 200)
    assert bounded[:, :3].max() < ceiling
    assert bounded.min() > 0


@pytest.mark.parametrize("asked", [[0, 3, 3, 1, 0, 3], [2] * 6])
def test_one_member_a_row_says_what_it_says_among_all(asked):
    torch.manual_seed(0)
    head, rows, member = EnsembleHead(4, 5, (8, 8), 3, normalized=True), torch.randn(6, 5), torch.tensor(asked)
    torch.testing.assert_close(head.of_member(rows, member), head(rows)[member, torch.arange(6)])


def test_some_members_say_what_they_say_among_all():
    torch.manual_seed(0)
    head, rows, two = EnsembleHead(4, 5, (8, 8), 3, normalized=True), torch.randn(6, 5), torch.tensor([3, 1])
    assert torch.equal(head(rows, two), head(rows)[two])


def test_members_are_independent():
    torch.manual_seed(0)
    head = EnsembleHead(4, 5, (8, 8), 1)
    values = head(torch.randn(5, 5))[..., 0]
    assert values.shape == (4, 5)
    values[2].sum().backward()
    touched = [index for index in range(4) if head.out.weight.grad[index].any()]
    assert touched == [2]
