"""Masked group-relative policy optimisation, in itself and with the flow policy in imagined environments."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_world_model import make_model
from toy_episodes import toy_cache

from vla_rl.core.errors import ConfigError
from vla_rl.core.types import PolicySpec
from vla_rl.policies.flow_sde import NoisyFlowActor, NoisyFlowConfig
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, TextConfig, VisionConfig
from vla_rl.policies.normalization import Statistics
from world_model.imagined_env import ImaginedEnvConfig, ImaginedVectorEnv
from world_model.improvement import (
    GroupConfig,
    ImaginedGroups,
    MaskedGroupOptimiser,
    clipped_loss,
    collect_groups,
    counted_actions,
    group_advantages,
)
from world_model.starts import StartBank, StartConfig
from world_model.windows import LatentEpisodes


def test_advantages_are_relative_to_the_group_and_one_sided_groups_are_left_out() -> None:
    config = GroupConfig(group=4)
    success = torch.tensor([1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]) > 0
    never = torch.zeros(12, dtype=torch.bool)
    advantage, kept = group_advantages(success, never, config)
    assert advantage[:4].tolist() == [0.75, -0.25, -0.25, -0.25]
    assert kept.tolist() == [True] * 4 + [False] * 8
    with pytest.raises(ConfigError, match="no relative advantage"):
        GroupConfig(group=1)


def test_who_was_cut_counts_neither_in_the_mean_nor_in_the_gradient() -> None:
    success = torch.tensor([True, False, False, False, True, False, False, False])
    cut = torch.tensor([False, False, True, True, False, True, True, True])
    advantage, kept = group_advantages(success, cut, GroupConfig(group=4))
    whole, _ = group_advantages(success[:2], cut[:2], GroupConfig(group=2))
    assert advantage.tolist() == [*whole.tolist(), 0, 0, 0, 0, 0, 0]
    assert kept.tolist() == [True, True] + [False] * 6, "of the second group only one outcome is known"


def test_nothing_after_the_first_success_has_a_gradient() -> None:
    outcome, never = np.array([True, False]), np.zeros(2, bool)
    groups = ImaginedGroups([None] * 4, 3, outcome, never, np.array([5, 10]), np.array([12, 10]))
    counted = counted_actions(groups, GroupConfig(group=2))
    assert counted.tolist() == [[3, 3], [2, 3], [0, 3], [0, 1]]
    unmasked = counted_actions(groups, GroupConfig(group=2, mask_after_success=False))
    assert unmasked.tolist() == [[3, 3], [3, 3], [3, 3], [3, 1]], "each to its own limit of time"
    mask = counted > 0
    new = torch.zeros(8, requires_grad=True)
    flat = torch.from_numpy(mask.T.flatten())
    loss, _ = clipped_loss(new, torch.zeros(8), torch.tensor([1.0] * 4 + [-1.0] * 4), flat)
    loss.backward()
    assert torch.equal(new.grad != 0, flat)  # exactly zero where masked


def test_the_ratio_is_clipped_further_upwards_than_downwards() -> None:
    for log_ratio, advantage, has_gradient in (
        (0.24, 1.0, True),  # ratio 1.27
        (0.26, 1.0, False),  # ratio 1.30
        (-0.21, -1.0, True),  # ratio .81
        (-0.24, -1.0, False),  # ratio .79
        (0.5, -1.0, True),  # the pessimistic side is never clipped
    ):
        new = torch.tensor([log_ratio], requires_grad=True)
        one = torch.ones(1, dtype=torch.bool)
        loss, _ = clipped_loss(new, torch.zeros(1), torch.tensor([advantage]), one)
        loss.backward()
        assert bool(new.grad) == has_gradient, log_ratio


def tiny_policy() -> FlowVLA:
    spec = PolicySpec("toy", ("front", "top"), (16, 16), state_dim=3, action_dim=2)
    config = FlowVLAConfig(
        horizon=8,
        vision=VisionConfig(widths=(8,), kernels=(4,), strides=(4,), keypoints=4, patches=2),
        text=TextConfig(max_words=6, vocabulary=64, width=8),
        expert=ExpertConfig(width=32, layers=1, heads=2, actions_per_token=2),
    )
    random = np.random.default_rng(0)
    torch.manual_seed(0)
    return FlowVLA(config, spec, Statistics.from_arrays(random.normal(size=(50, 3)), random.normal(size=(50, 2)), ()))


def test_a_draw_is_repeatable_and_more_likely_under_the_policy_that_made_it() -> None:
    config = NoisyFlowConfig(noise=0.1, steps=3, execute_ticks=4)
    actor, random = NoisyFlowActor(tiny_policy(), "push", config), np.random.default_rng(1)
    images = {name: random.integers(0, 255, (5, 16, 16, 3), dtype=np.uint8) for name in ("front", "top")}
    state, seeds = random.normal(size=(5, 3)).astype(np.float32), np.arange(5)
    actions, draw = actor.draw(images, state, seeds, 6)
    again, _ = actor.draw(images, state, seeds, 6)
    np.testing.assert_array_equal(actions, again)
    assert actions.shape == (5, 8, 2)
    rows = [torch.tensor([0, 2, 4])]
    whole, one = [torch.tensor([4, 4, 4])], [torch.tensor([1, 1, 1])]
    own = actor.log_probability([draw], rows, whole)
    path = draw.path.requires_grad_()
    (gradient,) = torch.autograd.grad(actor.log_probability([draw], rows, one).sum(), [path])
    path.requires_grad_(False)
    assert gradient[-1, :, 0].abs().sum() > 0
    assert not gradient[-1, :, 1:].any(), "actions that do not count have no gradient"
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    assert (actor.log_probability([draw], rows, whole) < own).all()


def test_improvement_raises_what_is_rewarded(tmp_path: Path) -> None:
    """Rewarded are chunks whose first action is high; the draws' log-probability must move towards them."""
    actor = NoisyFlowActor(tiny_policy(), "push", NoisyFlowConfig(noise=0.3, steps=2, execute_ticks=2))
    optimiser = MaskedGroupOptimiser(actor, GroupConfig(group=16, learning_rate=5e-3))
    random = np.random.default_rng(2)
    images = {name: random.integers(0, 255, (16, 16, 16, 3), dtype=np.uint8) for name in ("front", "top")}
    images = {name: np.repeat(image[:1], 16, 0) for name, image in images.items()}
    state = np.zeros((16, 3), np.float32)
    means = []
    for step in range(10):
        actions, draw = actor.draw(images, state, np.arange(16) + 100 * step, 0)
        high = actions[:, :2, 0].mean(1)
        success = high > np.median(high)
        means.append(high.mean())
        optimiser.update(ImaginedGroups([draw], 2, success, np.zeros(16, bool), np.full(16, 2), np.full(16, 2)))
    assert np.mean(means[-3:]) > np.mean(means[:3]) + 0.1


def test_groups_are_imagined_from_shared_starts(tmp_path: Path) -> None:
    model = make_model()
    data = LatentEpisodes(toy_cache(tmp_path), model.autoencoder)
    bank = StartBank(data, StartConfig(keyframe_fraction=0.0))
    env = ImaginedVectorEnv(model, data, bank, 6, ImaginedEnvConfig(success_threshold=2.0))
    actor = NoisyFlowActor(tiny_policy(), "push", NoisyFlowConfig(steps=2, execute_ticks=5))
    groups = collect_groups(env, actor, GroupConfig(group=3), seed=50)
    assert env.starts[0] == env.starts[1] == env.starts[2]
    assert len(groups.draws) == 3  # 12 steps in chunks of 5
    assert not groups.success.any()
    assert (groups.ended == 12).all()
    assert (groups.limit == 12).all()
    before = [parameter.clone() for parameter in actor.parameters()]
    logs = MaskedGroupOptimiser(actor, GroupConfig(group=3)).update(groups)
    assert logs["kept"] == 0.0
    assert all(torch.equal(old, new) for old, new in zip(before, actor.parameters(), strict=True))
    with pytest.raises(ConfigError, match="cannot be divided into groups of 4"):
        collect_groups(env, actor, GroupConfig(group=4), seed=0)
