"""The gate and the weights against their known answers, in numpy and in torch."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_rl.advantage import (
    SMALLEST_MEAN,
    AdvantageConfig,
    Samples,
    Values,
    advantage_gate,
    advantages,
    effective_samples,
    normalize,
    pre_weights,
    viability,
    weights,
)
from vla_rl.core.errors import ConfigError

PAPER = AdvantageConfig(warmup_steps=0)


def samples_of(kinds, success=True, ended=False, elapsed=1.0):
    """Samples from a string of kinds, such as ``rrid-``."""
    letters = np.array(list(kinds))
    count = len(letters)
    flags = [letters == kind for kind in "rid"]
    return Samples(*flags, *(np.broadcast_to(x, count).copy() for x in (success, np.float32(elapsed), ended)))


def values_of(*columns):
    return Values(*(np.asarray(column, dtype=np.float32) for column in columns))


def columns_of(record):
    return [getattr(record, field.name) for field in dataclasses.fields(record)]


def as_torch(record):
    return type(record)(*(torch.from_numpy(np.asarray(column)) for column in columns_of(record)))


def test_zero_advantages_give_one():
    logit = np.linspace(-30, 30, 13, dtype=np.float32)
    np.testing.assert_array_equal(advantage_gate(logit, 0 * logit, 0 * logit, PAPER), np.ones(13))


@pytest.mark.parametrize(("argument", "expected"), [(1.0, 1.762), (-1.0, 0.238)])
def test_argument_of_one(argument, expected):
    equal = np.float32([argument])
    assert advantage_gate(np.float32([0.3]), equal, equal, PAPER) == pytest.approx(expected, abs=5e-4)


def test_hopeless_states_ignore_efficiency_and_safe_ones_viability():
    a_v, a_e = np.float32([0.4]), np.float32([-0.7])
    assert advantage_gate(np.float32([-40]), a_v, a_e, PAPER) == pytest.approx(1 + np.tanh(0.4), abs=1e-6)
    assert advantage_gate(np.float32([40]), a_v, a_e, PAPER) == pytest.approx(1 + np.tanh(-0.7), abs=1e-6)


def test_without_efficiency_the_viability_term_remains():
    a_v, a_e = np.float32([0.4]), np.float32([-0.7])
    found = advantage_gate(np.float32([0]), a_v, a_e, AdvantageConfig(efficiency_scale=0.0))
    assert found == pytest.approx(1 + np.tanh(0.2))


def test_efficiency_scale_multiplies_the_steps():
    found = advantage_gate(np.float32([40]), np.float32([0]), np.float32([-20]), AdvantageConfig(efficiency_scale=0.05))
    assert found == pytest.approx(1 + np.tanh(-1))


def test_sigmoid_is_stable():
    np.testing.assert_allclose(viability(np.float32([-1000, 0, 1000])), [0, 0.5, 1])


def test_a_batch_of_failures_weighs_nothing_and_is_finite():
    values = values_of([5, -5], [-5, 5], [-3, -9], [-2, -1])
    found, logs = weights(values, samples_of("rr", success=False), PAPER, step=0)
    np.testing.assert_array_equal(found, [0, 0])
    assert logs == {"gate_mean": 1.0, "gate_saturated": 0.0, "kept": 0.0, "effective_samples": 0.0}


def test_pre_weights_by_kind():
    gates = np.float32([1.5, 1.5, 1.5, 1.5])
    samples = samples_of("rid-")
    np.testing.assert_array_equal(pre_weights(gates, samples, PAPER), [1.5, 1, 1, 0])
    np.testing.assert_array_equal(pre_weights(gates, samples_of("rid-", success=False), PAPER), [0, 1, 1, 0])


def test_people_can_be_weighed_too():
    config = AdvantageConfig(weighs_people=True, warmup_steps=0)
    gates = np.float32([1.5, 0.5, 0.3, 1.5])
    np.testing.assert_array_equal(pre_weights(gates, samples_of("rid-"), config), np.float32([1.5, 0.5, 0.3, 0]))
    np.testing.assert_array_equal(
        pre_weights(gates, samples_of("rid-", success=False), config), np.float32([0, 0.5, 0.3, 0])
    )
    # A person's idle step costs time and brings nothing: demonstrations share what they weigh among themselves.
    values = values_of([40] * 4, [40] * 4, [-20, -20, -20, -20], [-18, -20, -18, -20])
    found, logs = weights(values, samples_of("ddii"), config, step=0)
    assert found[0] > 1 > found[1]
    assert found[2] > 1 > found[3]
    np.testing.assert_allclose([found[:2].mean(), found[2:].mean()], 1, rtol=1e-5)
    assert logs["effective_samples"] < 0.9


def test_unit_mean_over_rollouts_and_interventions():
    weight = np.float32([1.5, 0.5, 1.0, 1.0, 0.0])
    samples = samples_of("rrid-")
    found = normalize(weight * np.float32([1, 1, 1, 1, 0]), samples)
    np.testing.assert_allclose(found, [1.5, 0.5, 1.0, 1.0, 0.0])
    found = normalize(np.float32([0.6, 0.2, 0.4, 1.0, 0.0]), samples)
    np.testing.assert_allclose(found, [1.5, 0.5, 1.0, 1.0, 0.0], rtol=1e-6)


def test_demonstrations_alone_keep_their_weight():
    values = values_of(*[[0.0, 0.0]] * 4)
    np.testing.assert_array_equal(weights(values, samples_of("dd"), PAPER, 0)[0], [1, 1])


def test_the_last_step_of_a_success_has_the_error_of_its_target():
    values = values_of([0.7], [0.7], [-2.5], [-2.5])
    samples = samples_of("r", ended=True, elapsed=0.0)
    a_v, a_e = advantages(values, samples)
    assert a_v == 0
    assert a_e == pytest.approx(2.5)


def test_the_end_of_a_failure_has_no_target():
    values = values_of([0.7], [0.7], [-2.5], [-4.0])
    _, a_e = advantages(values, samples_of("r", success=False, ended=True, elapsed=2.0))
    assert a_e == pytest.approx(-4.0 - 2.0 + 2.5)


def test_horizon_charges_the_steps_that_were_taken():
    values = values_of([0.0, 0.0], [0.0, 0.0], [-12.0, -5.0], [-4.0, -1.0])
    samples = samples_of("rr", ended=np.array([False, True]), elapsed=np.float32([8, 5]))
    _, a_e = advantages(values, samples)
    np.testing.assert_allclose(a_e, [-8 - 4 + 12, -5 + 0 + 5])


def test_warm_up_ignores_the_critics():
    values = values_of([0, 0], [3, -3], [-9, -2], [0, -40])
    found, logs = weights(values, samples_of("rr"), AdvantageConfig(warmup_steps=500), step=499)
    np.testing.assert_array_equal(found, [1, 1])
    assert logs["gate_mean"] == 1.0
    found, _ = weights(values, samples_of("rr"), AdvantageConfig(warmup_steps=500), step=500)
    assert found[0] > 1.5 > 0.5 > found[1]


def test_diagnostics():
    values = values_of([-40] * 4, [-40 + 3, -40 - 3, -40, -40], [0] * 4, [0] * 4)
    samples = samples_of("rrri", success=np.array([True, True, False, True]))
    _, logs = weights(values, samples, PAPER, 0)
    assert logs["gate_mean"] == pytest.approx(1.0)
    assert logs["gate_saturated"] == 1.0
    assert logs["kept"] == pytest.approx(0.75)
    assert effective_samples(np.float32([1, 1, 0, 0])) == pytest.approx(0.5)


@pytest.mark.parametrize("convert", [lambda record: record, as_torch], ids=["numpy", "torch"])
def test_weights_are_pure(convert):
    """Other trainers may call it: it changes nothing that it is given, and says the same again."""
    values = convert(values_of([0, 1, -1, 2], [3, -3, 0, 1], [-9, -2, -5, -1], [0, -40, -4, 0]))
    samples = convert(samples_of("rrid", success=np.array([True, False, True, True])))
    columns = columns_of(values) + columns_of(samples)
    before = copy.deepcopy(columns)
    (first, logs), (second, logs_again) = (weights(values, samples, PAPER, step=0) for _ in range(2))
    assert (first == second).all()
    assert logs == logs_again
    assert all((column == expected).all() for column, expected in zip(columns, before, strict=True))


finite = st.floats(-50, 50, width=32)
batches = st.lists(
    st.tuples(st.sampled_from("rid-"), st.booleans(), st.booleans(), finite, finite, finite, finite),
    min_size=1,
    max_size=24,
)
configs = st.builds(
    AdvantageConfig,
    weighs_people=st.booleans(),
    efficiency_scale=st.sampled_from([1.0, 0.1, 0.0]),
    warmup_steps=st.just(0),
)


@settings(max_examples=200, deadline=None)
@given(batches, configs)
def test_laws_and_equality_of_numpy_and_torch(rows, config):
    kinds, success, ended, *columns = zip(*rows, strict=True)
    samples = samples_of("".join(kinds), np.array(success), np.array(ended))
    values = values_of(*columns)
    found, logs = weights(values, samples, config, 0)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert not found[samples.rollout & ~samples.success].any()
    practiced = samples.rollout | samples.intervention
    gates = advantage_gate(values.viability_logit, *advantages(values, samples), config)
    assert ((gates >= 0) & (gates <= 2)).all()
    pre = pre_weights(gates, samples, config)
    if practiced.any():
        assert found[practiced].mean() == pytest.approx(min(1.0, pre[practiced].mean() / SMALLEST_MEAN), rel=1e-4)
    same, torch_logs = weights(as_torch(values), as_torch(samples), config, 0)
    np.testing.assert_allclose(same.numpy(), found, rtol=1e-3, atol=1e-3)
    assert torch_logs["gate_mean"] == pytest.approx(logs["gate_mean"], abs=1e-5)


def test_choices_outside_their_range_are_refused():
    with pytest.raises(ConfigError, match="efficiency_scale"):
        AdvantageConfig(efficiency_scale=-1.0)
    with pytest.raises(ConfigError, match="advantage_horizon"):
        AdvantageConfig(advantage_horizon=0)
