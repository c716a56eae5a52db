"""A policy that draws several chunks executes the one that its critic thinks most of, and is the policy as it was
without one."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_policy import SPEC, make_model, make_observation

from vla_rl.core.errors import CheckpointError, ConfigError
from vla_rl.core.metadata import CRITIC_FOLDER
from vla_rl.policies.base import draw_from_flat, flat_features
from vla_rl.policies.best_of_n import (
    LEAST_VARIED,
    BestOfN,
    BestOfNConfig,
    ChunkCritic,
    ChunkCriticConfig,
    best_candidate,
)
from vla_rl.policies.checkpoint import save_selector
from vla_rl.policies.folders import load_policy
from vla_rl.policies.residual import Residual, ResidualConfig

TICKS, DRAWS = 4, 6
SMALL = ChunkCriticConfig(chunk_ticks=TICKS, members=2, hidden=(8,))


def liking(model, dimension: int, sign: float) -> ChunkCritic:
    """A critic that likes what goes further than usual in one dimension, and nothing else."""
    critic = ChunkCritic(model, SMALL)
    column = len(critic.mean) - 2 * model.spec.action_dim + dimension
    critic.head = _Linear(column, sign)
    return critic


class _Linear(torch.nn.Module):
    def __init__(self, column: int, sign: float) -> None:
        super().__init__()
        self.column, self.sign = column, sign

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (self.sign * rows[:, self.column])[None, :, None]


class _Peaked(torch.nn.Module):
    """Likes one deviation best, and others less the farther they are from it."""

    def __init__(self, column: int, best: float) -> None:
        super().__init__()
        self.column, self.best = column, best

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return -(rows[:, self.column] - self.best).square()[None, :, None]


def acting(model, critic: ChunkCritic | None, **choice: float):
    policy = model.acting(version=1)
    if critic is not None:
        policy.selector = BestOfN(critic, BestOfNConfig(**choice))
    policy.reset(5)
    return policy


@pytest.mark.parametrize("committed", [0, 2])
def test_one_draw_without_an_offset_is_the_policy_as_it_is(committed: int) -> None:
    model, observation = make_model(), make_observation()
    given = np.full((committed, SPEC.action_dim), 0.1, np.float32)
    plain = acting(model, None).infer(observation, given)
    chosen = acting(model, liking(model, 0, 1.0), num_samples=1, offset_std=0.0).infer(observation, given)
    np.testing.assert_allclose(chosen.actions, plain.actions, atol=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_candidate_is_executed_that_the_critic_likes_best(sign: float) -> None:
    model, observation = make_model(), make_observation()
    critic = liking(model, 0, sign)
    chosen = [
        acting(model, critic, num_samples=count, offset_std=0.5).infer(observation).actions
        for count in (1, 2, 4, 8, 16)
    ]
    liked = [float(sign * chunk[:TICKS, 0].mean()) for chunk in chosen]
    assert liked == sorted(liked), "more candidates contain the fewer"
    assert liked[-1] > liked[0]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("action", [1, -1])  # one that is judged, and one after those
@pytest.mark.parametrize("candidate", [0, 3])
def test_a_candidate_that_is_not_finite_is_not_chosen_while_another_is(
    candidate: int, action: int, number: float
) -> None:
    """Also where it is the first, which the others are compared with."""
    model, generator = make_model(), torch.Generator().manual_seed(0)
    selector = BestOfN(liking(model, 0, 1.0), BestOfNConfig(num_samples=DRAWS, ood_penalty=0.5))
    features = torch.zeros(1, len(selector.critic.mean) - 1 - 2 * SPEC.action_dim)
    noise = torch.randn(1, selector.noise_rows(model.horizon), SPEC.action_dim, generator=generator)
    drawn = torch.randn(1, 1 + DRAWS, model.horizon, SPEC.action_dim, generator=generator)
    drawn[0, 1 + candidate, action, 0] = number
    judged = selector.judged(model, features, torch.zeros(1), noise, drawn, torch.ones(model.horizon), 0)
    assert best_candidate(*judged).isfinite().all()


class _Usual(BestOfN):
    """Every candidate is the policy's usual chunk, so that they differ by their residuals alone."""

    def starts(self, noise: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(super().starts(noise))


@pytest.mark.parametrize(
    ("best", "graded", "share"), [(1.0, True, 1.0), (0.0, True, 0.0), (0.5, True, 0.5), (0.0, False, 1.0)]
)
def test_of_graded_edits_the_critic_says_how_far_to_go(best: float, graded: bool, share: float) -> None:
    model, amount = make_model(), 0.3
    critic, residual = liking(model, 0, 1.0), pushing(model, amount)
    whole = residual(torch.zeros(1, len(residual.mean)))[0, 0].item()
    critic.head = _Peaked(critic.head.column, best * whole)

    def acts(residual: Residual | None) -> np.ndarray:
        policy = acting(model, None)
        policy.selector = _Usual(critic, BestOfNConfig(num_samples=5, offset_std=0.0, graded_residual=graded), residual)
        return policy.infer(make_observation()).actions[:TICKS, 0]

    moved = (acts(residual) - acts(None)) / float(residual.action_normalizer.scale[0])
    np.testing.assert_allclose(moved, share * whole, atol=1e-5)


def test_what_is_new_costs_the_variances_by_which_it_is() -> None:
    """The candidate that is liked best is not taken where it is farther from what was learned from than it is worth."""
    model = make_model()
    critic = liking(model, 0, 1.0)
    critic.scale[-2 * SPEC.action_dim :] = 0.5
    rows = torch.zeros(2, len(critic.mean))
    column = len(critic.mean) - 2 * SPEC.action_dim
    rows[1, column] = 1.0  # two standard deviations in one of 2 A numbers
    torch.testing.assert_close(critic.novelty(rows), torch.tensor([0.0, 4.0 / (2 * SPEC.action_dim)]))
    never = ChunkCritic(model, SMALL)
    never.scale.fill_(1e-6)
    assert never.novelty(rows)[1] == pytest.approx(1 / LEAST_VARIED**2 / (2 * SPEC.action_dim)), "not without bound"
    observation = make_observation()
    free, bound = (acting(model, critic, num_samples=8, offset_std=1.0, ood_penalty=cost) for cost in (0.0, 1e4))
    liked = [float(policy.infer(observation).actions[:TICKS, 0].mean()) for policy in (free, bound)]
    assert liked[0] > liked[1], "at any price"


def test_what_is_committed_is_kept_and_what_follows_is_judged() -> None:
    model, observation = make_model(), make_observation()
    given = np.full((3, SPEC.action_dim), 0.2, np.float32)
    chunks = [
        acting(model, liking(model, 0, sign), num_samples=DRAWS, offset_std=0.5).infer(observation, given).actions
        for sign in (1.0, -1.0)
    ]
    for chunk in chunks:
        np.testing.assert_array_equal(chunk[:3], given)
    assert chunks[0][3 : 3 + TICKS, 0].mean() > chunks[1][3 : 3 + TICKS, 0].mean()


@pytest.mark.parametrize("exact", [True, False])
def test_a_guided_chunk_is_chosen_too_and_what_is_held_stays(exact: bool) -> None:
    model, observation = make_model(), make_observation()
    previous = np.full((5, SPEC.action_dim), 0.2, np.float32)

    def guided(critic: ChunkCritic | None, **choice: float) -> np.ndarray:
        return acting(model, critic, **choice).infer_guided(observation, previous, 2, exact_gradient=exact).actions

    same = guided(liking(model, 0, 1.0), num_samples=1, offset_std=0.0)
    np.testing.assert_allclose(same, guided(None), atol=1e-5)
    up, down = (guided(liking(model, 0, sign), num_samples=DRAWS, offset_std=0.5) for sign in (1.0, -1.0))
    assert up[2 : 2 + TICKS, 0].mean() > down[2 : 2 + TICKS, 0].mean()
    moved = np.abs(up - down).max(1)
    assert moved[:2].max() < 0.5 * moved[-3:].min()


def test_offsets_are_of_normalized_size_and_none_for_the_first_candidate_and_discrete_dimensions() -> None:
    model = make_model(discrete_dims=(1,))
    critic = ChunkCritic(model, SMALL)
    selector = BestOfN(critic, BestOfNConfig(num_samples=DRAWS, offset_std=0.5))
    noise = torch.randn(2000, DRAWS, 1, SPEC.action_dim, generator=torch.Generator().manual_seed(0))
    offsets = selector._offsets(critic, model, noise)
    assert not offsets[:, 0].any()
    assert not offsets[..., 1].any()
    assert float(offsets[:, 1:, 0, 0].std()) == pytest.approx(0.5 * model.statistics.action.std[0], rel=0.05)


def test_choices_repeat_exactly_and_follow_the_seed() -> None:
    model, observation = make_model(), make_observation()
    policy = acting(model, liking(model, 0, 1.0), num_samples=DRAWS, offset_std=0.5)
    first = policy.infer(observation).actions
    policy.reset(5)
    np.testing.assert_array_equal(policy.infer(observation).actions, first)
    policy.reset(6)
    assert not np.array_equal(policy.infer(observation).actions, first)


def test_several_draws_equal_those_drawn_alone() -> None:
    model, observation = make_model(), make_observation()
    policy = acting(model, None)
    inputs = policy._inputs(observation)
    noise = torch.randn(1, 3, model.horizon, SPEC.action_dim, generator=torch.Generator().manual_seed(0))
    several = model.draw_several(*inputs, noise)
    for index in range(3):
        torch.testing.assert_close(several[:, index], model.draw(*inputs, noise[:, index]))
    torch.testing.assert_close(several, super(type(model), model).draw_several(*inputs, noise))
    seen = model.features(*inputs)
    assert torch.equal(model.draw_several(*inputs, noise, seen=seen), several)


def test_a_choice_looks_at_an_observation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, observation = make_model(), make_observation()
    policy, looks = acting(model, liking(model, 0, 1.0), num_samples=DRAWS), []
    features = model.features
    monkeypatch.setattr(model, "features", lambda *inputs: looks.append(1) or features(*inputs))
    policy.infer(observation)
    assert len(looks) == 1


def test_a_critic_travels_in_the_folder_of_its_policy(tmp_path: Path) -> None:
    model, observation = make_model(), make_observation()
    critic = ChunkCritic(model, SMALL)
    model.save(tmp_path / "policy", {"policy_version": 3})
    save_selector(tmp_path / "policy" / CRITIC_FOLDER, BestOfN(critic, BestOfNConfig(num_samples=5, offset_std=0.3)))
    found = load_policy(tmp_path / "policy")
    found.reset(5)
    wanted = acting(model, critic, num_samples=5, offset_std=0.3).infer(observation)
    np.testing.assert_array_equal(found.infer(observation).actions, wanted.actions)
    assert found.version == 3


@pytest.mark.parametrize("damage", ["weights", "format", "another policy", "not finite", "no json"])
def test_a_critic_that_does_not_fit_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    model, folder = make_model(), tmp_path / "policy"
    model.save(folder)
    critic = ChunkCritic(make_model(horizon=6) if damage == "another policy" else model, SMALL)
    if damage == "another policy":
        critic.head.out.bias.data = torch.zeros(3, 1, 1)
    if damage == "not finite":
        critic.head.out.bias.data.fill_(float("nan"))
    save_selector(folder / CRITIC_FOLDER, BestOfN(critic, BestOfNConfig()))
    file = folder / CRITIC_FOLDER / "config.json"
    if damage == "weights":
        weights = next((folder / CRITIC_FOLDER).glob("*.safetensors"))
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    elif damage == "format":
        file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 99}))
    elif damage == "no json":
        file.write_text("{")
    with pytest.raises(CheckpointError) as caught:
        load_policy(folder)
    assert "\n" not in str(caught.value)


def pushing(model, amount: float) -> Residual:
    """A residual that wants every dimension moved by so much."""
    residual = Residual(model, ResidualConfig(hidden=(8,)))
    residual.net[-1].bias.data.fill_(amount)
    return residual


def test_an_edit_moves_what_is_free_and_continuous_by_one_bounded_offset() -> None:
    model, observation = make_model(discrete_dims=(1,)), make_observation()
    given = np.full((2, SPEC.action_dim), 0.1, np.float32)
    policy, critic = acting(model, None), ChunkCritic(model, SMALL)
    plain = policy.infer(observation, given).actions

    def moved(amount: float) -> np.ndarray:
        policy.selector = BestOfN(critic, BestOfNConfig(num_samples=1, offset_std=0.0), pushing(model, amount))
        return (policy.infer(observation, given).actions - plain) / model.statistics.action.std[0]

    assert np.abs(moved(0.0)).max() < 1e-5
    for amount, least, most in ((0.1, 0.09, 0.1), (100.0, 0.49, 0.5)):
        offset = moved(amount)
        assert not offset[:2].any()
        assert not offset[:, 1].any()
        assert least < offset[2, 0] <= most + 1e-5
        np.testing.assert_allclose(offset[2:, 0], offset[2, 0], atol=1e-5)


def test_where_nothing_is_left_to_choose_the_committed_chunk_is_executed() -> None:
    model, given = make_model(), np.full((8, SPEC.action_dim), 0.1, np.float32)
    policy = acting(model, ChunkCritic(model, SMALL), num_samples=2, offset_std=0.3)
    policy.selector.residual = pushing(model, 0.3)
    np.testing.assert_array_equal(policy.infer(make_observation(), given).actions, given)


def test_the_critic_judges_edited_candidates_and_both_travel_together(tmp_path: Path) -> None:
    model, observation = make_model(), make_observation()
    selector = BestOfN(ChunkCritic(model, SMALL), BestOfNConfig(num_samples=3, offset_std=0.2), pushing(model, 0.3))
    model.save(tmp_path / "policy")
    save_selector(tmp_path / "policy" / CRITIC_FOLDER, selector)
    found = load_policy(tmp_path / "policy")
    wanted = acting(model, None)
    wanted.selector = selector
    found.reset(5)
    np.testing.assert_array_equal(found.infer(observation).actions, wanted.infer(observation).actions)
    wanted.selector = BestOfN(selector.critic, selector.config)
    assert not np.array_equal(found.infer(observation).actions, wanted.infer(observation).actions)


def test_a_chunk_from_features_is_the_chunk_of_their_observation() -> None:
    model = make_model()
    inputs = acting(model, None)._inputs(make_observation())
    noise = torch.randn(1, model.horizon, SPEC.action_dim, generator=torch.Generator().manual_seed(0))
    found = draw_from_flat(model, flat_features(*model.features(*inputs)), noise)
    torch.testing.assert_close(found, model.draw_from(*model.features(*inputs), noise))


def test_nonsense_is_refused() -> None:
    negative = [{name: wrong} for name in ("offset_std", "ood_penalty") for wrong in (-0.1, float("nan"))]
    for wrong in ({"num_samples": 0}, *negative):
        with pytest.raises(ConfigError):
            BestOfNConfig(**wrong)
    for wrong in ({"bound": 0.0}, {"hidden": ()}):
        with pytest.raises(ConfigError):
            ResidualConfig(**wrong)
    for wrong in ({"chunk_ticks": 1}, {"members": 0}, {"hidden": ()}):
        with pytest.raises(ConfigError):
            ChunkCriticConfig(**wrong)
    with pytest.raises(ConfigError, match="chunks have 8 actions"):
        ChunkCritic(make_model(), replace(SMALL, chunk_ticks=9))


def test_features_are_rows() -> None:
    tokens, mask = torch.randn(2, 20, 3), torch.ones(2, 20, dtype=torch.bool)
    mask[:, 10:] = False
    torch.testing.assert_close(flat_features(tokens, mask), tokens[:, :10].mean(1))
    assert flat_features(tokens[:, :4], mask[:, :4]).shape == (2, 12)


def test_exploration_moves_a_whole_chunk_and_nothing_discrete_or_committed() -> None:
    model, observation = make_model(discrete_dims=(1,)), make_observation()
    given = np.full((2, SPEC.action_dim), 0.1, np.float32)
    policy = acting(model, None)
    plain = policy.infer(observation, given).actions
    policy.exploration = 0.2
    moved = policy.infer(observation, given).actions - plain
    assert not moved[:2].any()
    assert not moved[:, 1].any()
    np.testing.assert_allclose(moved[2:, 0], moved[2, 0], atol=1e-6)
    assert 0 < abs(moved[2, 0]) < 1.0 * model.statistics.action.std[0]
    policy.reset(5)
    np.testing.assert_array_equal(policy.infer(observation, given).actions - plain, moved)
    model.statistics = replace(model.statistics, change=(float(model.statistics.action.std[0]) / 6, 1.0))
    policy.reset(5)
    np.testing.assert_allclose((policy.infer(observation, given).actions - plain)[2:], moved[2:] / 2, atol=1e-6)


@pytest.mark.parametrize("committed", [0, 2])
def test_an_edit_acts_without_a_critic_as_with_one_that_has_no_choice(tmp_path: Path, committed: int) -> None:
    model, observation = make_model(), make_observation()
    given, alone = np.full((committed, SPEC.action_dim), 0.1, np.float32), BestOfNConfig(num_samples=1, offset_std=0.0)
    residual, policy = pushing(model, 0.3), acting(model, None)
    policy.selector = BestOfN(ChunkCritic(model, SMALL), alone, residual)
    wanted = policy.infer(observation, given).actions
    model.save(tmp_path / "policy")
    save_selector(tmp_path / "policy" / CRITIC_FOLDER, BestOfN(None, alone, residual, TICKS))
    found = load_policy(tmp_path / "policy")
    found.reset(5)
    np.testing.assert_allclose(found.infer(observation, given).actions, wanted, atol=1e-6)
    previous = np.full((5, SPEC.action_dim), 0.2, np.float32)
    np.testing.assert_allclose(
        found.infer_guided(observation, previous, 2).actions,
        policy.infer_guided(observation, previous, 2).actions,
        atol=1e-5,
    )


def test_without_a_critic_there_is_nothing_to_choose() -> None:
    model = make_model()
    residual, alone = pushing(model, 0.3), BestOfNConfig(num_samples=1, offset_std=0.0)
    for choice, own, ticks in ((BestOfNConfig(), residual, 4), (alone, None, 4), (alone, residual, 0)):
        with pytest.raises(ConfigError, match="one draw"):
            BestOfN(None, choice, own, ticks)
