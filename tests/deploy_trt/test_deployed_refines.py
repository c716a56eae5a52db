"""A deployment moves a plan by its residual as torch does, also ticks after it was made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_proxied_export
from choosers import make_selector, save_choosing
from tiny_policy import make_model, make_observation

from deploy_trt.export import export_policy
from deploy_trt.runtime import load_deployed
from vla_rl.core.protocols import RefiningPolicy
from vla_rl.core.types import Observation
from vla_rl.policies.folders import load_policy

SAME = 1e-5


def of_a_flow(folder: Path, candidates: int, offset: float) -> Callable[[int], Observation]:
    model = make_model(discrete_dims=(1,))
    save_choosing(folder, model, make_selector(model, 0, candidates, offset))
    return lambda seed: make_observation(seed, tick=seed)


def beside_a_base_policy(folder: Path, candidates: int, offset: float) -> Callable[[int], Observation]:
    test_proxied_export.save(folder, candidates=candidates, offset=offset)
    return test_proxied_export.observation


@pytest.mark.slow
@pytest.mark.parametrize("made", [of_a_flow, beside_a_base_policy])
def test_a_deployment_refines_a_plan_as_torch_does(made: Callable[..., Any], tmp_path: Path) -> None:
    observation = made(tmp_path / "policy", 1, 0.0)
    export_policy(tmp_path / "policy", tmp_path / "out")
    ours, torchs = load_deployed(tmp_path / "out", require="ort-cpu"), load_policy(tmp_path / "policy")
    assert isinstance(ours, RefiningPolicy)
    assert isinstance(torchs, RefiningPolicy)
    assert ours.refines
    assert torchs.refines
    for seed in range(3):
        ours.reset(seed)
        torchs.reset(seed)
        plan = ours.plan(observation(seed))
        np.testing.assert_allclose(plan.actions, torchs.plan(observation(seed)).actions, atol=SAME)
        for later, index in ((observation(seed), 0), (observation(seed + 7), 4)):
            refined = ours.refine(plan, later, index)
            assert refined.start_tick == plan.start_tick
            np.testing.assert_allclose(refined.actions, torchs.refine(plan, later, index).actions, atol=SAME)
            assert np.abs(refined.actions - plan.actions).max() > 1e-3
        now = ours.refine(plan, observation(seed), 0).actions
        np.testing.assert_allclose(now, ours.infer(observation(seed)).actions, atol=SAME)


@pytest.mark.slow
def test_a_plan_is_refined_by_the_weights_that_made_it(tmp_path: Path) -> None:
    for version in (0, 1):
        model = make_model(version)
        save_choosing(tmp_path / f"policy{version}", model, make_selector(model, version, 1, 0.0), version)
        export_policy(tmp_path / f"policy{version}", tmp_path / f"out{version}")
    ours, newer = (load_deployed(tmp_path / f"out{version}", require="ort-cpu") for version in (0, 1))
    plan, later = ours.plan(make_observation(0)), make_observation(1, tick=3)
    expected = ours.refine(plan, later, 2).actions
    ours.swap(newer.program)
    np.testing.assert_array_equal(ours.refine(plan, later, 2).actions, expected)
    assert not np.allclose(ours.refine(ours.plan(make_observation(0)), later, 2).actions, expected)


@pytest.mark.slow
def test_a_deployment_that_selects_does_not_refine(exported_choosing: Path) -> None:
    assert not load_deployed(exported_choosing, require="ort-cpu").refines
