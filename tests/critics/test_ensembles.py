"""Heads of several members, computed at once."""

import pytest
import torch

from vla_rl.policies.layers import EnsembleHead


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
