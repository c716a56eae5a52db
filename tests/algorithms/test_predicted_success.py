"""What is predicted of policies: known answers in a world that they understand, and whole runs."""

import numpy as np
import pytest
import torch
from test_imagined_edit import learner
from tiny_world import MIXED, P, make_episode

from benchmarks.predicted_success import predict
from vla_rl.policies.best_of_n import BestOfN, BestOfNConfig
from vla_rl.policies.residual import Residual, ResidualConfig

pytestmark = pytest.mark.usefixtures("small_dynamics")
TINY = ["--config", "tiny", "algorithm=imagined_edit", "budget.evaluation_episodes=1", "learning.critic.chunk_ticks=8"]
TINY += ["learning.critic.hidden=[8]", "learning.dynamics.steps=5"]


def arriving(index: int):
    """The state adds up the first action; the episode succeeds once it is above 1, and fails after sixteen steps."""
    random = np.random.default_rng(index)
    action = random.normal(0, 1, (8, 2)).astype(np.float32).repeat(2, 0)
    state = np.zeros((16, 2), np.float32)
    state[:, 0] = random.normal(0, 0.3) + 0.3 * np.concatenate([[0], action[:-1, 0].cumsum()])
    arrived = np.flatnonzero(state[:, 0] > 1)
    length = arrived[0] + 1 if len(arrived) else 16
    own = {"state": state[:length], "action": action[:length]}
    episode = make_episode(f"round-{index:03d}", [P] * length, bool(len(arrived)), **own)
    episode.images["front"][:] = 0
    return episode


def going(model, way: float) -> BestOfN:
    """A policy whose first action is moved by as much."""
    residual = Residual(model, ResidualConfig(hidden=(8,), bound=2.0))
    with torch.no_grad():
        residual.net[-1].weight.zero_()
        residual.net[-1].bias.copy_(torch.tensor([way, 0.0]))
    return BestOfN(None, BestOfNConfig(num_samples=1, offset_std=0.0), residual, ticks=2)


@pytest.mark.slow
def test_policies_are_predicted_in_the_order_of_what_they_do(make_cache) -> None:
    cache = make_cache([arriving(index) for index in range(80)])
    judge = learner(cache, dynamics={"steps": 300})
    up, still, down = (predict(judge, going(judge.model, way), 100) for way in (0.8, 0.0, -0.8))
    assert up.success - 0.1 > still.success > down.success + 0.1
    assert predict(judge, None, 100).success == pytest.approx(still.success, abs=0.1)
    assert np.mean(up.worlds) == pytest.approx(up.success), "as many episodes in every world"
    assert len(up.worlds) == 5


def test_it_is_the_same_again_and_leaves_random_numbers_alone(make_cache) -> None:
    judge = learner(make_cache(MIXED))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, again = predict(judge, None, 7), predict(judge, None, 7)
    assert first == again
    assert torch.equal(before, torch.get_rng_state())
