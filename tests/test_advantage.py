"""The gate and the weights against their known answers, in numpy and in torch."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_rl.advantage import (
    FEWEST_IN_BIN,
    SMALLEST_MEAN,
    AdvantageConfig,
    Samples,
    Values,
    advantage_gate,
    advantages,
    compared,
    effective_samples,
    gated,
    normalise,
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


def test_gates_without_efficiency():
    a_v, a_e = np.float32([0.4]), np.float32([-0.7])
    assert advantage_gate(np.float32([0]), a_v, a_e, AdvantageConfig(gate="viability")) == pytest.approx(
        1 + np.tanh(0.4)
    )
    weighted = AdvantageConfig(gate="viability_weighted")
    assert advantage_gate(np.float32([0]), a_v, a_e, weighted) == pytest.approx(1 + np.tanh(0.2))


def test_efficiency_scale_multiplies_the_steps():
    found = advantage_gate(np.float32([40]), np.float32([0]), np.float32([-20]), AdvantageConfig(efficiency_scale=0.05))
    assert found == pytest.approx(1 + np.tanh(-1))


def test_a_floor_forgets_no_step_of_a_success():
    z, a_v, a_e = (np.array(column, np.float32) for column in ([0, 0, 0], [0, 0, 0], [-50, -1, 1]))
    plain = advantage_gate(z, a_v, a_e, AdvantageConfig())
    floored = advantage_gate(z, a_v, a_e, AdvantageConfig(gate_floor=1.0))
    assert plain[0] < 1e-6
    assert floored.tolist() == pytest.approx([1.0, 1.0, float(plain[2])])
    half = advantage_gate(z, a_v, a_e, AdvantageConfig(gate_floor=0.6))
    assert half.tolist() == pytest.approx([0.6, max(0.6, float(plain[1])), float(plain[2])])
    with pytest.raises(ConfigError, match="gate_floor"):
        AdvantageConfig(gate_floor=2.0)


def test_a_cost_of_certainty_is_what_a_flat_efficiency_does_unasked():
    """V_e alike everywhere means A_e = -1: g falls from 1 where all is open to 1 - tanh(1) where all is sure."""
    z, still = np.float32([-40, 0, 40]), np.zeros(3, np.float32)
    flat = advantage_gate(z, still, still - 1, AdvantageConfig())
    assert flat.tolist() == pytest.approx([1.0, 1 - np.tanh(0.5), 1 - np.tanh(1.0)])
    costly = advantage_gate(z, still, still - 1, AdvantageConfig(efficiency_scale=0.0, certainty_cost=1.0))
    np.testing.assert_allclose(costly, flat)
    with pytest.raises(ConfigError, match="certainty_cost"):
        AdvantageConfig(certainty_cost=-1.0)


def test_the_soft_exponential():
    """g = exp(x) in [0, 2]: as the other form at 0 in value and slope, and nowhere below it."""
    soft = AdvantageConfig(gate="viability", gate_form="exponential")
    x = np.float32([-1000, -1, 0, 0.5, np.log(2), 1, 1000])
    still = np.zeros(7, np.float32)
    found = advantage_gate(still, x, still, soft)
    np.testing.assert_allclose(found, [0, np.exp(-1), 1, np.exp(0.5), 2, 2, 2], rtol=1e-6)
    assert (found >= advantage_gate(still, x, still, AdvantageConfig(gate="viability"))).all()
    near = np.float32([-1e-2, 1e-2])
    for config in (soft, AdvantageConfig(gate="viability")):
        below, above = advantage_gate(still[:2], near, still[:2], config)
        assert (above - below) / 2e-2 == pytest.approx(1, abs=1e-3)
    floored = advantage_gate(still, x, still, dataclasses.replace(soft, gate_floor=0.5))
    np.testing.assert_allclose(floored, np.maximum(found, 0.5))


def as_good_as_usual(value_logit, a_v, efficiency, a_e, counted=None, **options):
    """Advantages in bins of the value."""
    values = values_of(value_logit, value_logit, efficiency, efficiency)
    counted = np.ones(len(value_logit), bool) if counted is None else counted
    return compared(np.float32(a_v), np.float32(a_e), values, counted, AdvantageConfig(**options))


def test_an_advantage_is_compared_with_those_at_its_own_value():
    """Eight samples of each of two values: A_v by p_v, A_e by V_e, here the other way round."""
    low_high = np.repeat([-3.0, 4.0], 8)
    a_v, a_e = np.tile([1.0, 3.0], 8), np.repeat([-40.0, -10.0], 8) + np.tile([-5.0, 5.0], 8)
    a_v[8:] = 100 + 10 * a_v[8:]
    found = as_good_as_usual(low_high, a_v, -low_high, a_e, value_bins=2)
    np.testing.assert_allclose(found, [np.tile([-1, 1], 8)] * 2, atol=1e-5)
    in_one = as_good_as_usual(low_high, a_v, -low_high, a_e, value_bins=1)[0]
    np.testing.assert_allclose(in_one, (a_v - a_v.mean()) / a_v.std(), rtol=1e-5)
    for same, raw in zip(as_good_as_usual(low_high, a_v, -low_high, a_e), (a_v, a_e), strict=True):
        np.testing.assert_array_equal(same, np.float32(raw))


def test_bins_hold_equally_many_and_equal_values_share_one():
    value, still = np.random.default_rng(0).permutation(32).astype(float) ** 3, np.zeros(32)
    (found, _), bins = as_good_as_usual(value, value, still, still, value_bins=4), np.cbrt(value).round() // 8
    for number in range(4):
        own = value[bins == number]
        np.testing.assert_allclose(found[bins == number], (own - own.mean()) / own.std(), rtol=1e-4, atol=1e-4)
    a_v = np.arange(32.0)
    found, _ = as_good_as_usual(still, a_v, still, still, value_bins=4)
    np.testing.assert_allclose(found, (a_v - a_v.mean()) / a_v.std(), rtol=1e-5)


def test_samples_that_do_not_count_are_only_placed():
    counted = np.arange(10) < 8
    a_v = np.append(np.tile([1.0, 3.0], 4), [8.0, 2.0])
    found, _ = as_good_as_usual([0.0] * 8 + [-9, 9], a_v, [0] * 10, [0] * 10, counted, value_bins=1)
    np.testing.assert_allclose(found, [*np.tile([-1, 1], 4), 6, 0], atol=1e-5)


def test_too_few_or_all_alike_are_as_good_as_usual():
    """Seven samples in the upper bin, advantages that are all the same, and nobody who counts."""
    assert FEWEST_IN_BIN == 8
    value, a_v = np.repeat([0.0, 5.0], [9, 7]), np.arange(16.0)
    found, flat = as_good_as_usual(value, a_v, value, [-1.1] * 16, value_bins=2)
    assert np.abs(found[:9]).max() > 1
    np.testing.assert_array_equal(found[9:], 0)
    np.testing.assert_allclose(flat, 0, atol=1e-3)
    fewer, _ = as_good_as_usual(value, a_v, value, a_v, value_bins=5)
    assert fewer.tolist() == as_good_as_usual(value, a_v, value, a_v, value_bins=2)[0].tolist() != [0] * 16
    nobody, _ = as_good_as_usual(value, a_v, value, a_v, np.zeros(16, bool), value_bins=2)
    np.testing.assert_array_equal(nobody, 0)
    few = values_of(*np.random.default_rng(0).normal(0, 9, (4, 7)))
    config = AdvantageConfig(value_bins=1, warmup_steps=0)
    np.testing.assert_array_equal(weights(few, samples_of("r" * 7), config, 0)[0], np.ones(7))


def test_sigmoid_is_stable():
    np.testing.assert_allclose(viability(np.float32([-1000, 0, 1000])), [0, 0.5, 1])


def test_a_batch_of_failures_weighs_nothing_and_is_finite():
    values = values_of([5, -5], [-5, 5], [-3, -9], [-2, -1])
    for config in (PAPER, AdvantageConfig(normalise_over="valid", warmup_steps=0)):
        found, logs = weights(values, samples_of("rr", success=False), config, step=0)
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


def test_two_readings_of_unit_mean():
    weight = np.float32([1.5, 0.5, 1.0, 1.0, 0.0])
    samples = samples_of("rrid-")
    found = normalise(weight * np.float32([1, 1, 1, 1, 0]), samples, PAPER)
    np.testing.assert_allclose(found, [1.5, 0.5, 1.0, 1.0, 0.0])
    found = normalise(np.float32([0.6, 0.2, 0.4, 1.0, 0.0]), samples, PAPER)
    np.testing.assert_allclose(found, [1.5, 0.5, 1.0, 1.0, 0.0], rtol=1e-6)
    found = normalise(np.float32([0.6, 0.2, 0.4, 1.0, 0.0]), samples, AdvantageConfig(normalise_over="valid"))
    np.testing.assert_allclose(found[:4].mean(), 1.0, rtol=1e-6)


def test_demonstrations_alone_keep_their_weight():
    values = values_of(*[[0.0, 0.0]] * 4)
    np.testing.assert_array_equal(weights(values, samples_of("dd"), PAPER, 0)[0], [1, 1])


@pytest.mark.parametrize(("rule", "expected"), [("target", 2.5), ("neutral", 0.0), ("repeat", -1.0)])
def test_last_step_rules(rule, expected):
    values = values_of([0.7], [0.7], [-2.5], [-2.5])
    samples = samples_of("r", ended=True, elapsed=0.0)
    a_v, a_e = advantages(values, samples, AdvantageConfig(last_step=rule))
    assert a_v == 0
    assert a_e == pytest.approx(expected)


def test_the_end_of_a_failure_has_no_target():
    values = values_of([0.7], [0.7], [-2.5], [-4.0])
    _, a_e = advantages(values, samples_of("r", success=False, ended=True, elapsed=2.0), PAPER)
    assert a_e == pytest.approx(-4.0 - 2.0 + 2.5)


def test_horizon_charges_the_steps_that_were_taken():
    values = values_of([0.0, 0.0], [0.0, 0.0], [-12.0, -5.0], [-4.0, -1.0])
    samples = samples_of("rr", ended=np.array([False, True]), elapsed=np.float32([8, 5]))
    _, a_e = advantages(values, samples, AdvantageConfig(advantage_horizon=8))
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
    gate=st.sampled_from(["hierarchical", "viability", "viability_weighted"]),
    gate_form=st.sampled_from(["tanh", "exponential"]),
    value_bins=st.sampled_from([0, 1, 2]),
    weighs_people=st.booleans(),
    last_step=st.sampled_from(["target", "neutral", "repeat"]),
    efficiency_scale=st.sampled_from([1.0, 0.1]),
    normalise_over=st.sampled_from(["non_demonstration", "valid"]),
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
    practised = samples.rollout | samples.intervention
    over = practised if config.normalise_over == "non_demonstration" else practised | samples.demonstration
    found_in_bins = compared(*advantages(values, samples, config), values, gated(samples, config), config)
    gates = advantage_gate(values.viability_logit, *found_in_bins, config)
    assert ((gates >= 0) & (gates <= 2)).all()
    pre = pre_weights(gates, samples, config)
    if over.any():
        assert found[over].mean() == pytest.approx(min(1.0, pre[over].mean() / SMALLEST_MEAN), rel=1e-4)
    same, torch_logs = weights(as_torch(values), as_torch(samples), config, 0)
    np.testing.assert_allclose(same.numpy(), found, rtol=1e-3, atol=1e-3)
    assert torch_logs["gate_mean"] == pytest.approx(logs["gate_mean"], abs=1e-5)


def test_unknown_choices_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'hierarchical'"):
        AdvantageConfig(gate="hierarchal")
    with pytest.raises(ConfigError, match="Did you mean 'exponential'"):
        AdvantageConfig(gate_form="exponentional")
    with pytest.raises(ConfigError, match="value_bins"):
        AdvantageConfig(value_bins=-1)
    with pytest.raises(ConfigError, match="last_step"):
        AdvantageConfig(last_step="zero")
    with pytest.raises(ConfigError, match="normalise_over"):
        AdvantageConfig(normalise_over="all")
    with pytest.raises(ConfigError, match="advantage_horizon"):
        AdvantageConfig(advantage_horizon=0)
