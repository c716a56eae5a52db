"""What holds for every algorithm: it learns from any data without NaN, resumes exactly, and its policy loads."""

import json

import numpy as np
import pytest
import torch
from tiny_world import MIXED, D, H, P, make_episode, make_model, tiny

from vla_rl.algorithms.chunk_critic import ChunkCriticLearner
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.registry import names
from vla_rl.credit import ActorKind
from vla_rl.policies.flow_vla import FlowVLA
from vla_rl.training.algorithms import adopt_saved, find_algorithm, make_algorithm, save_learned
from vla_rl.training.checkpoint import load_checkpoint, save_checkpoint

NAMES = names("algorithms")
FAILED = make_episode("round-8", [P] * 7, False)
UNLABELLED = make_episode("round-9", [P] * 7, None)
SUCCESS = make_episode("round-7", [P] * 7, True)


def run(name, cache, steps=5, seed=3):
    algorithm = make_algorithm(name, tiny(name), make_model(**model_options(name)), cache, seed)
    algorithm.begin_round(cache, 1)
    logs = [algorithm.update(step) for step in range(steps)]
    return algorithm, logs


def model_options(name):
    return {"indicator": True} if name == "recap" else {}


def weights_of(algorithm):
    return torch.cat([tensor.flatten().float() for tensor in algorithm.policy().state_dict().values()])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_logs_are_finite_and_alike_in_every_update(name, make_cache):
    _, logs = run(name, make_cache(MIXED))
    assert all(log.keys() == logs[0].keys() for log in logs)
    assert all(np.isfinite(list(log.values())).all() for log in logs)
    assert json.loads(json.dumps(logs)) == logs
    # Residual PPO finds nothing to learn in these episodes, see tests/examples/baselines.
    if "newest_policy" not in find_algorithm(name).requires:
        assert logs[-1].get("actor_loss", logs[-1].get("critic_loss")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "episodes",
    [[FAILED], [UNLABELLED], [SUCCESS], [FAILED, make_episode("demo-0", [D] * 5, True)], []],
    ids=["failures", "no labels", "successes", "failures and demonstrations", "nothing"],
)
def test_one_sided_data_is_learnt_from_or_passed_over(name, episodes, make_cache):
    """But for a critic of chunks, which is refused where no outcome is known: `test_chunk_critic.py`."""
    cache = make_cache(episodes)
    if issubclass(find_algorithm(name), ChunkCriticLearner) and all(e.success is None for e in episodes):
        with pytest.raises(UserError, match="can learn nothing"):
            run(name, cache)
        return
    algorithm, logs = run(name, cache)
    assert all(np.isfinite(list(log.values())).all() for log in logs)
    assert torch.isfinite(weights_of(algorithm)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_resumed_run_equals_uninterrupted_one(name, make_cache, tmp_path):
    cache = make_cache(MIXED)
    whole, _ = run(name, cache, steps=7)
    part, _ = run(name, cache, steps=4)
    checkpoint = save_checkpoint(tmp_path / "checkpoints", 4, part.state_dict())
    resumed = make_algorithm(name, tiny(name), make_model(seed=9, **model_options(name)), cache, seed=3)
    resumed.load_state_dict(load_checkpoint(checkpoint)[1])
    resumed.begin_round(cache, 1)
    for step in range(4, 7):
        resumed.update(step)
    for (key, expected), found in zip(flat(whole.state_dict()), flat(resumed.state_dict()), strict=True):
        assert (key, expected) == found


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_saved_policy_loads_and_traces_fit(name, make_cache, tmp_path):
    cache = make_cache(MIXED)
    algorithm, _ = run(name, cache)
    save_learned(algorithm, tmp_path / "policy", version=4)
    _, meta = FlowVLA.load(tmp_path / "policy")
    assert meta == {"policy_version": 4, "algorithm": name}
    for column in algorithm.trace(cache, np.arange(20)).values():
        assert column.shape == (20,)


@pytest.mark.parametrize(("name", "sources"), [("sft", {D}), ("hg_dagger", {D, H}), ("filtered_bc", {D, H, P})])
def test_what_each_algorithm_draws(name, sources, make_cache):
    cache = make_cache(MIXED)
    algorithm = make_algorithm(name, tiny(name), make_model(), cache, seed=0)
    algorithm.begin_round(cache, 1)
    drawn = np.unique(np.concatenate([algorithm.actor_frames(step) for step in range(60)]))
    assert set(cache.source[drawn]) == sources
    failures = (algorithm.data.credit.actor_kind == ActorKind.ROLLOUT) & ~algorithm.data.credit.actor_outcome
    assert not failures[drawn].any()


def test_an_adopted_policy_acts_and_learns_on(make_cache, tmp_path):
    cache = make_cache(MIXED)
    other, _ = run("habc", cache, seed=4)
    save_learned(other, tmp_path / "policy", version=4)
    algorithm, _ = run("habc", cache)
    adopt_saved(algorithm, tmp_path / "policy")
    assert torch.equal(weights_of(algorithm), weights_of(other))
    algorithm.update(5)
    assert 0 < (weights_of(algorithm) - weights_of(other)).abs().max() < 0.1


def test_seeds_differ_and_repeat(make_cache):
    cache = make_cache(MIXED)
    first, again, other = (weights_of(run("habc", cache, seed=seed)[0]) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_unknown_name_is_one_clear_error(make_cache):
    with pytest.raises(ConfigError, match="Did you mean 'habc'"):
        make_algorithm("habcc", tiny("habc"), make_model(), make_cache(MIXED), 0)
    with pytest.raises(ConfigError, match="'residual_ppo' takes a ResidualPPOLearning, found a HabcLearning"):
        make_algorithm("residual_ppo", tiny("habc"), make_model(), make_cache(MIXED), 0)


def flat(node, path=""):
    """(path, plain value) of every leaf."""
    if isinstance(node, dict):
        return [leaf for key, value in node.items() for leaf in flat(value, f"{path}/{key}")]
    if isinstance(node, list | tuple):
        return [leaf for index, value in enumerate(node) for leaf in flat(value, f"{path}/{index}")]
    return [(path, node.tolist() if isinstance(node, torch.Tensor) else node)]
