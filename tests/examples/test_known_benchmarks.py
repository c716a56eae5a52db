"""The known benchmarks of examples/benchmarks, and Meta-World's four; skipped where a suite is not installed."""

import contextlib
import warnings

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from vla_rl_benchmarks.scene import import_suite, numpy_seeded

import sim
from robot_io.env_robot import EnvRobot
from sim.operators import OPERATORS, Operator, OperatorConfig
from sim.supervisor import ScriptedSupervisor, SupervisorConfig
from vla_rl.acting.task import episode_limit, make_env
from vla_rl.acting.task_config import TaskConfig
from vla_rl.acting.task_names import SUITES, all_tasks, find_task, task_names
from vla_rl.core.config import config_from_dict
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.logging_setup import library_output_once

PACKAGE = "vla_rl_benchmarks"
TASKS = {
    f"{PACKAGE}.robosuite_tasks:Lift": ("robosuite", 150),
    f"{PACKAGE}.robosuite_tasks:PickPlaceCan": ("robosuite", 300),
    f"{PACKAGE}.robosuite_tasks:NutAssemblySquare": ("robosuite", 400),
    f"{PACKAGE}.ogbench_tasks:CubeSingle": ("ogbench", 200),
    f"{PACKAGE}.ogbench_tasks:CubeDouble": ("ogbench", 500),
    f"{PACKAGE}.aloha_tasks:TransferCube": ("gym_aloha", 400),
    f"{PACKAGE}.aloha_tasks:Insertion": ("gym_aloha", 400),
}  # name -> the package of its suite, its time limit
META_WORLD = [f"vla_rl/MetaWorld{name}-v0" for name in ("Assembly", "BoxClose", "CoffeePush", "StickPull")]
SCRIPTED = [name for name in TASKS if "aloha" in name]
RECOVERING = [name for name in TASKS if name not in SCRIPTED]
STALL_S = {f"{PACKAGE}.robosuite_tasks:NutAssemblySquare": 3.0}  # its expert takes long to reach some handles
NOISE = 0.003  # of demonstrations
OBJECTS = ("object", "to_object", "cube", "box", "socket", "peg")  # how the names of their state dimensions begin


@contextlib.contextmanager
def opened(name, **arguments):
    """The environment of a task, as a run makes it."""
    package = TASKS[name][0] if name in TASKS else "metaworld"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(package, reason=f"the suite {package} is not installed")
        with library_output_once():
            env = make_env(config_from_dict(TaskConfig, {"env": name, "image_size": 32, "kwargs": arguments}))
        try:
            yield env
        except UserError as error:
            if "EGL does not load" not in str(error):
                raise
            pytest.skip(str(error))
        finally:
            env.close()


def play(env, seed, steps=None, noise=NOISE):
    """Let the expert play an episode; its outcomes [(reward, terminated, truncated, info)] and last observation."""
    env.unwrapped.drawing = False
    expert = sim.make_expert(env, noise)
    observation, _ = env.reset(seed=seed)
    expert.reset(seed)
    outcomes = []
    while not outcomes or not (outcomes[-1][1] or outcomes[-1][2] or len(outcomes) == steps):
        observation, *outcome = env.step(expert.act()[1])
        outcomes.append(outcome)
    return outcomes, observation


@pytest.mark.parametrize("name", [*RECOVERING, *META_WORLD])
def test_an_expert_can_be_driven_by_a_person_and_supervise(name):
    with opened(name) as env:
        env.reset(seed=0)
        person = Operator(sim.make_expert(env), OPERATORS["okay_1"])
        supervisor = ScriptedSupervisor(env, SupervisorConfig(stall_s=STALL_S.get(name, 1.0)))
        supervisor.reset(0)
        assert person.act()[1].shape == env.action_space.shape
        assert supervisor.command(0, env.action_space.low) is None


@pytest.mark.parametrize("name", SCRIPTED)
def test_an_expert_that_follows_a_script_only_demonstrates(name):
    with opened(name) as env:
        expert = sim.make_expert(env)
        Operator(expert, OperatorConfig())
        with pytest.raises(UserError, match="follows a script"):
            Operator(expert, OPERATORS["okay_1"])
        with pytest.raises(UserError, match="follows a script"):
            ScriptedSupervisor(env)


@pytest.mark.parametrize("name", STALL_S)
def test_a_supervisor_who_is_less_patient_than_the_expert_is_refused(name):
    with opened(name, pictures=False) as env, pytest.raises(UserError, match=r"stall_s=3"):
        ScriptedSupervisor(env)


def supervise(env, seed, hands_back, policy, stall_s=1.0):
    """An episode with a supervisor who always rescues. Its success, and who decided at every step: True, the person.

    ``policy`` gets whether the person has had control yet.
    """
    config = SupervisorConfig(rescue_probability=1.0, hand_back_probability=float(hands_back), stall_s=stall_s)
    supervisor = ScriptedSupervisor(env, config)
    env.reset(seed=seed)
    supervisor.reset(seed)
    driving, ended = [], False
    while not ended:
        command = supervisor.command(len(driving), env.action_space.low)
        driving.append(command is not None)
        _, _, success, truncated, _ = env.step(policy(any(driving)) if command is None else command)
        ended = success or truncated
    return success, np.array(driving)


def still(env):
    """The action of a policy that does nothing."""
    rest = getattr(env.unwrapped, "rest_action", None)
    return np.zeros(env.action_space.shape, np.float32) if rest is None else rest(np.empty(0))


@pytest.mark.parametrize("name", RECOVERING)
def test_a_supervisor_leaves_the_expert_alone(name):
    with opened(name, pictures=False) as env:
        expert = sim.make_expert(env)
        for seed in range(2):
            expert.reset(seed)
            success, driving = supervise(env, seed, True, lambda _: expert.act()[0], STALL_S.get(name, 1.0))
            assert success
            assert not driving.any()


@pytest.mark.parametrize("name", RECOVERING)
def test_a_supervisor_takes_over_from_an_idle_policy_and_hands_a_repaired_state_back(name):
    with opened(name, pictures=False) as env:
        expert = sim.make_expert(env)
        for seed in range(2):
            expert.reset(seed)
            policy = lambda late: expert.act()[0] if late else still(env)  # noqa: E731
            success, driving = supervise(env, seed, True, policy, STALL_S.get(name, 1.0))
            assert success
            assert not driving[:20].any()
            assert driving.any()
            assert not driving[-1]


@pytest.mark.parametrize("name", RECOVERING)
def test_a_supervisor_finishes_what_an_idle_policy_does_not_begin(name):
    with opened(name, pictures=False) as env:
        success, driving = supervise(env, 1, False, lambda _: still(env), STALL_S.get(name, 1.0))
    assert success
    assert driving[-1]


@pytest.mark.parametrize("name", RECOVERING)
def test_a_missed_grasp_is_repaired_by_one_new_grasp(name):
    with opened(name, pictures=False) as env:
        (gripper,) = env.unwrapped.gripper_dims
        person = Operator(sim.make_expert(env), OperatorConfig(miss_probability=1.0))
        env.reset(seed=0)
        person.reset(0)
        sent, ended = [], False
        while not ended:
            sent.append(person.act()[1])
            if sent[-1][gripper] > 0:  # the first miss has shut
                person.config = OperatorConfig()
            _, _, success, truncated, _ = env.step(sent[-1])
            ended = success or truncated
    assert success
    shut = np.array(sent)[:, gripper] > 0
    grasps = getattr(env.unwrapped, "cubes", 1)
    assert (np.diff(shut.astype(int), prepend=0) == 1).sum() == grasps + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TASKS, *META_WORLD])
def test_the_expert_solves_most_starts(name):
    with opened(name) as env:
        solved = [play(env, seed)[0][-1][3]["is_success"] for seed in range(10)]
    assert sum(solved) >= 9


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TASKS, *META_WORLD])
def test_only_success_is_rewarded_and_it_ends_the_episode(name):
    with opened(name) as env:
        outcomes, _ = play(env, seed=4, noise=0.0)
    rewards, terminated, truncated, infos = zip(*outcomes, strict=True)
    assert rewards[-1] == 1.0
    assert not any(rewards[:-1])
    assert terminated[-1]
    assert not any(terminated[:-1])
    assert not any(truncated)
    assert infos[-1]["is_success"] is True


@pytest.mark.parametrize("name", TASKS)
def test_a_seed_fixes_every_bit_whatever_else_is_drawn(name):
    def episode(env, beside=None):
        observation, _ = env.reset(seed=7)
        rng, seen = np.random.default_rng(0), [observation]
        for _ in range(12):
            np.random.random(3)  # noqa: NPY002 - somebody else draws
            if beside is not None:
                beside.step(beside.action_space.sample())
            action = np.clip(rng.normal(0, 0.3, env.action_space.shape), -1, 1).astype(np.float32)
            seen.append(env.step(action)[0])
        return seen

    with opened(name) as env, opened(name) as other:
        first = episode(env)
        play(env, seed=1, steps=20)
        env.unwrapped.drawing = True
        other.reset(seed=3)
        np.random.seed(99)  # noqa: NPY002
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        env.reset(seed=7)
        assert (np.random.get_state()[1] == before).all(), "a reset moved numpy's global state"  # noqa: NPY002
        again = episode(env, beside=other)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one["agent_pos"], two["agent_pos"])
        for camera, picture in one["pixels"].items():
            np.testing.assert_array_equal(picture, two["pixels"][camera])
    assert (first[0]["agent_pos"] != first[-1]["agent_pos"]).any()


@pytest.mark.parametrize("name", TASKS)
def test_pictures_show_the_scene_and_are_drawn_on_demand(name):
    with opened(name) as env:
        observation, _ = env.reset(seed=0)
        assert env.observation_space.contains(observation)
        for picture in observation["pixels"].values():
            assert picture.shape == (32, 32, 3)
            assert picture.max() > 60
            assert picture.std() > 5
        env.unwrapped.drawing = False
        for _ in range(5):
            later, *_ = env.step(env.action_space.low)
        drawn = env.unwrapped.draw_now()
        assert all((later["pixels"][camera] == observation["pixels"][camera]).all() for camera in drawn)
        assert any((later["pixels"][camera] != drawn[camera]).any() for camera in drawn)


@pytest.mark.parametrize("name", TASKS)
def test_robot_knows_names_units_limit_and_kinds(name):
    with opened(name) as env:
        robot = EnvRobot(env, image_size=32)
        assert len(robot.state_dimensions.names) == robot.reader.state_dim == len(env.unwrapped.state_units)
        assert len(robot.action_dimensions.names) == robot.actions.size == len(env.unwrapped.action_units)
        assert robot.draws_on_demand
        assert episode_limit(env) == TASKS[name][1]
        assert robot.task == env.unwrapped.task_description


def test_a_start_without_success_ends_at_the_limit():
    with opened(f"{PACKAGE}.ogbench_tasks:CubeSingle", pictures=False) as env:
        env.reset(seed=0)
        ends = [env.step(np.zeros(5, np.float32))[2:4] for _ in range(200)]
    assert ends == [(False, False)] * 199 + [(False, True)]


@pytest.mark.parametrize("name", TASKS)
def test_without_pictures_the_state_holds_the_objects(name):
    with opened(name, pictures=False) as env, opened(name) as seeing:
        robot = EnvRobot(env, image_size=32)
        robot.reset(seed=1)
        assert robot.read().images == {}
        assert robot.reader.state_dim > EnvRobot(seeing, image_size=32).reader.state_dim
        names = env.unwrapped.state_names
        objects = [
            index
            for index, name in enumerate(names)
            if name.startswith(("object", "to_object", "cube", "box", "socket", "peg"))
        ]
        places = [index for index in objects if names[index].endswith(("_x", "_y")) and "quat" not in names[index]]
        starts = [env.reset(seed=seed)[0]["agent_pos"] for seed in range(5)]
        assert (np.ptp(starts, axis=0)[places] > 0.001).all()


@pytest.mark.parametrize(("task", "prefix"), [("Lift", "to_object"), ("PickPlaceCan", "object_in_hand")])
def test_a_state_says_in_which_frame_the_object_is(task, prefix):
    """Lift has the way from the hand in the world's frame, the others the place in the hand's own."""
    with opened(f"{PACKAGE}.robosuite_tasks:{task}", pictures=False) as env:
        state = env.reset(seed=0)[0]["agent_pos"]
        names = list(env.unwrapped.state_names)
    at = {
        own: np.array([state[names.index(f"{own}{axis}")] for axis in "xyz"]) for own in ("", "object_", f"{prefix}_")
    }
    way, told = at["object_"] - at[""], at[f"{prefix}_"]
    assert np.linalg.norm(told) == pytest.approx(np.linalg.norm(way), abs=0.002)
    assert np.allclose(told, way, atol=0.002) == (task == "Lift")


@pytest.mark.parametrize("task", ["PickPlaceCan", "NutAssemblySquare"])
def test_a_carried_object_and_the_hand_are_of_the_same_moment(task):
    with opened(f"{PACKAGE}.robosuite_tasks:{task}", pictures=False) as env:
        unwrapped, expert = env.unwrapped, sim.make_expert(env)
        states, ended = [env.reset(seed=1)[0]["agent_pos"]], False
        told = unwrapped.native._get_observations(force_update=True)[
            unwrapped.observed_object[0].replace("_pos", "_to_robot0_eef_pos")
        ]
        expert.reset(1)
        while not ended:
            observation, _, ended, *_ = env.step(expert.act()[1])
            states.append(observation["agent_pos"])
        part = {name: index for index, name in enumerate(unwrapped.state_names)}
    states = np.array(states)
    hand, thing, in_hand = (
        states[:, [part[f"{own}{axis}"] for axis in "xyz"]] for own in ("", "object_", "object_in_hand_")
    )
    turn = Rotation.from_quat(states[:, [part[f"quat_{axis}"] for axis in "xyzw"]])
    assert np.linalg.norm(np.diff(thing, axis=0), axis=1).max() > 0.005, "it is carried"
    np.testing.assert_allclose(in_hand, turn.inv().apply(thing - hand), atol=1e-5)
    np.testing.assert_allclose(in_hand[0], told, atol=1e-5)  # at rest, robosuite's own is of one moment too


@pytest.mark.parametrize("task", range(1, 6))
def test_each_of_ogbenchs_tasks_can_be_chosen(task):
    with opened(f"{PACKAGE}.ogbench_tasks:CubeDouble", pictures=False, task=task) as env:
        assert {env.reset(seed=seed)[1]["task"] for seed in range(3)} == {task}
        outcomes, _ = play(env, seed=0)
    assert outcomes[-1][3]["is_success"]


def test_ogbench_refuses_a_task_that_does_not_exist():
    pytest.importorskip("ogbench")
    with pytest.raises(ConfigError, match="task is 6"), opened(f"{PACKAGE}.ogbench_tasks:CubeSingle", task=6):
        pass


def test_seeding_restores_numpys_global_state():
    np.random.seed(5)  # noqa: NPY002
    expected = np.random.random(4)  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    np.random.random()  # noqa: NPY002
    with numpy_seeded(1):
        np.random.random(100)  # noqa: NPY002
    np.testing.assert_array_equal(np.random.random(3), expected[1:])  # noqa: NPY002


def test_missing_suites_say_how_to_install_them():
    with pytest.raises(UserError, match=r"'no_such_suite'.*examples/benchmarks\[robosuite\]"):
        import_suite("no_such_suite", "robosuite")


@pytest.mark.slow
def test_known_tasks_are_listed_with_what_to_install(monkeypatch):
    monkeypatch.setattr("vla_rl.acting.task_names.find_spec", lambda module: None)
    listed = all_tasks()
    assert "examples/benchmarks[robosuite]" in listed["robosuite/PickPlaceCan-v0"]
    assert "examples/benchmarks[metaworld]" in listed["vla_rl/MetaWorldBoxClose-v0"]
    assert listed["vla_rl/PegInsert-v0"] == ""
    assert {name for suite in SUITES for name in suite.tasks if "*" not in name} <= set(listed)
    assert "vla_rl/MetaWorld*" not in listed


def test_fifty_tasks_that_are_not_installed_are_one_line(monkeypatch):
    ours = tuple(name for name in task_names() if "MetaWorld" not in name)
    monkeypatch.setattr("vla_rl.acting.task_names.names", lambda group: ours)
    monkeypatch.setattr("vla_rl.acting.task_names.task_names", lambda: ours)
    assert "examples/benchmarks[metaworld]" in all_tasks()["vla_rl/MetaWorld*"]
    assert sum("MetaWorld" in name for name in all_tasks()) == 1


def test_a_wrong_name_of_an_installed_suite_is_no_missing_suite(monkeypatch):
    monkeypatch.setattr("vla_rl.acting.task_names.find_spec", lambda module: True)
    with pytest.raises(ConfigError, match="Did you mean 'vla_rl/MetaWorldDoorOpen-v0'"):
        find_task("vla_rl/MetaWorldDorOpen-v0")


def test_a_known_task_that_is_not_installed_names_the_command(monkeypatch):
    monkeypatch.setattr("vla_rl.acting.task_names.names", lambda group: ())
    with pytest.raises(ConfigError, match=r"not installed: uv pip install -e 'examples/benchmarks\[ogbench\]'"):
        find_task("ogbench/CubeSingle-v0")


@pytest.mark.parametrize("name", SCRIPTED)
def test_a_script_never_rolls_a_forearm_over(name):
    with opened(name) as env:
        env.unwrapped.drawing = False
        rolls = [env.unwrapped.action_names.index(f"{side}_forearm_roll") for side in ("left", "right")]
        for seed in range(4):
            expert = sim.make_expert(env)
            env.reset(seed=seed)
            expert.reset(seed)
            for _ in range(env.unwrapped.expert_steps):
                action = expert.act()[0]
                assert np.abs(action[rolls]).max() < np.pi / 2  # beyond, the wrist has flipped
                if env.step(action)[2]:
                    break


def test_gym_alohas_rest_action_is_the_last_target():
    with opened(f"{PACKAGE}.aloha_tasks:TransferCube") as env:
        env.unwrapped.drawing = False
        posture = env.reset(seed=0)[0]["agent_pos"]
        np.testing.assert_array_equal(env.unwrapped.rest_action(posture), posture)
        target = posture + np.float32(0.01)
        env.step(target)
        np.testing.assert_allclose(env.unwrapped.rest_action(posture), target, atol=1e-6)
