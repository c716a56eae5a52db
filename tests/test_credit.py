"""Credit assignment against exact masks and an independent, slow reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.types import Origin, Source
from vla_rl.credit import (
    RULES,
    WINDOW,
    ActorKind,
    CreditConfig,
    Segment,
    SegmentKind,
    assign,
    assign_batch,
    imitated_dims,
    segments,
)

P, H, D, W = Source.POLICY, Source.HUMAN, Source.DEMO, Source.HOLD
FIELDS = ["segment", "viability_label", "viability_mask", "efficiency_mask"]
FIELDS += ["actor_kind", "actor_outcome", "terminal_success", "chunk_stop", "outcome_stop"]


def reference(source, success, origin, config):
    """The table of the module's docstring, one step at a time, with none of the module's tricks."""
    length = len(source)
    outcome, size = success, WINDOW * config.min_human_steps

    def dense(step):
        if config.endings_are_takeovers and all(source[t] == H for t in range(step, length)):
            return True
        for start in range(step - size + 1, step + 1):
            window = [t for t in range(max(start, 0), min(start + size, length)) if source[t] == H]
            if len(window) >= config.min_human_steps:
                return True
        return False

    demo = [origin == Origin.DEMO or source[t] == D for t in range(length)]
    human = [source[t] == H and not demo[t] and dense(t) for t in range(length)]
    rows = {name: [] for name in FIELDS}
    for t in range(length):
        taken_later = any(demo[u] or human[u] for u in range(t + 1, length))
        taken_before = any(demo[u] or human[u] for u in range(t))
        label, judged, timed, actor = 0.0, False, False, ActorKind.EXCLUDED
        if demo[t]:
            kind, actor = SegmentKind.DEMONSTRATION, ActorKind.DEMONSTRATION
            timed = outcome is True
        elif human[t]:
            kind, actor, timed = SegmentKind.INTERVENTION, ActorKind.INTERVENTION, outcome is True
        elif taken_later:
            kind, judged = SegmentKind.BEFORE_TAKEOVER, config.rule == "takeover_is_failure"
        else:
            kind = SegmentKind.SUFFIX if taken_before else SegmentKind.AUTONOMOUS
            judged, timed, label = outcome is not None, outcome is True, float(outcome is True)
            if outcome is not None and source[t] != W:
                actor = ActorKind.ROLLOUT
        for name, value in zip(
            FIELDS,
            (kind, label, judged, timed, actor, outcome is True, outcome is True and t == length - 1),
            strict=False,
        ):
            rows[name].append(value)
    for t in range(length):
        stop = t
        while stop < length and all(rows[name][stop] == rows[name][t] for name in ("segment", "actor_kind")):
            stop += 1
        rows["chunk_stop"].append(stop)
        while stop < length and rows["segment"][stop] == rows["segment"][t]:
            stop += 1
        rows["outcome_stop"].append(stop)
    return rows


def random_episodes(rng, count, longest):
    """Episodes in runs of one source, so that takeovers, touches, regrips and demonstrations of all lengths occur."""
    episodes = []
    for _ in range(count):
        source = []
        while len(source) < rng.integers(1, longest):
            source += [rng.choice([P, P, H, H, D, W], p=[0.3, 0.2, 0.2, 0.2, 0.04, 0.06])] * int(rng.integers(1, 9))
        success = [True, False, None][rng.integers(3)]
        origin = [Origin.SIM, Origin.SIM, Origin.SIM, Origin.REAL, Origin.DEMO][rng.integers(5)]
        episodes.append((source, success, origin))
    return episodes


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "options",
    [(3, False), (1, False), (5, True), (2, True)],
)
def test_batch_equals_the_reference_on_random_episodes(rule, options):
    """Over all four options 10,400 episodes for each rule."""
    config = CreditConfig(rule, *options)
    episodes = random_episodes(np.random.default_rng(options[0]), count=2600, longest=32)
    sources, success, origin = zip(*episodes, strict=True)
    batch = assign_batch(np.concatenate(sources), [len(s) for s in sources], success, origin, config)
    expected = [reference(*episode, config) for episode in episodes]
    lengths = [len(source) for source in sources]
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    for name in FIELDS:
        found = getattr(batch, name) - (starts if name.endswith("_stop") else 0)
        np.testing.assert_array_equal(found, np.concatenate([steps[name] for steps in expected]), err_msg=name)


steps = st.lists(st.sampled_from(list(Source)), min_size=1, max_size=60)


@settings(max_examples=150, deadline=None)
@given(steps, st.sampled_from([True, False, None]), st.sampled_from(list(Origin)), st.sampled_from(RULES))
def test_laws_that_no_rule_may_break(source, success, origin, rule):
    credit = assign(source, success, origin, CreditConfig(rule, min_human_steps=3))
    decided = np.isin(credit.segment, (SegmentKind.INTERVENTION, SegmentKind.DEMONSTRATION))
    assert not (credit.viability_mask & decided).any()
    assert not credit.viability_label[~credit.viability_mask].any()
    assert success is True or not credit.efficiency_mask.any()
    assert credit.terminal_success.sum() == int(success is True)
    assert credit.terminal_success[-1] == (success is True)
    before = credit.segment == SegmentKind.BEFORE_TAKEOVER
    assert (credit.actor_kind[before] == ActorKind.EXCLUDED).all()
    assert not credit.viability_label[before].any()
    assert (credit.chunk_stop > np.arange(len(credit))).all()
    assert (credit.outcome_stop >= credit.chunk_stop).all()
    assert [s.stop for s in segments(credit)] == [*[s.start for s in segments(credit)][1:], len(source)]


def kinds(source, success=True, rule="paper", origin=Origin.SIM):
    credit = assign(source, success, origin, CreditConfig(rule))
    return credit, [(s.kind, s.stop - s.start) for s in segments(credit)]


def test_no_takeover():
    credit, found = kinds([P] * 30)
    assert found == [(SegmentKind.AUTONOMOUS, 30)]
    assert credit.viability_mask.all()
    assert credit.viability_label.all()
    assert credit.efficiency_mask.all()
    credit, _ = kinds([P] * 30, success=False)
    assert credit.viability_mask.all()
    assert not credit.viability_label.any()
    assert not credit.efficiency_mask.any()
    assert (credit.actor_kind == ActorKind.ROLLOUT).all()
    assert not credit.actor_outcome.any()


@pytest.mark.parametrize(("rule", "labelled_before"), [("paper", 0), ("takeover_is_failure", 20)])
def test_one_takeover(rule, labelled_before):
    credit, found = kinds([P] * 20 + [H] * 10 + [P] * 5, rule=rule)
    assert found == [(SegmentKind.BEFORE_TAKEOVER, 20), (SegmentKind.INTERVENTION, 10), (SegmentKind.SUFFIX, 5)]
    assert credit.viability_mask.tolist() == [labelled_before > 0] * 20 + [False] * 10 + [True] * 5
    assert credit.viability_label.tolist() == [0.0] * 30 + [1.0] * 5
    assert credit.efficiency_mask.tolist() == [False] * 20 + [True] * 15
    assert credit.actor_kind.tolist() == [0] * 20 + [2] * 10 + [1] * 5
    assert credit.chunk_stop.tolist() == [20] * 20 + [30] * 10 + [35] * 5


def test_several_takeovers_leave_the_policy_between_them_without_credit():
    credit, found = kinds([P] * 4 + [H] * 12 + [P] * 20 + [H] * 11 + [P] * 3, success=False)
    expected = ["BEFORE_TAKEOVER", "INTERVENTION", "BEFORE_TAKEOVER", "INTERVENTION", "SUFFIX"]
    assert found == [(SegmentKind[name], length) for name, length in zip(expected, (4, 12, 20, 11, 3), strict=True)]
    assert np.flatnonzero(credit.viability_mask).tolist() == [47, 48, 49]
    assert (credit.actor_kind == ActorKind.INTERVENTION).sum() == 23
    assert not credit.efficiency_mask.any()


def test_nine_human_steps_are_a_touch_and_ten_a_takeover():
    assert kinds([P] * 20 + [H] * 9 + [P] * 30)[1] == [(SegmentKind.AUTONOMOUS, 59)]
    assert kinds([P] * 20 + [H] * 10 + [P] * 30)[1][1] == (SegmentKind.INTERVENTION, 10)


def test_the_window_is_fifty_steps_long():
    assert kinds([H] * 5 + [P] * 40 + [H] * 5)[1] == [
        (SegmentKind.INTERVENTION, 5), (SegmentKind.BEFORE_TAKEOVER, 40), (SegmentKind.INTERVENTION, 5),
    ]  # fmt: skip
    assert kinds([H] * 5 + [P] * 41 + [H] * 5)[1] == [(SegmentKind.AUTONOMOUS, 51)]


def test_human_finishes_so_nothing_of_the_policy_is_judged():
    credit, found = kinds([P] * 15 + [H] * 25)
    assert found == [(SegmentKind.BEFORE_TAKEOVER, 15), (SegmentKind.INTERVENTION, 25)]
    assert not credit.viability_mask.any()
    assert credit.terminal_success[-1]


def test_human_steps_of_neighboring_episodes_do_not_add_up():
    source = [P] * 5 + [H] * 9 + [H] * 9 + [P] * 5
    credit = assign_batch(source, [14, 14], [True, True], [Origin.SIM] * 2, CreditConfig())
    assert (credit.segment == SegmentKind.AUTONOMOUS).all()


def test_a_demonstrator_in_a_mixed_episode_takes_over_like_a_corrector():
    credit, found = kinds([P] * 6 + [D] * 3 + [P] * 2)
    assert found == [(SegmentKind.BEFORE_TAKEOVER, 6), (SegmentKind.DEMONSTRATION, 3), (SegmentKind.SUFFIX, 2)]
    assert np.flatnonzero(credit.viability_mask).tolist() == [9, 10]


def test_unlabelled_outcome_teaches_only_what_people_did():
    credit, _ = kinds([P] * 20 + [H] * 10 + [P] * 5, success=None, rule="takeover_is_failure")
    assert np.flatnonzero(credit.viability_mask).tolist() == list(range(20))
    assert not credit.viability_label.any()
    assert not credit.efficiency_mask.any()
    assert credit.actor_kind.tolist() == [0] * 20 + [2] * 10 + [0] * 5


def test_held_steps_are_not_imitated_and_end_a_chunk():
    credit, found = kinds([P] * 4 + [W] * 2 + [P] * 4)
    assert found == [(SegmentKind.AUTONOMOUS, 10)]
    assert credit.viability_mask.all()
    assert credit.actor_kind.tolist() == [1] * 4 + [0] * 2 + [1] * 4
    assert credit.chunk_stop[:4].tolist() == [4] * 4


def test_a_rescue_that_success_cuts_short_can_count_as_one():
    source = [P] * 20 + [H] * 4
    assert kinds(source)[1] == [(SegmentKind.AUTONOMOUS, 24)]
    ending = CreditConfig(endings_are_takeovers=True)
    credit = assign(source, True, Origin.SIM, ending)
    assert [(s.kind, s.stop - s.start) for s in segments(credit)] == [
        (SegmentKind.BEFORE_TAKEOVER, 20), (SegmentKind.INTERVENTION, 4),
    ]  # fmt: skip
    assert not credit.viability_mask.any()
    touch = assign([P] * 20 + [H] * 4 + [P] * 2, True, Origin.SIM, ending)
    assert (touch.segment == SegmentKind.AUTONOMOUS).all()
    assert (assign([H] * 3, True, Origin.SIM, ending).segment == SegmentKind.INTERVENTION).all()


def test_dimensions_that_a_person_does_not_command_are_not_imitated_from_him():
    source = [P] * 3 + [H] * 10 + [P] * 2
    credit = assign(source, True, Origin.SIM, CreditConfig())
    assert imitated_dims(credit, 4, CreditConfig()).all()
    found = imitated_dims(credit, 4, CreditConfig(intervention_dims=(0, 2)))
    assert found.shape == (15, 4)
    assert found[3:13].tolist() == [[True, False, True, False]] * 10
    assert found[:3].all()
    assert found[13:].all()
    demonstration = assign([D] * 5, True, Origin.DEMO, CreditConfig())
    assert imitated_dims(demonstration, 4, CreditConfig(intervention_dims=(0,))).all()


def test_what_comes_before_a_person_has_got_hold_is_not_imitated():
    source = [P] * 20 + [H] * 15 + [P] * 5 + [H] * 12
    plain, lead = (assign(source, True, Origin.SIM, CreditConfig(takeover_lead_steps=n)) for n in (0, 6))
    assert lead.actor_kind.tolist() == [0] * 26 + [2] * 9 + [0] * 5 + [0] * 6 + [2] * 6
    assert lead.chunk_stop[[20, 26]].tolist() == [26, 35]
    np.testing.assert_array_equal(lead.segment, plain.segment)
    np.testing.assert_array_equal(lead.efficiency_mask, plain.efficiency_mask)
    late = CreditConfig(takeover_lead_steps=14)
    two = assign_batch([P] * 5 + [H] * 12 + [H] * 15, [17, 15], [True] * 2, [Origin.SIM] * 2, late)
    assert two.actor_kind.tolist() == [0] * 5 + [0] * 12 + [2] * 15, "a lead ends with its episode"
    person_alone = assign([H] * 15, True, Origin.SIM, CreditConfig(takeover_lead_steps=6))
    assert (person_alone.actor_kind == ActorKind.INTERVENTION).all()  # nobody was taken over from


def test_long_stretches_without_motion_are_not_imitated():
    source = [D] * 6 + [P] * 6 + [H] * 12
    motion = np.ones(24)
    motion[[1, 2, 3, 6, 7, 8, 9, 14, 15, 16, 20, 21]] = 0.0
    origins, options = [Origin.DEMO, Origin.SIM], CreditConfig(idle_steps=3)
    credit = assign_batch(source, [6, 18], [True] * 2, origins, options, motion)
    demo, excluded, human = ActorKind.DEMONSTRATION, ActorKind.EXCLUDED, ActorKind.INTERVENTION
    assert credit.actor_kind[:6].tolist() == [demo] + [excluded] * 3 + [demo] * 2
    # The policy may stand still; of the person's pauses, the one of two steps is too short.
    assert credit.actor_kind[12:].tolist() == [human] * 2 + [excluded] * 3 + [human] * 7
    assert credit.efficiency_mask[:6].all()
    with pytest.raises(UserError, match="motion"):
        assign(source, True, Origin.SIM, options)


def test_a_pause_does_not_go_on_into_the_next_episode():
    still = np.zeros(4)
    options = CreditConfig(idle_steps=3)
    credit = assign_batch([D] * 4, [2, 2], [True] * 2, [Origin.DEMO] * 2, options, still)
    assert (credit.actor_kind == ActorKind.DEMONSTRATION).all()


def test_several_people_in_one_episode():
    """One demonstrates the beginning, the policy goes on, another one rescues it, and the policy finishes."""
    source = [D] * 8 + [P] * 10 + [H] * 12 + [P] * 5
    credit = assign(source, True, Origin.SIM, CreditConfig("takeover_is_failure", takeover_lead_steps=3))
    assert [(part.kind, part.stop - part.start) for part in segments(credit)] == [
        (SegmentKind.DEMONSTRATION, 8), (SegmentKind.BEFORE_TAKEOVER, 10), (SegmentKind.INTERVENTION, 12),
        (SegmentKind.SUFFIX, 5),
    ]  # fmt: skip
    assert credit.actor_kind.tolist() == [3] * 8 + [0] * 10 + [0] * 3 + [2] * 9 + [1] * 5
    assert credit.viability_mask.tolist() == [False] * 8 + [True] * 10 + [False] * 12 + [True] * 5


def test_segments_name_rows():
    assert segments(assign([P, H], True, Origin.SIM, CreditConfig(min_human_steps=1))) == [
        Segment(SegmentKind.BEFORE_TAKEOVER, 0, 1), Segment(SegmentKind.INTERVENTION, 1, 2),
    ]  # fmt: skip


def test_an_empty_batch_is_an_empty_credit():
    assert len(assign_batch([], [], [], [], CreditConfig())) == 0


def sampled_outcomes(rng, success_rate, rescued, episodes):
    """Episodes from one initial state; a person rescues a share of the failing ones from the second step on."""
    for _ in range(episodes):
        if rng.random() < success_rate:
            yield [P] * 11, True
        elif rng.random() < rescued:
            yield [P] + [H] * 10, True
        else:
            yield [P] * 11, False


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("paper", 0.36 / (0.36 + 0.5 * 0.64)), ("takeover_is_failure", 0.36)],
    ids=["paper", "takeover_is_failure"],
)
def test_label_bias_of_the_initial_state(rule, expected):
    sources, success = zip(*sampled_outcomes(np.random.default_rng(0), 0.36, 0.5, 20_000), strict=True)
    count = len(sources)
    credit = assign_batch(np.concatenate(sources), [11] * count, success, [Origin.SIM] * count, CreditConfig(rule))
    label, mask = credit.viability_label[::11], credit.viability_mask[::11]
    estimate, error = label[mask].mean(), np.sqrt(0.25 / mask.sum())
    assert abs(estimate - expected) < 4 * error


def test_bad_input_is_one_clear_error():
    with pytest.raises(ConfigError, match="Did you mean 'paper'"):
        CreditConfig(rule="papr")
    with pytest.raises(ConfigError, match="min_human_steps"):
        CreditConfig(min_human_steps=0)
    with pytest.raises(ConfigError, match="counted from 0"):
        CreditConfig(intervention_dims=(0, -1))
    with pytest.raises(ConfigError, match="idle_steps"):
        CreditConfig(idle_steps=-1)
    credit = assign([P], True, Origin.SIM, CreditConfig())
    with pytest.raises(UserError, match="4 dimensions"):
        imitated_dims(credit, 4, CreditConfig(intervention_dims=(4,)))
    with pytest.raises(UserError, match="no steps"):
        assign([], True, Origin.SIM, CreditConfig())
    with pytest.raises(UserError, match="value 9"):
        assign([9], True, Origin.SIM, CreditConfig())
    with pytest.raises(UserError, match="add up to 3"):
        assign_batch([P, P], [1, 2], [True, True], [Origin.SIM] * 2, CreditConfig())
    with pytest.raises(UserError, match="entries"):
        assign_batch([P, P], [1, 1], [True], [Origin.SIM] * 2, CreditConfig())
