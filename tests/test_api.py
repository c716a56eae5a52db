"""The package from Python: every public name, its example, and what only its objects promise."""

import doctest
import functools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

import vla_rl as vla
from benchmarks.docs_public import examples
from vla_rl.cli.main import _told, main
from vla_rl.core.config import load_config
from vla_rl.core.config_files import config_file
from vla_rl.core.errors import UserError
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.data.run_folder import RunFolder
from vla_rl.outcomes.labeling import LabelConfig
from vla_rl.policies.acting import ActingPolicy
from vla_rl.report.outcomes import Outcomes
from vla_rl.training.config import RunConfig
from vla_rl.training.evaluation import evaluate_parts, evaluation_entry
from vla_rl.training.plan import evaluation_seed
from vla_rl.training.practice import create_run

sys.path.append(str(Path(__file__).parents[1] / "examples" / "own_task"))
from own_task import SIZE, DotEnv

GREEN = 200
BRIEF = {
    "budget.steps_per_round": 2,
    "budget.evaluation_episodes": 2,
    "learning.distill_steps": 1,
    "learning.actor.warmup_steps": 1,
    "learning.td.updates": 2,
}


class Dot(DotEnv):
    """The task of examples/own_task, whose goal is the green square in the picture."""

    max_episode_steps = 40


class BlindDot(Dot):
    """The same task without a picture: its state holds the goal."""

    metadata: ClassVar[dict[str, Any]] = {"render_fps": 10}

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (4,), np.float32)

    def _observe(self) -> Any:
        return np.concatenate([self.place, self.goal])


class Seeing:
    """A policy of one's own: it goes to the middle of what is green, or nowhere."""

    def __init__(self, looks: bool) -> None:
        self.looks = looks

    def reset(self, seed: int) -> None: ...

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        del committed
        rows, columns = np.nonzero(observation.images["picture"][..., 1] == GREEN)
        goal = np.array([columns.mean(), rows.mean()], np.float32) / (SIZE - 1)
        action = goal if self.looks else observation.state
        return ActionChunk(np.tile(action, (8, 1)).astype(np.float32), observation.tick, 0, 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A folder with a practiced run of the task ``dot``, and the objects that led to it."""
    folder = tmp_path_factory.mktemp("api")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        env = vla.make_env(Dot)
        demos = vla.collect_demonstrations(env, 3, expert=lambda dot: dot.goal, out="datasets/dot")
        policy = vla.FlowVLA.from_data(demos)
        logged = vla.train(policy, demos, steps=3, settings={"learning.actor.batch_size": 8})
        practice = vla.Practice(policy, env, episodes_per_round=3, demonstrations=demos, out="runs/dot", settings=BRIEF)
        results = list(practice.rounds(1))
        yield SimpleNamespace(vla=vla, env=env, demos=demos, policy=policy, logged=logged, results=results, Dot=Dot)


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, vla_rl; print(*sorted({'torch', 'mujoco', 'gymnasium', 'numpy'} & {*sys.modules}))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
    assert len(vla.__all__) <= 15


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "export" else name for name in vla.__all__]
)
def test_the_example_of_every_public_name_runs(place: SimpleNamespace, name: str) -> None:
    public = getattr(vla, name)
    names = {**vars(place), "Path": Path, **{public: getattr(vla, public) for public in vla.__all__}}
    texts = examples(public)
    assert texts, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for text in texts:
        runner.run(doctest.DocTestParser().get_doctest(text, dict(names), name, None, 0))
    assert runner.summarize(verbose=False).failed == 0


def test_an_object_that_acts_is_evaluated_on_any_seeds(place: SimpleNamespace) -> None:
    good = vla.evaluate(Seeing(looks=True), place.env, seeds=[3, 4, 5], render=True)
    idle = vla.evaluate(Seeing(looks=False), place.env, seeds=[3, 4, 5])
    assert (good.successes, idle.successes) == (3, 0)
    assert (good.seeds, idle.failed) == ((3, 4, 5), (3, 4, 5))
    assert max(good.lengths) < min(idle.lengths) == Dot.max_episode_steps
    film = good.film(4)
    (images,) = film.images.values()
    assert images.shape == (good.lengths[1], SIZE, SIZE, 3)
    assert images[..., 1].max() == GREEN
    assert "data:video/mp4;base64," in film._repr_html_()
    film.save("film.webp")
    assert Path("film.webp").stat().st_size > 100


class Declared(Seeing):
    """Says of which robot it is, and how long its chunks are."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(looks=True)
        self.horizon, self.spec = 8, replace(vla.make_env(Dot).spec, **spec)


def test_an_object_of_another_robot_is_refused_before_it_acts(place: SimpleNamespace) -> None:
    assert vla.evaluate(Declared(env_id="elsewhere"), place.env, seeds=[3]).successes == 1
    with pytest.raises(UserError, match=r"the policy has the control_hz 50, the task has 10"):
        vla.evaluate(Declared(control_hz=50), place.env, 1)
    with pytest.raises(UserError, match=r"the policy has the delta_dims \(0, 1\), the task has \(\)"):
        vla.evaluate(Declared(delta_dims=(0, 1)), place.env, 1)


def test_a_delay_after_which_nothing_of_a_chunk_is_left_is_refused(place: SimpleNamespace) -> None:
    for policy, actions in (Declared(), 8), (place.policy, 16):
        with pytest.raises(UserError, match=f"latency is {actions} ticks, and the policy plans {actions} actions"):
            vla.evaluate(policy, place.env, 1, strategy="naive", latency=actions)
        assert vla.evaluate(policy, place.env, 1, strategy="sync", latency=actions)


@pytest.mark.parametrize("policy", [Seeing, len, 42, None])
def test_what_is_no_policy_is_refused(place: SimpleNamespace, policy: Any) -> None:
    with pytest.raises(UserError, match="is no policy; expected its folder, its name, or an object"):
        vla.evaluate(policy, place.env, 1)


@pytest.mark.parametrize("action", [[0.5, np.nan], [0.5], None])
def test_an_expert_that_returns_no_action_is_refused(place: SimpleNamespace, action: Any) -> None:
    with pytest.raises(UserError, match=r"the expert returned .*; expected 2 finite numbers"):
        vla.collect_demonstrations(place.env, 1, expert=lambda _: action)


@pytest.mark.parametrize("seed", [-1, 1000])
def test_demonstrations_never_begin_at_held_out_starts(place: SimpleNamespace, seed: int) -> None:
    with pytest.raises(UserError, match=f"seed is {seed}; it must be from 0 to 999"):
        vla.collect_demonstrations(place.env, 1, expert=lambda dot: dot.goal, seed=seed)


class Broken(Seeing):
    """Its numbers are not finite from a step on, in the episodes of some seeds."""

    def __init__(self, seeds: tuple[int, ...], after: int = 0) -> None:
        super().__init__(looks=True)
        self.seeds, self.after = seeds, after

    def reset(self, seed: int) -> None:
        self.is_broken = seed in self.seeds

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        chunk = super().infer(observation)
        if self.is_broken:
            chunk.actions[max(self.after - observation.tick, 0) :] = np.inf
        return chunk


def test_episodes_whose_actions_are_not_finite_are_counted(place: SimpleNamespace) -> None:
    found = vla.evaluate(Broken((4,)), place.env, seeds=[3, 4, 5])
    assert (found.success, found.not_finite) == ((True, False, True), (4,))
    assert str(found).endswith(", actions that are not finite in 1 episode")
    some = vla.evaluate(Broken((3, 4), after=2), place.env, seeds=[3, 4])
    assert some.not_finite == (3, 4)
    assert "not finite in 2 episodes" in some._repr_html_()
    assert not vla.evaluate(Seeing(looks=False), place.env, seeds=[3]).not_finite


def test_the_evaluations_of_a_run_count_actions_that_are_not_finite(place: SimpleNamespace) -> None:
    store = vla.evaluate(Broken((4,)), place.env, seeds=[3, 4]).store
    assert store is not None
    episodes = {header.seed: header for header in map(store.read_header, store.ids())}
    entry = evaluation_entry(store, [*episodes.values()])
    assert entry["not_finite"] == [f"{episodes[4].env_id} 4"]
    shutil.copytree(place.results[0].policy.parents[1], "broken")
    with RunFolder.open(Path("broken"), RunConfig)[0] as folder:
        folder.write_summary({"evaluations": [{"round": 0, **entry}]})
    found = vla.open_run("broken").results[0].evaluation
    assert str(found).endswith("1/2 = 50 % [9, 91], actions that are not finite in 1 episode")


def test_a_policy_without_a_finite_action_is_no_score_of_0(place: SimpleNamespace) -> None:
    broken = Broken((3, 4))
    with pytest.raises(
        UserError, match=r"every action of the policy is NaN or infinite, in 2 of 2 episodes\..* Correct its"
    ):
        vla.evaluate(broken, place.env, seeds=[3, 4])


class Diverged(Declared):
    """A class of one's own whose numbers have diverged."""

    version = 0

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        return ActionChunk(np.full((8, 2), np.nan, np.float32), observation.tick, 0, 0)


class OtherDot(Dot):
    """A second name for one task."""


def test_an_object_plays_every_task_as_a_folder_does(place: SimpleNamespace) -> None:
    found = vla.evaluate(Seeing(looks=True), place.env, 4, settings={"task.also": [f"{__name__}:OtherDot"]})
    assert found.tasks == (f"{__name__}:Dot", f"{__name__}:OtherDot") * 2
    assert found.seeds == tuple(evaluation_seed(index) for index in (0, 0, 1, 1))


@pytest.mark.slow
def test_a_comparison_stops_when_it_is_decided(place: SimpleNamespace) -> None:
    good, idle = Seeing(looks=True), Seeing(looks=False)
    found = vla.compare(idle, good, place.env, 200)
    assert (found.better, found.only, len(found.a.seeds)) == ("b", (0, 15), 16)  # one start is the goal
    assert found.confidence > 0.99
    assert found.a.seeds == found.b.seeds == vla.evaluate(good, place.env, 16).seeds
    same = vla.compare("runs/dot", "runs/dot", place.env, 20, out="compared")
    assert (same.better, same.only, same.confidence, len(same.a.seeds)) == (None, (0, 0), 0, 20)
    assert len(vla.EpisodeStore(Path("compared"))) == 20  # the same policy: its episodes are there already
    with pytest.raises(UserError, match="error between 0 and 1"):
        vla.compare(good, idle, place.env, error=1)


def test_the_command_compares_policies_of_two_runs(place: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    first, last = (f"runs/dot/policies/version_000{number}" for number in (0, 1))
    command = ["eval", "runs/dot", "--version", "1", "--against", first, "--episodes", "3", "execution.execute_ticks=4"]
    assert main(command) == 0
    shown = capsys.readouterr().out.strip()
    expected = vla.compare(last, first, place.env, 3, settings={"execution.execute_ticks": 4})
    assert shown == str(expected)
    assert "undecided" in shown


def test_a_practiced_policy_is_taken_apart(place: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    run, report = vla.open_run("runs/dot"), Path("runs/dot/report.html")
    assert "vla-rl eval runs/dot --parts" in report.read_text()
    assert main(["eval", "runs/dot", "--version", "1", "--parts"]) == 0
    last, plain, with_residual = capsys.readouterr().out.splitlines()
    assert (last[:8], plain[:13], with_residual[:18]) == ("round 1:", "plain policy:", "policy + residual:")
    alone = vla.evaluate(run.policy(1).model, place.env, seeds=run.held_out_seeds)  # type: ignore[attr-defined]
    entries = evaluate_parts(run.path, 1)
    assert [*entries["plain policy"]["outcomes"].values()] == [*alone.success]
    shown = [entry for entry in RunFolder(run.path).read_summary()["evaluations"] if entry["round"] == 1]
    assert [entry.get("control") for entry in shown] == [None, "plain policy", "policy + residual"]
    assert main(["report", "runs/dot"]) == 0
    page = report.read_text()
    assert "policy + residual, round 1" in page
    assert "--parts" not in page
    assert run.results == vla.open_run("runs/dot").results  # the parts are no rounds
    assert evaluate_parts(run.path, 0) == {}


def test_latency_costs_what_it_should(place: SimpleNamespace) -> None:
    now, late = (vla.evaluate(Seeing(looks=True), place.env, 4, latency=ticks) for ticks in (0, 6))
    assert all(after >= before for before, after in zip(now.lengths, late.lengths, strict=True))
    assert sum(late.lengths) > sum(now.lengths)


def test_held_out_seeds_are_the_same_in_every_call(place: SimpleNamespace) -> None:
    first = vla.evaluate(place.policy, place.env, 3, out="evaluated")
    again = vla.evaluate(place.policy, place.env, 3, out="evaluated")
    assert first == again
    assert first.seeds == tuple(vla.open_run("runs/dot").held_out_seeds[:2]) + first.seeds[2:]
    assert len(vla.EpisodeStore(Path("evaluated"))) == 3  # the second call played none


def test_training_in_place_changes_the_weights_and_says_how_it_went(place: SimpleNamespace) -> None:
    assert place.logged["step"] == 3
    assert np.isfinite(place.logged["actor_loss"])
    fresh = vla.FlowVLA.from_data(place.demos)
    assert any(not value.equal(fresh.state_dict()[name]) for name, value in place.policy.state_dict().items())


@pytest.mark.parametrize("algorithm", [pytest.param("imagined_edit", marks=pytest.mark.slow), "habc"])
def test_a_policy_without_cameras_is_demonstrated_trained_practiced_evaluated_and_deployed(
    tmp_path: Path, algorithm: str
) -> None:
    env = vla.make_env(BlindDot)
    demos = vla.collect_demonstrations(env, 3, expert=lambda dot: dot.goal)
    assert (env.spec.cameras, dict(demos.read("demo-00000").images)) == ((), {})
    policy = vla.FlowVLA.from_data(demos)
    assert vla.train(policy, demos, steps=2, settings={"learning.actor.batch_size": 8})["step"] == 2
    settings = {name: value for name, value in BRIEF.items() if "budget" in name}
    if algorithm == "imagined_edit":
        settings |= {"learning.distill_steps": 1, "learning.dynamics.steps": 2, "learning.value.steps": 2}
        settings |= {"learning.actor.warmup_steps": 1, "learning.branches.updates": 1}
    practice = vla.Practice(
        policy,
        env,
        algorithm=algorithm,
        episodes_per_round=3,
        demonstrations=demos,
        out=tmp_path / "run",
        settings=settings,
    )
    (result,) = practice.rounds(1)
    assert len(result.evaluation.success) == 2
    outcomes = vla.evaluate(result.policy, env, 2)
    assert outcomes.success == result.evaluation.success
    if algorithm == "imagined_edit":
        deployed = vla.export(result.policy, tmp_path / "deployment")
        assert vla.evaluate(deployed, env, 2) == outcomes
        chunks = [vla.load_policy(folder).infer(env.reset(7)).actions for folder in (result.policy, deployed)]
        np.testing.assert_allclose(*chunks, atol=1e-5)
        assert vla.rollout(deployed, "sim", settings={"task.env": env.task.env}) in ([True], [False])
        assert main(["corrector", str(tmp_path / "run"), "steps=2"]) == 0
        assert len(vla.evaluate(tmp_path / "run", env, 1, strategy="a2c2", latency=2).success) == 1


@pytest.mark.slow
def test_practice_goes_on_where_its_folder_stands(place: SimpleNamespace) -> None:
    again = vla.Practice(
        place.policy, place.env, episodes_per_round=3, demonstrations=place.demos, out="runs/dot", settings=BRIEF
    )
    first, second = again.rounds(2)
    assert first == place.results[0]
    assert (second.round, second.policy.name) == (2, "version_0002")
    run = vla.open_run("runs/dot")
    assert [*run.policies] == [0, 1, 2]
    assert len(run.episodes) == 3 + 2 * 3
    with pytest.raises(UserError, match=r"budget.episodes_per_round=3, asked for is 4"):
        vla.Practice(
            place.policy, place.env, episodes_per_round=4, demonstrations=place.demos, out="runs/dot", settings=BRIEF
        )


@pytest.mark.parametrize(
    ("episodes", "given", "collected", "compared"),
    [
        (63, {}, 63, 0),
        (64, {}, 32, 16),
        (64, {"algorithm": "chunk_critic", "settings": {"budget.compare_episodes": 3}}, 58, 3),
        (64, {"settings": {"budget.compare_episodes": 0}}, 64, 0),
        (64, {"settings": {"budget.check_episodes": 8}}, 64, 0),
        (64, {"settings": {"budget.episodes_per_round": 80}}, 48, 16),
        (64, {"algorithm": "filtered_bc"}, 64, 0),
        (64, {"algorithm": "imagined_edit"}, 64, 0),
        (64, {"outcomes": LabelConfig()}, 64, 0),
    ],
)
def test_a_comparison_is_part_of_the_episodes_of_a_long_round(
    place: SimpleNamespace, tmp_path: Path, episodes: int, given: dict[str, Any], collected: int, compared: int
) -> None:
    practice = vla.Practice(
        place.policy, place.env, episodes_per_round=episodes, demonstrations=place.demos, out=tmp_path / "run", **given
    )
    budget = practice.config.budget
    assert (budget.collected_per_round, budget.compare_episodes) == (collected, compared)


def test_a_folder_that_was_begun_without_a_comparison_goes_on_without_one(
    place: SimpleNamespace, tmp_path: Path
) -> None:
    given = {"episodes_per_round": 64, "demonstrations": place.demos, "out": tmp_path / "run"}
    vla.Practice(place.policy, place.env, **given, settings={"budget.compare_episodes": 0})
    assert vla.Practice(place.policy, place.env, **given).config.budget.compare_episodes == 0
    with pytest.raises(UserError, match="compare_episodes"):
        vla.Practice(place.policy, place.env, **given, settings={"budget.compare_episodes": 4})


def test_practice_refuses_demonstrations_of_another_robot(place: SimpleNamespace) -> None:
    turned = vla.make_env(Dot, declare={"state_names": ["y", "x"], "action_names": ["y", "x"]})
    demos = vla.collect_demonstrations(turned, 1, expert=lambda dot: dot.goal)
    named = vla.make_env(Dot, declare={"state_names": ["x", "y"], "action_names": ["x", "y"]})
    with pytest.raises(UserError, match=r"the episodes have the state dimensions y, x, the robot has x, y"):
        vla.Practice(place.policy, named, demonstrations=demos, out="runs/turned")


def test_seeds_of_an_array_are_the_seeds_of_a_list(place: SimpleNamespace) -> None:
    of_list, of_array = (vla.evaluate(place.policy, place.env, seeds=seeds) for seeds in ([3, 4], np.arange(3, 5)))
    assert (of_list.seeds, of_list.success, of_list.lengths) == (of_array.seeds, of_array.success, of_array.lengths)
    with pytest.raises(UserError, match=r"seeds are integers from 0 on, found is 1\.5"):
        vla.evaluate(place.policy, place.env, seeds=[1.5])  # type: ignore[list-item]


def test_a_run_that_was_killed_as_it_began_takes_its_policy_anew(
    place: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"env": place.env, "demonstrations": place.demos, "algorithm": "filtered_bc"}
    start = functools.partial(vla.Practice, **given, out="runs/cut")
    first = start(place.policy).folder
    shutil.rmtree(first.policy(0))
    (first.episodes / "episodes" / "demo-00002.zarr.zip").unlink()
    again = start(place.policy)
    assert again.folder.policy_exists(0)
    assert vla.open_run("runs/cut").episodes.ids() == ["demo-00000", "demo-00001", "demo-00002"]
    assert "not the one given" not in caplog.text
    start(vla.FlowVLA.from_data(place.demos, seed=5))
    assert "runs/cut goes on with its own policy, which is not the one given" in caplog.text


def test_a_loaded_policy_learns_in_place_and_drops_its_critic(place: SimpleNamespace) -> None:
    policy = vla.load_policy("runs/dot", 1)
    assert isinstance(policy, ActingPolicy)
    assert policy.selector is not None
    vla.train(policy, place.demos, steps=1, settings={"learning.actor.batch_size": 4})
    assert policy.selector is None
    with pytest.raises(UserError, match="load_policy"):
        vla.train("runs/dot", place.demos)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs episodes"):
        vla.train(place.policy)


def test_what_does_not_fit_is_refused_before_anything_is_made(place: SimpleNamespace) -> None:
    with pytest.raises(UserError, match="class or function that makes the environment"):
        vla.make_env(Dot())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="class or function that makes the environment"):
        vla.evaluate(place.policy, Dot())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="top of a module"):
        vla.make_env(lambda: Dot())
    with pytest.raises(UserError, match="failed 20 times"):
        vla.collect_demonstrations(place.env, 1, expert=lambda dot: (dot.goal < 0.5).astype(np.float32))
    with pytest.raises(UserError, match="cannot be exported"):
        vla.export(Seeing(looks=True), "deployments/seeing")
    with pytest.raises(UserError, match="cannot be trained"):
        vla.Practice(Seeing(looks=True), place.env, out="runs/seeing")
    assert not Path("runs/seeing").exists()
    few = {"budget.steps_per_round": 1, "learning.distill_steps": 1}
    with pytest.raises(UserError, match=r"budget\.steps_per_round"):
        vla.Practice(place.policy, place.env, demonstrations=place.demos, out="runs/few", settings=few)
    assert not Path("runs/few").exists()
    with pytest.raises(AttributeError, match="make_env"):
        vla.make_environment  # noqa: B018


@pytest.mark.parametrize(
    ("package", "said"),
    [("onnx_ir", r"export needs the package 'onnx_ir', .* install vla-rl\[trt\]"), ("theirs", "No module")],
)
def test_an_export_names_the_extra_that_it_lacks(
    place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, package: str, said: str
) -> None:
    def lacks(*_: object) -> None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr("deploy_trt.export.export_policy", lacks)
    with pytest.raises(UserError if package == "onnx_ir" else ModuleNotFoundError, match=said):
        vla.export(place.policy, "deployments/dot")
    code, line = _told(ModuleNotFoundError(name=package), "export")
    assert (code, "install vla-rl[trt]" in line) == ((2, True) if package == "onnx_ir" else (3, False))


def test_a_class_is_taken_wherever_an_environment_is(place: SimpleNamespace) -> None:
    assert len(vla.evaluate(place.policy, Dot, episodes=1).seeds) == 1


class Undeclared(Dot):
    """The same task, which does not declare what its actions are."""

    action_kind = ()


def test_an_assumed_kind_of_action_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    vla.make_env(Undeclared).close()
    assert "actions are taken for targets" in caplog.text
    caplog.clear()
    env = vla.make_env(Undeclared, declare={"action_kind": "delta"})
    assert env.spec.delta_dims == (0, 1)
    env.close()
    assert "targets" not in caplog.text


class Silent(Dot):
    """Task of `Dot` that declares no rate, no time limit and no sentence."""

    metadata: ClassVar[dict[str, Any]] = {}
    max_episode_steps: Any = None
    task_description = ""


def test_an_assumed_rate_limit_and_sentence_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = vla.make_env(Silent, declare={"action_kind": "absolute"})
    assert env.spec.control_hz == 20
    assert [message.partition("Silent: ")[2] for message in caplog.messages] == [
        "20 steps a second are assumed: set task.declare.control_hz, or metadata['render_fps'] of the environment",
        "the task sentence is assumed to be 'Silent': declare sentence, or task_description",
        "the task has no time limit; an episode is cut after 1000 steps: declare max_episode_steps",
    ]
    told = caplog.messages[:3]
    demos = vla.collect_demonstrations(env, 1, expert=lambda dot: dot.goal, out=tmp_path / "demos")
    env.close()
    caplog.clear()
    changes = [f"task.env={__name__}:Silent", "task.declare.action_kind=[absolute]", "takeover={enabled: false}"]
    changes += ["task.declare.max_episode_steps=40", f"task.demonstrations={demos.path}"]
    create_run(tmp_path / "run", load_config(RunConfig, config_file("tiny"), changes))
    assert [message for message in caplog.messages if "Silent: " in message] == told[:2], "vla-rl train says the same"
    caplog.clear()
    declare = {"action_kind": "absolute", "control_hz": 10, "sentence": "go there", "max_episode_steps": 40}
    env = vla.make_env(Silent, declare=declare)
    assert env.spec.control_hz == 10
    env.close()
    assert not caplog.messages


def test_a_policy_takes_its_scale_from_episodes_of_its_robot_alone(place: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the episodes have the state_dim 2, the robot has 4; give episodes"):
        vla.FlowVLA.from_data(place.demos, robot=vla.make_env(BlindDot))
    turned = vla.make_env(Dot, declare={"state_names": ["y", "x"], "action_names": ["y", "x"]})
    named = vla.make_env(Dot, declare={"state_names": ["x", "y"], "action_names": ["x", "y"]})
    demos = vla.collect_demonstrations(named, 1, expert=lambda dot: dot.goal)
    with pytest.raises(UserError, match=r"the episodes have the state dimensions x, y, the robot has y, x"):
        vla.FlowVLA.from_data(demos, robot=turned)
    with pytest.raises(UserError, match="there is no episode"):
        vla.FlowVLA.from_data(vla.EpisodeStore(tmp_path / "empty"))


class FloatPicture(BlindDot):
    """A picture of floats, which is no camera."""

    def __init__(self) -> None:
        super().__init__()
        picture = gymnasium.spaces.Box(0.0, 1.0, (16, 16, 3), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"front": picture, "position": self.observation_space})


def test_a_picture_that_no_policy_sees_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    env = vla.make_env(FloatPicture, declare={"action_kind": "absolute", "sentence": "go there"})
    assert env.spec.cameras == ()
    env.close()
    (note,) = caplog.messages
    assert "left out of the observation: 'front'" in note
    assert note.endswith("cameras are uint8")


def test_outcomes_show_their_interval_in_a_notebook() -> None:
    outcomes = Outcomes(tuple(range(100)), (True,) * 57 + (False,) * 43)
    assert str(outcomes) == "57/100 = 57 % [47, 66]"
    assert "57/100 = 57 % [47, 66]" in outcomes._repr_html_()


def test_a_run_shows_its_rounds_in_a_notebook(place: SimpleNamespace) -> None:
    shown = vla.open_run("runs/dot")._repr_html_()
    assert all(result._repr_html_() in shown for result in place.results)
    assert "round 1" in shown
