"""A residual that acts alone may move a plan later than it was made."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_best_of_n import SMALL, TICKS, acting, pushing
from tiny_policy import make_model, make_observation

from vla_rl.policies.base import flat_features
from vla_rl.policies.best_of_n import BestOfN, BestOfNConfig, ChunkCritic


@pytest.mark.parametrize("exploration", [0.0, 0.2])
def test_a_refined_plan_is_what_is_inferred_at_once(exploration: float) -> None:
    model, observation = make_model(discrete_dims=(1,)), make_observation(tick=6)
    policy = acting(model, None)
    residual = pushing(model, 0.1)
    residual.net[0].weight.data.normal_(generator=torch.Generator().manual_seed(0))  # it depends on all that it reads
    residual.net[-1].weight.data.normal_(generator=torch.Generator().manual_seed(1))
    policy.selector = BestOfN(ChunkCritic(model, SMALL), BestOfNConfig(num_samples=1, offset_std=0.0), residual)
    policy.exploration = exploration
    assert policy.refines
    policy.reset(3)
    planned = policy.plan(observation)
    policy.reset(3)
    np.testing.assert_allclose(
        policy.refine(planned, observation, 0).actions, policy.infer(observation).actions, atol=1e-6
    )
    later = replace(make_observation(seed=1), tick=9)
    moved = policy.refine(planned, later, 3).actions - planned.actions
    with torch.no_grad():
        features = flat_features(*model.features(*policy._inputs(later)))
        executed = torch.from_numpy(planned.actions[None, 3 : 3 + TICKS])
        offset = residual.raw(residual(residual.rows(features, torch.tensor([9.0]), executed)))[0].numpy()
    expected = offset + (policy._offset(6)[0, 0].numpy() if exploration else 0)  # the exploration of the plan's tick
    np.testing.assert_allclose(moved, np.tile(expected, (len(moved), 1)), atol=1e-5)
    assert not moved[:, 1].any(), "a discrete dimension"


def test_other_policies_do_not_refine() -> None:
    model = make_model()
    for config in (BestOfNConfig(num_samples=3), BestOfNConfig(num_samples=1, offset_std=0.1)):
        assert not BestOfN(ChunkCritic(model, SMALL), config, pushing(model, 0.1)).refines
    assert not BestOfN(ChunkCritic(model, SMALL), BestOfNConfig(num_samples=1, offset_std=0.0)).refines
    alone = BestOfNConfig(num_samples=1, offset_std=0.0)
    assert not BestOfN(None, alone, pushing(model, 0.1), TICKS).refines, "it was learned on policy, from plans"
    assert not acting(model, None).refines
