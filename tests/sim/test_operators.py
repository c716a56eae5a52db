"""Scripted people: how they differ from the expert, and what a takeover by one leaves behind."""

import dataclasses
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import sim
from sim.operators import OPERATORS, Operator, OperatorConfig
from sim.supervisor import ScriptedSupervisor, SupervisorConfig, marked
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.types import OPERATOR, Episode, Origin, Source

TASK = "vla_rl/PegInsert-v0"
RESCUES = SupervisorConfig(rescue_probability=1.0, hand_back_probability=0.0, operators=("okay_1",))


def drive(env, expert, seed):
    """One episode: success and what was sent, [T, A]."""
    env.reset(seed=seed)
    expert.reset(seed)
    sent, ended = [], False
    while not ended:
        sent.append(expert.act()[1])
        _, _, success, truncated, _ = env.step(sent[-1])
        ended = success or truncated
    return success, np.array(sent)


def idle_steps(sent, env):
    """Steps after the first at which the command keeps still."""
    motion = np.where([kind == "absolute" for kind in env.action_kind], np.diff(sent, axis=0), sent[1:])
    motion[:, list(env.gripper_dims)] = np.diff(sent, axis=0)[:, list(env.gripper_dims)]
    return np.abs(motion).max(axis=1) < 1e-6


def test_a_person_without_habits_is_the_expert(task, blind_env):
    env = blind_env(task)
    for seed in range(3):
        _, bare = drive(env, sim.make_expert(env), seed)
        _, driven = drive(env, Operator(sim.make_expert(env), OperatorConfig()), seed)
        np.testing.assert_array_equal(driven, bare)


def test_an_episode_repeats_by_its_seed(blind_env):
    env = blind_env(TASK)
    person = Operator(sim.make_expert(env), OPERATORS["worse_2"])
    (_, first), (_, other), (_, again) = (drive(env, person, seed) for seed in (4, 5, 4))
    np.testing.assert_array_equal(first, again)
    assert len(first) != len(other) or (first != other).any()


def test_better_people_are_faster_and_idle_less(task, blind_env):
    env = blind_env(task)
    env.max_episode_steps = 400
    steps, idle = {}, {}
    for name in ("better_1", "worse_1"):
        person = Operator(sim.make_expert(env), OPERATORS[name])
        episodes = [drive(env, person, seed) for seed in range(4)]
        assert sum(success for success, _ in episodes) >= 2
        steps[name] = np.mean([len(sent) for _, sent in episodes])
        idle[name] = np.mean([idle_steps(sent, env).sum() for _, sent in episodes])
    assert steps["worse_1"] > 1.5 * steps["better_1"]
    assert idle["worse_1"] > 2 * idle["better_1"]


def test_reaction_is_a_still_beginning(blind_env):
    env = blind_env(TASK)
    person = Operator(sim.make_expert(env), OperatorConfig(reaction_s=(0.75, 0.75)))
    _, sent = drive(env, person, 0)
    assert idle_steps(sent, env)[:14].all()
    assert not idle_steps(sent, env)[14]


@pytest.mark.slow
def test_idle_share_is_the_one_asked_for(blind_env):
    env = blind_env(TASK)
    env.max_episode_steps = 400
    person = Operator(sim.make_expert(env), OperatorConfig(idle_share=0.3))
    still = np.concatenate([idle_steps(drive(env, person, seed)[1], env) for seed in range(60)])
    assert still.mean() == pytest.approx(0.3, abs=0.06)


def test_a_missed_grasp_opens_again_and_is_repaired(blind_env):
    env = blind_env("vla_rl/PickPlace-v0")
    env.max_episode_steps = 400
    changes = {}
    for chance in (0.0, 0.6):
        person = Operator(sim.make_expert(env), OperatorConfig(miss_probability=chance))
        episodes = [drive(env, person, seed) for seed in range(8)]
        assert sum(success for success, _ in episodes) >= 7
        shut = [sent[:, 3] < env.action_space.high[3] / 2 for _, sent in episodes]
        changes[chance] = sum((np.diff(own.astype(int)) == 1).sum() for own in shut)
    assert changes[0.0] == 8  # one grasp each
    assert changes[0.6] >= 12


class Squeezer:
    """An expert whose gripper takes steps. It holds its grasp from the fifth frame on."""

    meters_per_action = pace = 1.0

    def __init__(self):
        self.env = SimpleNamespace(
            metadata={"render_fps": 20},
            action_space=gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32),
            action_kind=("delta",) * 4,
            gripper_dims=(3,),
        )

    def reset(self, seed):
        self.frame, self.sent = 0, np.zeros(4)

    def act(self):
        self.frame += 1
        action = np.float32([0.0, 0.0, 0.0, 1.0 if self.frame >= 5 else -1.0])
        return action, action

    def progress(self):
        return 0.0

    def last_sent(self):
        return self.sent


def squeezes(config, seed, frames):
    """Steps of the gripper that a person sends, [frames]."""
    expert = Squeezer()
    person = Operator(expert, config)
    person.reset(seed)
    sent = []
    for _ in range(frames):
        expert.sent = person.act()[1].astype(np.float64)
        sent.append(expert.sent[3])
    return np.array(sent)


def test_a_grasp_that_is_held_by_steps_is_missed_at_most_once_per_attempt():
    """An attempt that is not missed is held to the end, with pauses too, in which the steps are 0."""
    attempts, missed = 0, 0
    for seed in range(80):
        sent = squeezes(OperatorConfig(miss_probability=0.35, idle_share=0.2), seed, 250)
        told = sent[sent != 0]
        attempts += (np.diff(told, prepend=-1.0) > 0).sum()
        missed += (np.diff(told) < 0).sum()
    assert attempts - missed == 80
    assert missed / attempts == pytest.approx(0.35, abs=0.1)


def test_who_goes_astray_first_moves_straight_the_wrong_way(blind_env):
    """For 0.8 to 1.6 s at .08 m/s, elsewhere in every episode; then the task is done all the same."""
    env = blind_env(TASK)
    lost, sure = (Operator(sim.make_expert(env), OperatorConfig(astray_probability=chance)) for chance in (1.0, 0.0))

    def straight(person, seed):
        """Frames of the first straight motion, and its step."""
        success, sent = drive(env, person, seed)
        assert success
        steps = np.diff(np.delete(sent, env.gripper_dims, axis=1).astype(np.float64), axis=0)
        return 1 + int(np.argmin(np.isclose(steps, steps[0], atol=1e-6).all(axis=1))), steps[0]

    assert max(straight(sure, seed)[0] for seed in range(3)) < 5
    frames, steps = zip(*(straight(lost, seed) for seed in range(6)), strict=True)
    assert 16 <= min(frames) < 22 < max(frames) <= 32
    ways = np.array(steps) * lost.meters_per_action * lost.hz
    np.testing.assert_allclose(np.linalg.norm(ways, axis=1), 0.08, rtol=1e-4)
    assert np.triu(ways @ ways.T, 1).max() < 0.8 * 0.08**2


def test_a_tremor_is_as_large_as_asked_for_and_shakes_no_gripper(blind_env):
    env = blind_env(TASK)
    expert, wanted = sim.make_expert(env), []
    act = expert.act
    expert.act = lambda: wanted.append(act()) or wanted[-1]
    person = Operator(expert, OperatorConfig(tremor_m=0.002))
    shaken = []
    for seed in range(6):
        wanted.clear()
        success, sent = drive(env, person, seed)
        assert success
        shaken.append((sent - np.array([label for label, _ in wanted])) * person.meters_per_action)
    every = np.concatenate(shaken)
    assert not every[:, list(env.gripper_dims)].any()
    assert np.delete(every, env.gripper_dims, axis=1).std() == pytest.approx(0.002, rel=0.15)
    before, after = (np.concatenate([own[part, 0] for own in shaken]) for part in (slice(-1), slice(1, None)))
    assert np.corrcoef(before, after)[0, 1] > 0.5  # a hand wavers; it does not jump


def test_one_part_at_a_time(blind_env):
    env = blind_env(TASK)
    person = Operator(sim.make_expert(env), OperatorConfig(one_part_probability=1.0))
    success, sent = drive(env, person, 0)
    moved = np.abs(np.diff(sent, axis=0)) > 1e-6
    assert success
    assert not (moved[:, :4].any(axis=1) & moved[:, 4:].any(axis=1)).any()


@pytest.mark.slow
def test_meta_world_is_driven_too():
    pytest.importorskip("metaworld")
    env = gymnasium.make("vla_rl_benchmarks.metaworld_tasks:vla_rl/MetaWorldButtonPress-v0").unwrapped
    env.drawing, env.max_episode_steps = False, 499
    lengths = {}
    for name in ("better_1", "worse_1"):
        episodes = [drive(env, Operator(sim.make_expert(env), OPERATORS[name]), seed) for seed in range(3)]
        assert sum(success for success, _ in episodes) >= 2
        lengths[name] = np.mean([len(sent) for _, sent in episodes])
    env.close()
    assert lengths["worse_1"] > 1.5 * lengths["better_1"]


def supervised(env, supervisor, seed):
    """An episode in which the policy keeps still: who decided, [T]."""
    env.reset(seed=seed)
    supervisor.reset(seed)
    proposed, source, ended = env.data.ctrl.astype(np.float32), [], False
    while not ended:
        command = supervisor.command(len(source), proposed)
        source.append(Source.POLICY if command is None else Source.HUMAN)
        _, _, success, truncated, _ = env.step(proposed if command is None else command)
        ended = success or truncated
    return np.array(source, np.uint8)


def as_episode(source):
    size = len(source)
    vectors = np.zeros((size, 2), np.float32)
    return Episode(
        "one", {}, vectors, vectors, vectors, source, "", True, True, Origin.SIM, 0, 0, 20.0, "env", {}
    ).validate()


@pytest.mark.parametrize(("jitter_s", "least", "most"), [(None, 1, 5), (0.5, 6, 10), (0.0, 0, 0)])
def test_a_takeover_carries_the_name_and_a_moved_mark(blind_env, jitter_s, least, most):
    """By up to .25 s, the habit of okay_1, or by what is asked for; 20 steps a second."""
    env = blind_env(TASK)
    env.max_episode_steps = 240
    supervisor = ScriptedSupervisor(env, dataclasses.replace(RESCUES, mark_jitter_s=jitter_s))
    moved = []
    for seed in range(6):
        source = supervised(env, supervisor, seed)
        signed = supervisor.signed(as_episode(source))
        np.testing.assert_array_equal(signed.extras[f"{OPERATOR}okay_1"], source == Source.HUMAN)
        # A touch may come before the takeover, which the last run of the person's steps is.
        starts = [np.flatnonzero(np.diff(own.astype(int), prepend=0) == 1)[-1] for own in (source, signed.source)]
        moved.append(starts[1] - starts[0])
        assert not np.diff(source[starts[0] :]).any()
    assert np.ptp(moved) >= least
    assert least <= np.abs(moved).max() <= most


def test_named_people_take_turns(blind_env):
    env = blind_env(TASK)
    supervisor = ScriptedSupervisor(env, dataclasses.replace(RESCUES, operators=("better_1", "worse_2")))
    names = [next(iter(supervisor.signed(as_episode(supervised(env, supervisor, seed))).extras)) for seed in (0, 1, 2)]
    assert names == [f"{OPERATOR}better_1", f"{OPERATOR}worse_2", f"{OPERATOR}better_1"]


def test_some_take_over_although_nothing_is_wrong(blind_env, monkeypatch):
    env = blind_env(TASK)
    eager = dataclasses.replace(OPERATORS["okay_1"], needless_probability=1.0, touch_probability=0.0)
    monkeypatch.setitem(OPERATORS, "eager", eager)
    supervisor = ScriptedSupervisor(env, dataclasses.replace(RESCUES, operators=("eager",)))
    expert = sim.make_expert(env)
    for seed in range(3):
        env.reset(seed=seed)
        supervisor.reset(seed)
        expert.reset(seed)
        taken = False
        for tick in range(env.expert_steps):
            command = supervisor.command(tick, None)
            taken |= command is not None
            if env.step(expert.act()[0] if command is None else command)[2]:
                break
        assert taken


def test_who_is_late_takes_over_that_much_later(blind_env, monkeypatch):
    """Up to a second, 20 steps, after whoever sees the same trouble and is never late."""
    env = blind_env(TASK)
    env.max_episode_steps = 240
    starts = []
    for late_s in (0.0, 1.0):
        monkeypatch.setitem(OPERATORS, "late", OperatorConfig(late_s=late_s))
        supervisor = ScriptedSupervisor(env, dataclasses.replace(RESCUES, operators=("late",)))
        first = [np.flatnonzero(supervised(env, supervisor, seed) == Source.HUMAN)[0] for seed in range(8)]
        starts.append(np.array(first))
    late = starts[1] - starts[0]
    assert 0 <= late.min() < 8
    assert 12 < late.max() <= 20


def test_a_touch_holds_still_for_a_moment_although_nothing_is_wrong(blind_env, monkeypatch):
    """For 0.15 to 0.4 s, once in an episode, at any time of it."""
    env = blind_env(TASK)
    expert = sim.make_expert(env)

    def touches(chance, seed):
        """The ticks of an expert's episode at which the person has control."""
        monkeypatch.setitem(OPERATORS, "restless", OperatorConfig(touch_probability=chance))
        supervisor = ScriptedSupervisor(env, dataclasses.replace(RESCUES, operators=("restless",)))
        env.reset(seed=seed)
        supervisor.reset(seed)
        expert.reset(seed)
        sent, found = expert.last_sent(), []
        for tick in range(env.expert_steps):
            command = supervisor.command(tick, None)
            if command is not None:
                np.testing.assert_allclose(command, sent, atol=1e-6)
                found.append(tick)
            sent = expert.act()[0] if command is None else command
            if env.step(sent)[2]:
                break
        return found

    assert not any(touches(0.0, seed) for seed in range(3))
    found = [ticks for seed in range(6) if (ticks := touches(1.0, seed))]
    assert len({ticks[0] for ticks in found}) >= 4
    assert all((np.diff(ticks) == 1).all() for ticks in found)
    lengths = [len(ticks) for ticks in found]
    assert 3 <= min(lengths) < max(lengths) <= 8


def test_marks_move_both_ways():
    p, h, hold = Source.POLICY, Source.HUMAN, Source.HOLD
    source = np.array([p, p, hold, h, h, h, p, p, h, h], np.uint8)
    np.testing.assert_array_equal(marked(source, [(3, 2), (8, -1)]), [p, p, hold, p, p, h, p, h, h, h])
    np.testing.assert_array_equal(marked(source, [(3, -9)]), [h, h, hold, h, h, h, p, p, h, h])
    np.testing.assert_array_equal(marked(source, [(8, 5)])[8:], [p, p])


@pytest.mark.parametrize(
    "bad", [{"speed": (0.0, 1.0)}, {"reaction_s": (1.0, 0.5)}, {"idle_share": 1.0}, {"miss_probability": 1.5}]
)
def test_refuses_what_nobody_does(bad):
    with pytest.raises(ConfigError):
        OperatorConfig(**bad)


def test_refuses_an_expert_that_follows_a_script_unless_nothing_is_spoiled():
    expert = Squeezer()
    expert.follows_script = True
    Operator(expert, OperatorConfig())
    with pytest.raises(UserError, match="follows a script"):
        Operator(expert, OperatorConfig(speed=(0.5, 0.5)))


def test_refuses_an_environment_that_does_not_say_what_a_gripper_is():
    expert = SimpleNamespace(env=gymnasium.make("CartPole-v1").unwrapped)
    with pytest.raises(UserError, match="gripper_dims"):
        Operator(expert, OperatorConfig())


@pytest.mark.parametrize("bad", [{"mark_jitter_s": 0.5}, {"mark_jitter_s": -0.1, "operators": ("okay_1",)}])
def test_refuses_marks_that_nobody_sets(bad):
    with pytest.raises(ConfigError, match="mark_jitter_s"):
        SupervisorConfig(**bad)


def test_refuses_a_stranger():
    with pytest.raises(ConfigError, match="better_1"):
        SupervisorConfig(operators=("better1",))
