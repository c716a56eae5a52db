"""An edit at every tick that is trained on policy by real episodes: what numpy did is told exactly in torch, and what
was better is done.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from playing import CHUNKS, TICKS, observations, planned, recorded
from tiny_world import make_model, tiny

from vla_rl.algorithms.base import make_algorithm
from vla_rl.core.errors import UserError
from vla_rl.core.scaling import Statistics
from vla_rl.policies.acting import ActingPolicy, exploration_noise
from vla_rl.policies.corrector import FOLDER, ResidualCorrector
from vla_rl.policies.editing import EditConfig
from vla_rl.policies.flow_vla import FlowVLA
from vla_rl.policies.tick_editing import TickEdit

SPREAD = 0.3


def acting(exploration: float = SPREAD, version: int = 0) -> ActingPolicy:
    policy = make_model().acting(version=version)
    policy.exploration = exploration
    return policy


def corrected(actions: np.ndarray, corrector: ResidualCorrector, seed: int) -> np.ndarray:
    """What strategy a2c2 makes of chunks [CHUNKS, TICKS, A]."""
    chunks = zip(observations(seed), actions, strict=True)
    done = [[corrector.correct(seen, each, age) for age, each in enumerate(chunk)] for seen, chunk in chunks]
    return np.array(done, np.float32)


def play(name: str, seed: int, corrector: ResidualCorrector | None = None, version: int = 0):
    """An episode that succeeds where the first dimension was moved by more than 0 altogether."""
    actions, plain = planned(acting(version=version), seed), planned(acting(0.0), seed)
    done = actions if corrector is None else corrected(actions, corrector, seed)
    return recorded(acting(version=version), name, seed, done, bool((done - plain)[..., 0].sum() > 0))


def learner(cache, number: int = 1, **changes: dict):
    algorithm = make_algorithm("corrector_ppo", tiny("corrector_ppo", **changes), make_model(), cache, 0)
    algorithm.begin_round(cache, number)
    return algorithm


def steep(model: FlowVLA, bound: float = 0.5) -> TickEdit:
    """One that wants something else at every tick, also for what was planned."""
    torch.manual_seed(3)
    edit = TickEdit(model, EditConfig(bound=bound, hidden=(8,)))
    edit.net[-1].weight.data.normal_(0, 0.2)
    edit.net[-1].bias.data = torch.tensor([0.2, -0.1])
    edit.mean.normal_()
    edit.scale.uniform_(0.5, 2.0)
    return edit


def test_numpy_corrects_as_torch_says() -> None:
    model, seen = make_model(), observations(3)[0]
    edit = steep(model)
    actions = planned(acting(), 3)[0]
    ages = np.arange(TICKS)
    images = {"front": torch.from_numpy(seen.images["front"])[None].repeat(TICKS, 1, 1, 1)}
    state = torch.from_numpy(seen.state)[None].repeat(TICKS, 1)
    moved = edit.raw(edit.each(edit.looks(model, images, state, torch.from_numpy(actions), ages))).detach().numpy()
    done = np.array([edit.corrector(model).correct(seen, each, age) for age, each in enumerate(actions)])
    np.testing.assert_allclose(done - actions, moved, atol=1e-5)
    assert np.abs(moved[0] - moved[1]).max() > 1e-3, "it says something else of each tick"


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_no_correction_leaves_the_bound(size: float) -> None:
    model = make_model()
    edit = steep(model, bound=0.2)
    edit.net[-1].weight.data *= size
    moved = corrected(planned(acting(), 3), edit.corrector(model), 3) - planned(acting(), 3)
    normalised = moved / np.asarray(model.statistics.action.std, np.float32)
    assert np.abs(normalised).max() <= 0.2 + 1e-5
    assert size == 1.0 or np.abs(normalised).max() > 0.199


def test_what_was_tried_of_each_chunk_is_told_exactly(make_cache) -> None:
    """Although the head sees, in what was planned, the very offset that is looked for."""
    edit = steep(make_model())
    cache = make_cache([play("round-0", 5, edit.corrector(make_model()))])
    algorithm = learner(cache)
    algorithm.edit.load_state_dict(edit.state_dict())
    (stretch,) = algorithm._stretches()
    assert stretch.spread == pytest.approx(SPREAD, abs=1e-4)
    drawn = [exploration_noise(5, tick, 2)[0] for tick in range(0, CHUNKS * TICKS, TICKS)]
    np.testing.assert_array_equal(stretch.noise, np.array(drawn))
    actions = planned(acting(), 5)
    moved = (corrected(actions, edit.corrector(make_model()), 5) - actions).mean(1)
    np.testing.assert_allclose(edit.raw(stretch.mean).detach(), moved, atol=1e-4)


def test_what_another_head_did_is_left_out(make_cache) -> None:
    algorithm = learner(make_cache([play("round-0", 5, steep(make_model()).corrector(make_model()))]))
    assert [stretch.spread for stretch in algorithm._stretches()] == [0.0]
    with pytest.raises(UserError, match=r"corrector_ppo needs exploration=0\.15 .*\(a2c2\)"):
        algorithm.update(0)


def test_a_gripper_stays_where_the_plan_has_it() -> None:
    usual = make_model()
    action = np.random.default_rng(0).normal(size=(50, 2))
    action[:, 1] = np.sign(action[:, 1])
    torch.manual_seed(0)
    model = FlowVLA(usual.config, usual.spec, Statistics.from_arrays(np.eye(50, 2), action, discrete_dims=(1,)))
    actions = planned(acting(), 5)
    done = corrected(actions, steep(model).corrector(model), 5)
    np.testing.assert_array_equal(done[..., 1], actions[..., 1])
    assert (done[..., 0] != actions[..., 0]).all()


@pytest.mark.slow
def test_the_head_goes_where_outcomes_were_better(make_cache, tmp_path: Path) -> None:
    """Two rounds, the second one of the head that the first has saved."""
    options = {
        "ppo": {"chunk_ticks": TICKS, "learning_rate": 1e-2, "batch_size": 64, "epochs": 4},
        "value": {"steps": 50, "look_every": 10, "hidden": (16,), "batch_size": 64},
    }
    episodes = [play(f"round000-{seed}", seed) for seed in range(32)]
    algorithm = learner(make_cache(episodes), **options)
    algorithm.update(0)
    algorithm.save_policy(tmp_path / "policy", 1)
    head = ResidualCorrector.load(tmp_path / "policy" / FOLDER)
    episodes += [play(f"round001-{seed}", 1000 + seed, head, 1) for seed in range(32)]
    algorithm.begin_round(make_cache(episodes), 2)
    assert [bool(stretch.spread) for stretch in algorithm._stretches()] == [False] * 32 + [True] * 32
    algorithm.update(1)
    algorithm.save_policy(tmp_path / "later", 2)
    head = ResidualCorrector.load(tmp_path / "later" / FOLDER)
    moved = [corrected(planned(acting(0.0), seed), head, seed) - planned(acting(0.0), seed) for seed in range(50, 60)]
    rewarded, other = np.mean(moved, (0, 1, 2)) / np.asarray(make_model().statistics.action.std)
    assert rewarded > 0.02
    assert abs(other) < rewarded


def test_it_goes_on_from_a_policy_that_had_to_stay(make_cache, tmp_path: Path) -> None:
    algorithm = learner(make_cache([]))
    algorithm.edit.load_state_dict(steep(make_model()).state_dict())
    algorithm.save_policy(tmp_path / "policy", 1)
    other = learner(make_cache([]))
    other.adopt_policy(tmp_path / "policy")
    assert other.edit.corrects
    looks = torch.randn(5, len(other.edit.mean))
    torch.testing.assert_close(other.edit.each(looks), algorithm.edit.each(looks))
    make_model().save(tmp_path / "plain")
    other.adopt_policy(tmp_path / "plain")
    assert not other.edit.corrects
