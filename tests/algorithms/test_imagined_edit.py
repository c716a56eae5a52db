"""A residual that is practiced in imagined branches, before the critic of the round learns."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_world import MIXED, P, make_episode, make_model, tiny

from vla_rl.algorithms import imagined_edit
from vla_rl.core.errors import ConfigError
from vla_rl.core.types import Episode, Observation
from vla_rl.policies.folders import load_policy
from vla_rl.training.algorithms import adopt_saved, make_algorithm, save_learned

BLANK = {"front": np.zeros((8, 8, 3), np.uint8)}


pytestmark = pytest.mark.usefixtures("small_dynamics")


def learner(cache, model=None, name="imagined_edit", **changes: dict):
    algorithm = make_algorithm(name, tiny(name, **changes), model or make_model(), cache, 0)
    algorithm.begin_round(cache, 1)
    return algorithm


def wandering(name: str, start: float, seed: int):
    """The state adds up the first action; the episode succeeds where it ends above 0. Nothing is to be seen."""
    action = np.random.default_rng(seed).normal(0, 1, (8, 2)).astype(np.float32).repeat(2, 0)
    state = np.zeros((16, 2), np.float32)
    state[:, 0] = start + 0.2 * np.concatenate([[0], action[:-1, 0].cumsum()])
    episode = make_episode(name, [P] * 16, bool(state[-1, 0] > 0), state=state, action=action)
    episode.images["front"][:] = 0
    return episode


@pytest.mark.slow
def test_it_goes_where_real_outcomes_were_better(make_cache, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("vla_rl.critics.outcome._HIDDEN", (32,))
    monkeypatch.setattr("vla_rl.critics.outcome._BATCH_SIZE", 64)
    monkeypatch.setattr("vla_rl.ppo.LEARNING_RATE", 1e-3)
    monkeypatch.setattr("vla_rl.ppo.EPOCHS", 4)
    cache = make_cache([wandering(f"round-{i:03d}", np.random.default_rng(i).normal(), 1000 + i) for i in range(80)])
    algorithm = learner(
        cache,
        dynamics={"steps": 200},
        value={"steps": 150},
        branches={"updates": 60, "branches": 128},
        best_of_n={"num_samples": 1, "offset_std": 0.0},
    )
    logs = algorithm.update(0)
    assert logs["imagined_gain"] > 0.02
    save_learned(algorithm, tmp_path / "policy", 1)
    adjusted, plain = load_policy(tmp_path / "policy"), make_model().acting()
    moved = []
    for state in np.linspace(-0.5, 0.5, 5, dtype=np.float32):
        observation = Observation(BLANK, np.array([state, 0], np.float32), "put it in", 0)
        adjusted.reset(0)
        plain.reset(0)
        moved.append(float((adjusted.infer(observation).actions - plain.infer(observation).actions)[:2, 0].mean()))
    assert min(moved) > 0.02, "wherever it is, it goes up more"


@pytest.mark.parametrize(("name", "logged"), [("imagined_edit", "imagined_gain"), ("residual_td", "residual_gain")])
def test_it_trains_a_residual_once_in_a_round_and_goes_on_as_if_never_interrupted(make_cache, name, logged) -> None:
    cache = make_cache(MIXED)
    whole, resumed = learner(cache, name=name), learner(cache, name=name)
    assert logged in whole.update(0)
    first = whole.residual
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    resumed.begin_round(cache, 1)
    for algorithm in (whole, resumed):
        algorithm.update(1)
    assert whole.residual is first
    assert same(whole.residual, resumed.residual)
    assert same(whole.critic, resumed.critic)
    for algorithm in (whole, resumed):
        algorithm.begin_round(cache, 2)
        algorithm.update(2)
    assert not same(whole.residual, first)
    assert same(whole.residual, resumed.residual)
    assert same(whole.critic, resumed.critic)


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


def believing(cache, distill_steps=0, **changes: float):
    """One round of learning, with an alarm."""
    return learner(
        cache,
        distill_steps=distill_steps,
        dynamics={"steps": 100},
        branches={"updates": 1, "branches": 8, "ood_ratio": 1.3} | changes,
    )


def jerky(index: int, version: int):
    """The state follows the last action and hardly remembers those before."""
    action = np.random.default_rng(1000 + index).normal(0, 1, (16, 2)).astype(np.float32)
    state = np.zeros((16, 2), np.float32)
    for step in range(15):
        state[step + 1, 0] = 0.2 * state[step, 0] + action[step, 0]
    name, success = f"round-{index:03d}", bool(state[-1, 0] > 0)
    episode = make_episode(name, [P] * 16, success, version=version, state=state, action=action)
    episode.images["front"][:] = 0
    return episode


def two_rounds(spoil: Any = None):
    """Episodes of two versions of the policy; something happened to those of the newer one, which are the most."""
    newest = [jerky(index, 1) for index in range(20, 80)]
    return [jerky(index, 0) for index in range(20)] + [spoil(episode) if spoil else episode for episode in newest]


def out_of_step(episode: Episode) -> Episode:
    """The actions stand a tick earlier than they were sent."""
    return replace(episode, action_sent=np.roll(episode.action_sent, -1, axis=0))


def through_other_eyes(episode: Episode) -> Episode:
    """What is seen is permuted, as where colors are changed about or a camera was moved."""
    return replace(episode, state=1 - episode.state[:, ::-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "why", "distill_steps"),
    [(None, "", 0), (None, "", 2), (out_of_step, "out of step", 0), (through_other_eyes, "times as much", 2)],
)
def test_newest_episodes_that_those_before_do_not_foretell_stop_imagination_and_the_edit_stays(
    make_cache, caplog: pytest.LogCaptureFixture, spoil: Any, why: str, distill_steps: int
) -> None:
    """Although the world has learned from them. Where the policy was taught, the residual of the one before does not
    fit: there is none.
    """
    algorithm = believing(make_cache(two_rounds(spoil)), distill_steps)
    before = algorithm.residual
    for step in range(distill_steps):
        algorithm.update(step)
    logs = algorithm.update(distill_steps)
    assert logs.get("imagined_stopped", 0) == bool(spoil), logs
    assert (algorithm.residual is before) == (bool(spoil) and not distill_steps)
    assert algorithm.residual.corrects == (not spoil)
    assert (algorithm._accepted is None) == bool(spoil), "the next round does not go on from what the check refused"
    assert why in caplog.text


def test_dynamics_go_on_from_those_of_the_newest_round_that_was_accepted(make_cache, monkeypatch) -> None:
    cache, older = make_cache(MIXED), []
    fit = imagined_edit.fit_dynamics
    monkeypatch.setattr(imagined_edit, "fit_dynamics", lambda *given: older.append(given[3]) or fit(*given))
    algorithm = learner(cache)
    algorithm.update(0)
    first = algorithm._accepted
    monkeypatch.setattr(imagined_edit, "out_of_distribution", lambda *_: "out of step")
    monkeypatch.setattr(algorithm, "errors_of_unseen_chunks", lambda: ({0: 1.0}, {0: 1.0}))
    for number in (2, 3):
        algorithm.begin_round(cache, number)
        algorithm.update(number)
    assert older == [None, first, first], "the second round was refused, so the third goes on from the first"


@pytest.mark.slow
def test_a_silent_alarm_changes_nothing_and_the_first_version_raises_none(make_cache) -> None:
    cache = make_cache(two_rounds())
    asked, unasked = believing(cache), believing(cache, ood_ratio=0.0)
    checked = {"imagined_unexplained_newest", "imagined_unexplained_older"}
    assert asked.update(0).keys() - unasked.update(0).keys() == checked
    assert same(asked.residual, unasked.residual)
    first = believing(make_cache([through_other_eyes(jerky(index, 0)) for index in range(40)]))
    assert "imagined_unexplained_newest" not in first.update(0)


def test_where_nothing_is_imagined_the_edit_stays_that_acted_and_not_one_that_failed_its_check(
    make_cache, tmp_path: Path
) -> None:
    algorithm = learner(make_cache(MIXED))
    algorithm.model.save(tmp_path / "plain")
    algorithm.update(0)
    save_learned(algorithm, tmp_path / "edited", 1)
    learned = copy.deepcopy(algorithm.residual.state_dict())
    assert algorithm.residual.corrects
    assert algorithm._accepted is not None
    fresh = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        adopt_saved(algorithm, tmp_path / "plain")
        assert not algorithm.residual.corrects
        assert algorithm._accepted is None, "its dynamics are those of other features"
        fresh.append(algorithm.residual.state_dict())
    assert all(torch.equal(tensor, fresh[1][name]) for name, tensor in fresh[0].items()), "its own seed decides"
    adopt_saved(algorithm, tmp_path / "edited")
    assert all(torch.equal(tensor, learned[name]) for name, tensor in algorithm.residual.state_dict().items())


def test_without_steps_of_its_own_there_is_nothing_to_imagine(make_cache) -> None:
    algorithm = learner(make_cache(MIXED[:2]))
    assert "imagined_gain" not in algorithm.update(0)


def test_a_policy_with_an_indicator_is_imagined_as_it_acts(make_cache) -> None:
    assert "imagined_gain" in learner(make_cache(MIXED), make_model(indicator=True)).update(0)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="members"):
        tiny("imagined_edit", critic={"members": 1})
