"""The critic of chunks: what credit lets it learn, and a policy that chooses by it."""

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from chunk_learner import TICKS, dark, learner, same
from tiny_world import MIXED, D, H, P, make_episode, make_model, tiny

from vla_rl.algorithms.chunk_critic import ChunkCriticLearning
from vla_rl.algorithms.chunk_windows import windows
from vla_rl.core.config import load_config
from vla_rl.core.errors import CheckpointError, ConfigError, UserError
from vla_rl.core.metadata import CRITIC_FOLDER
from vla_rl.core.types import OPERATOR, Observation, Origin, Source
from vla_rl.policies.folders import load_policy
from vla_rl.training.algorithms import adopt_saved, find_algorithm, make_algorithm, require_of_policy, save_learned
from vla_rl.training.config import RunConfig
from vla_rl.training.finetune import FinetuneConfig
from vla_rl.training.people import quality_by_operator

W = Source.HOLD


def windows_of(cache, **credit) -> dict[str, list[tuple[int, float]]]:
    """Episode -> the first steps of its windows and their labels."""
    algorithm = learner(cache, credit=credit)
    frames, label = windows(algorithm.data, TICKS, algorithm.config.discount)
    found: dict[str, list[tuple[int, float]]] = {episode.episode_id: [] for episode in cache.episodes}
    for frame, worth in zip(frames, label, strict=True):
        episode = cache.episodes[cache.episode_index[frame]]
        found[episode.episode_id].append((int(frame - episode.start), float(worth)))
    return found


def test_a_rescue_is_not_earned_by_who_was_rescued(make_cache) -> None:
    cache = make_cache([make_episode("round-0", [P] * 4 + [H] * 4 + [P] * 3, True)])
    found = windows_of(cache)["round-0"]
    policy = [(step, 0.0) for step in range(3)]  # from step 3 on a window would hold the person's steps as well
    person = [(step, 1.0) for step in range(4, 7)]
    suffix = [(step, 1.0) for step in range(8, 11)]  # the last window reaches beyond the end
    assert found == policy + person + suffix


@pytest.mark.parametrize("name", ["chunk_critic", "imagined_edit", "residual_td"])
def test_a_rescue_that_success_cuts_short_is_not_earned_by_the_policy_either(name: str, make_cache) -> None:
    """Nine steps at the end, where ten make a takeover: by the letter of the rule a success of the policy alone."""
    cache = make_cache([make_episode("round-0", [P] * 6 + [H] * 9, True)])
    algorithm = make_algorithm(name, tiny(name, credit={"min_human_steps": 10}), make_model(), cache, 0)
    algorithm.begin_round(cache, 1)
    frames, label = windows(algorithm.data, TICKS, 1.0)
    assert dict(zip(frames.tolist(), label.tolist(), strict=True)) == {
        **dict.fromkeys(range(5), 0.0),
        **dict.fromkeys(range(6, 15), 1.0),
    }


def test_the_papers_rule_says_nothing_about_steps_before_a_rescue(make_cache) -> None:
    cache = make_cache([make_episode("round-0", [P] * 4 + [H] * 4, True)])
    assert windows_of(cache, rule="paper")["round-0"] == [(step, 1.0) for step in range(4, 8)]


@pytest.mark.parametrize(("demonstrated", "played", "share"), [(30, 3, 1 / 11), (3, 30, 1 / 2)])
def test_a_few_own_successes_do_not_fill_half_of_every_batch(demonstrated, played, share, make_cache) -> None:
    episodes = [make_episode("demo-0", [D] * demonstrated, True), make_episode("round-0", [P] * played, True)]
    cache = make_cache([*episodes, make_episode("round-1", [P] * 5, False)])
    algorithm = learner(cache)
    drawn = np.concatenate([algorithm.make_sampler().sample(step, 64) for step in range(100)])
    own = [cache.episodes[index].episode_id == "round-0" for index in cache.episode_index[drawn]]
    assert np.mean(own) == pytest.approx(share, abs=0.02)


def test_what_has_no_outcome_teaches_nothing(make_cache) -> None:
    cache = make_cache(
        [
            make_episode("demo-0", [D] * 3, True),
            make_episode("round-0", [P] * 3, None),
            make_episode("round-1", [P] * 3, False),
        ]
    )
    assert windows_of(cache) == {
        "demo-0": [(0, 1.0), (1, 1.0), (2, 1.0)],
        "round-0": [],
        "round-1": [(0, 0.0), (1, 0.0), (2, 0.0)],
    }


@pytest.mark.slow
def test_a_policy_learns_from_outcomes_alone_which_of_its_draws_to_execute(make_cache, tmp_path: Path) -> None:
    """One state; an episode succeeds where the first action went up more than usual."""
    model = make_model()
    blank = {"front": np.zeros((8, 8, 3), np.uint8)}
    policy = model.acting()
    drawn = []
    for seed in range(60):
        policy.reset(seed)
        drawn.append(policy.infer(Observation(blank, np.zeros(2, np.float32), "put it in", 0)).actions)
    middle = float(np.median([chunk[:TICKS, 0].mean() for chunk in drawn]))
    episodes = [
        dark(
            make_episode(
                f"round-{seed:02d}",
                [P] * 4,
                bool(chunk[:TICKS, 0].mean() > middle),
                state=np.zeros((4, 2), np.float32),
                action=chunk[:4],
            )
        )
        for seed, chunk in enumerate(drawn)
    ]
    algorithm = learner(make_cache(episodes), best_of_n={"num_samples": 8, "offset_std": 0.0})
    for step in range(150):
        algorithm.update(step)
    save_learned(algorithm, tmp_path / "policy", 1)
    choosing = load_policy(tmp_path / "policy")
    better = 0
    for seed in range(100, 160):
        choosing.reset(seed)
        chunk = choosing.infer(Observation(blank, np.zeros(2, np.float32), "put it in", 0)).actions
        better += bool(chunk[:TICKS, 0].mean() > middle)
    assert better > 50, "of 60, where the policy itself has 30"


def test_an_episode_is_judged_by_who_has_not_learnt_from_it(make_cache) -> None:
    cache = make_cache([make_episode(f"round-{index}", [P] * 4, index % 2 == 0) for index in range(12)])
    algorithm = learner(cache)
    algorithm.update(0)
    frames = np.arange(cache.total_frames)
    before = algorithm.trace(cache, frames)["viability"]
    judged = []
    for member in range(algorithm.config.critic.members):
        kept = algorithm.critic.head.out.bias.detach().clone()
        with torch.no_grad():  # a change of one member changes only the values of what it judges
            algorithm.critic.head.out.bias[member] += 1.0
            changed = np.flatnonzero(before != algorithm.trace(cache, frames)["viability"])
            algorithm.critic.head.out.bias.copy_(kept)
        fold = algorithm._fold[changed]
        assert not algorithm._seen(fold)[member].any()
        judged.append(changed)
    assert sorted(np.concatenate(judged)) == frames.tolist()


def test_with_a_discount_the_sooner_of_two_successes_is_worth_more_and_a_failure_nothing(make_cache) -> None:
    successes = [make_episode(f"round-{index}", [P] * length, True) for index, length in enumerate((3, 5))]
    algorithm = learner(make_cache([*successes, make_episode("round-2", [P] * 4, False)]), discount=0.5)
    _, label = windows(algorithm.data, TICKS, 0.5)
    assert label.tolist() == [0.25, 0.5, 1.0, 0.0625, 0.125, 0.25, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert algorithm._label.tolist() == label.tolist()
    assert list(algorithm.trace(algorithm.data.cache, np.arange(3))) == ["discounted_value"]
    with pytest.raises(ConfigError, match="discount is 0"):
        ChunkCriticLearning(discount=0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("fast_critics")
def test_the_steps_of_a_better_person_rise_more(make_cache) -> None:
    """The same way in 16 steps and, with pauses, in 48; policies get nowhere."""
    random = np.random.default_rng(0)

    def along(name: str, progress: np.ndarray, operator: str | None = None):
        state = np.stack([progress, random.normal(0, 0.1, len(progress))], 1).astype(np.float32)
        source = [P if operator is None else D] * len(progress)
        action = np.diff(state, axis=0, append=state[-1:])
        episode = dark(make_episode(name, source, operator is not None, state=state, action=action))
        return replace(episode, extras={OPERATOR + operator: np.ones(len(progress), np.uint8)} if operator else {})

    way = np.linspace(-1, 1, 16)
    episodes = [along(f"round-{i}", random.uniform(-1.2, -0.6, 24)) for i in range(5)]
    for i in range(5):
        episodes.append(along(f"demo-{i}-better", way, "better"))
        episodes.append(along(f"demo-{i}-worse", way[np.sort(random.integers(16, size=48))], "worse"))
    cache = make_cache(episodes)
    algorithm = learner(cache, critic_training={"batch_size": 64}, discount=0.97)
    for step in range(60):
        algorithm.update(step)
    found = quality_by_operator(cache, cache.store, algorithm.trace, algorithm.config.chunk_ticks)
    assert found["better/value_rise"] > 1.5 * found["worse/value_rise"] > 0


def test_each_round_begins_with_a_new_critic_and_the_same_policy(make_cache) -> None:
    cache = make_cache(MIXED)
    algorithm = learner(cache)
    policy = {name: tensor.clone() for name, tensor in algorithm.policy().state_dict().items()}
    algorithm.update(0)
    first = algorithm.critic
    algorithm.update(1)
    assert algorithm.critic is first
    algorithm.begin_round(cache, 2)
    assert algorithm.critic is first, "what is known of the new round's episodes is asked of the critic of the last"
    algorithm.update(2)
    assert algorithm.critic is not first
    assert all(torch.equal(tensor, policy[name]) for name, tensor in algorithm.policy().state_dict().items())


def test_a_policy_that_is_there_has_its_critic(make_cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while the critic is written: the version is not there, and the resumed run makes it."""
    algorithm = learner(make_cache(MIXED))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vla_rl.policies.checkpoint.save_selector", killed)
    with pytest.raises(KeyboardInterrupt):
        save_learned(algorithm, tmp_path / "policy", 1)
    assert not (tmp_path / "policy" / "config.json").exists()


def test_a_policy_that_has_lost_its_critic_does_not_act_as_if_it_never_had_one(make_cache, tmp_path: Path) -> None:
    from deploy_trt.runtime.refresh import read_critic

    algorithm = learner(make_cache(MIXED))
    algorithm.begin_round(algorithm.data.cache, 1)
    save_learned(algorithm, tmp_path / "policy", 1)
    assert load_policy(tmp_path / "policy").selector is not None
    shutil.rmtree(tmp_path / "policy" / CRITIC_FOLDER)
    for read in (load_policy, read_critic):
        with pytest.raises(CheckpointError, match="lost its critic/"):
            read(tmp_path / "policy")


@pytest.mark.parametrize("name", ["chunk_critic", "imagined_edit", "residual_td", "residual_ppo"])
def test_a_policy_without_features_is_refused_before_anything_is_run(name: str) -> None:
    learning = find_algorithm(name).config_class()
    require_of_policy(name, learning, make_model().capabilities)
    with pytest.raises(ConfigError, match=rf"={name} requires .*features \(policy.kind=flow_vla .* What fits: .*=habc"):
        require_of_policy(name, learning, frozenset({"several_draws", "offsets"}))


def test_what_was_chosen_is_taught_first_and_the_critic_sees_through_what_came_of_it(make_cache) -> None:
    """Four steps of the policy, killed after two; then the critic's, while the policy stays."""
    cache = make_cache(MIXED)
    before, inputs = make_model(), learner(cache)._inputs
    whole, resumed = learner(cache, distill_steps=4), learner(cache, distill_steps=4)
    for step in range(2):
        assert "critic_loss" not in whole.update(step)
    assert not same(whole.policy(), before)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    resumed.begin_round(cache, 1)
    for algorithm in (whole, resumed):
        for step in range(2, 4):
            algorithm.update(step)
    taught = copy.deepcopy(whole.policy())
    assert same(taught, resumed.policy())
    assert same(taught, whole.model)
    model = make_model()
    model.load_state_dict(taught.state_dict())
    again = make_algorithm("chunk_critic", whole.config, model, cache, 0)
    again.begin_round(cache, 1)
    assert not torch.equal(whole._inputs, inputs)
    assert torch.equal(whole._inputs, again._inputs)
    for algorithm in (whole, resumed):
        assert algorithm.update(4)["critic_loss"] > 0
    assert same(whole.policy(), taught)
    assert same(whole.critic, resumed.critic)
    whole.begin_round(cache, 2)
    assert "critic_loss" not in whole.update(5)


def test_a_failure_is_not_taught(make_cache) -> None:
    failed = make_episode("round-0", [P] * 8, False)
    algorithm = learner(make_cache([failed, make_episode("demo-0", [D] * 4, True)]), distill_steps=1)
    drawn = np.concatenate([algorithm.actor_frames(step) for step in range(20)])
    assert {algorithm.data.cache.episodes[index].episode_id for index in algorithm.data.cache.episode_index[drawn]} == {
        "demo-0"
    }


def test_teaching_that_leaves_the_critic_no_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="distill_steps is -1"):
        tiny("chunk_critic", distill_steps=-1)
    changes = ["algorithm=chunk_critic", "learning.distill_steps=5", "budget.steps_per_round=5"]
    with pytest.raises(ConfigError, match="the critic would learn in none"):
        load_config(RunConfig, None, changes)
    load_config(RunConfig, None, [*changes[:2], "budget.steps_per_round=6"])
    load_config(RunConfig, None, [*changes, "budget.rounds=0"])
    with pytest.raises(ConfigError, match=r"distill_steps is 0, of budget.steps_per_round=0 gradient steps"):
        load_config(RunConfig, None, ["algorithm=chunk_critic", "budget.steps_per_round=0"])
    with pytest.raises(ConfigError, match="of steps=400 gradient steps: the critic would learn in none"):
        FinetuneConfig(algorithm="imagined_edit", steps=400)
    FinetuneConfig(algorithm="imagined_edit", steps=401)


def test_without_any_outcome_there_is_nothing_to_choose_by(make_cache, tmp_path: Path) -> None:
    """It is said before the first step: whoever labels the episodes then goes on with a critic that learns."""
    for distill_steps in (0, 1):
        algorithm = learner(make_cache([make_episode("round-0", [P] * 8, None)]), distill_steps=distill_steps)
        for act in (lambda a=algorithm: a.update(0), lambda a=algorithm: save_learned(a, tmp_path / "policy", 1)):
            with pytest.raises(UserError, match=r"chunk_critic can learn nothing; label them \(vla-rl label\)"):
                act()
    assert not (tmp_path / "policy").exists()


@pytest.mark.parametrize("success", [True, False])
@pytest.mark.parametrize("name", ["chunk_critic", "imagined_edit", "residual_td"])
def test_where_all_outcomes_are_alike_the_policy_acts_as_it_is(
    name: str, success: bool, make_cache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing tells one action from another, so nothing is imagined, chosen or moved by chance."""
    cache = make_cache([make_episode(f"round-{i}", [P] * 8, success) for i in range(6)])
    model = make_model()
    algorithm = make_algorithm(name, tiny(name, distill_steps=0, discount=0.99), model, cache, 0)
    algorithm.begin_round(cache, 1)
    logs = algorithm.update(0)
    assert not [entry for entry in logs if entry.startswith("imagined")]
    save_learned(algorithm, tmp_path / "policy", 1)
    assert "all outcomes are alike" in caplog.text
    chosen, plain = load_policy(tmp_path / "policy"), model.acting()
    for tick in range(0, 12, 4):
        seen = Observation({"front": np.zeros((8, 8, 3), np.uint8)}, np.zeros(2, np.float32), "put it in", tick)
        chosen.reset(3)
        plain.reset(3)
        np.testing.assert_array_equal(chosen.infer(seen).actions, plain.infer(seen).actions)


def test_what_is_said_to_be_kept_is_what_a_policy_keeps(make_cache, tmp_path: Path) -> None:
    """The share of states at which the chosen chunk is the first draw; none where that is not the policy's own."""
    cache = make_cache([make_episode(f"round-{index}", [P] * 8, index % 2 == 0) for index in range(6)])
    algorithm = learner(cache, best_of_n={"num_samples": 2, "offset_std": 0.3})
    for step in range(3):
        algorithm.update(step)
    share = algorithm.assess()["kept_first"]
    assert 0 < share < 1
    save_learned(algorithm, tmp_path / "policy", 1)
    chosen, plain = load_policy(tmp_path / "policy"), make_model().acting()
    alike = []
    for index, episode in enumerate(cache.episodes * 5):
        frame = episode.start + index % 8
        image = {"front": np.array(cache.images["front"][frame])}
        seen = Observation(image, np.array(cache.state[frame]), "put it in", int(frame - episode.start))
        for policy in (chosen, plain):
            policy.reset(index)
        alike.append(np.allclose(chosen.infer(seen).actions, plain.infer(seen).actions, atol=1e-5))
    assert np.mean(alike) == pytest.approx(share, abs=0.3)
    assert learner(cache, best_of_n={"num_samples": 1, "offset_std": 0.0}).assess() == {}
    for graded, known in ((False, False), (True, True)):
        residuals = make_algorithm(
            "imagined_edit", tiny("imagined_edit", best_of_n={"graded_residual": graded}), make_model(), cache, 0
        )
        residuals.begin_round(cache, 1)
        assert bool(residuals.assess()) == known


def test_waiting_for_a_plan_is_judged_all_the_same(make_cache) -> None:
    """It led to the outcome, and so did what came before and after."""
    waited = make_episode("round-0", [W] * 2 + [P] * 2 + [W] * 3 + [P] * 3, False)
    assert windows_of(make_cache([waited]))["round-0"] == [(step, 0.0) for step in range(10)]


def test_a_pause_that_is_not_imitated_is_not_left_or_entered(make_cache) -> None:
    still = np.repeat(np.float32([[0], [1], [2], [2], [2], [2], [3], [4], [5], [6]]), 2, axis=1)
    shown = make_episode("demo-0", [D] * 10, True, origin=Origin.DEMO, action=still)
    steps = [step for step, _ in windows_of(make_cache([shown]), idle_steps=3)["demo-0"]]
    assert steps == [0, 1, 3, 4, *range(6, 10)]


def test_an_adopted_policy_is_the_one_that_the_critic_sees_through(make_cache, tmp_path: Path) -> None:
    """After a check that failed the version before acts on; what was taught in between is gone."""
    cache = make_cache(MIXED)
    algorithm = learner(cache, distill_steps=1)
    before = algorithm._inputs
    save_learned(algorithm, tmp_path / "before", 1)
    algorithm.update(0)
    assert not torch.equal(algorithm._inputs, before)
    adopt_saved(algorithm, tmp_path / "before")
    assert torch.equal(algorithm._inputs, before)
