"""A task is found by its name, and made with the arguments that it takes."""

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from PIL import Image

import vla_rl as vla
from robot_io.env_interface import EnvDeclaration
from vla_rl.acting import task_play, task_rules
from vla_rl.acting.task import ASSUMED_EPISODE_STEPS, episode_limit, make_env, open_robot
from vla_rl.acting.task_check import check_task
from vla_rl.cli.main import main
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.training.config import RunConfig, TaskConfig
from vla_rl.training.evaluation import evaluation_jobs
from vla_rl.training.simulator import SimulatorWorker

PACKAGE = Path(__file__).resolve().parents[1] / "fakes" / "own_package"


@pytest.fixture(autouse=True)
def _his_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PACKAGE)


class Still(gymnasium.Env[dict[str, Any], Any]):
    """Takes a difficulty and nothing else of ours; hands the rest on to its base, which takes a color."""

    def __init__(self, difficulty: float = 0.1, color: int = 7) -> None:
        self.difficulty, self.color = difficulty, color
        self.action_space = Box(-1, 1, (2,), np.float32)
        self.observation_space = Dict(eye=Box(0, 255, (16, 16, 3), np.uint8), joints=Box(-1, 1, (2,), np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> dict[str, Any]:
        return {"eye": np.full((16, 16, 3), self.color, np.uint8), "joints": np.zeros(2, np.float32)}


class Handing(Still):
    def __init__(self, size: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = size


class Needing(Still):
    def __init__(self, goal: str) -> None:
        super().__init__()


class Endless(Still):
    """Says how long an episode is and how its actions are meant, and does not keep to the first."""

    max_episode_steps = 5
    action_kind = "delta"


class Mute(Still):
    """Ends, and does not say how it went."""

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        return self._observe(), 0.0, True, False, {}


class Named(Still):
    """Is cut, with its success under a name of its own, at the last step or at one before."""

    infos: tuple[dict[str, Any], ...] = ({"metrics": {"solved": True}, "TimeLimit.truncated": True},)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.left = list(self.infos)
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        info = self.left.pop(0)
        return self._observe(), 0.0, False, not self.left, info


class Passing(Named):
    infos = ({"success": True}, {"success": False})


class Failing(Named):
    infos = ({"success": False}, {"success": False})


class Resting:
    """Plans rest."""

    version = 0

    def reset(self, seed: int) -> None:
        del seed

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        del committed
        return ActionChunk(np.zeros((4, 2), np.float32), observation.tick, 0, 0)


class Drifting(Still):
    """Neither obeys its seed nor keeps still, and leaves its space."""

    calls = 0

    def _observe(self) -> dict[str, Any]:
        Drifting.calls += 1
        return super()._observe() | {"joints": np.full(2, 0.01 * Drifting.calls, np.float32)}


class Broken(Still):
    def _observe(self) -> dict[str, Any]:
        return super()._observe() | {"joints": np.full(2, np.nan, np.float32)}


class Unmade(Still):
    def __init__(self) -> None:
        raise ValueError("no license was found")


class Unreachable(Still):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        raise RuntimeError("the simulator is\nnot reachable")


class Unstable(Still):
    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        return {}["physics"]


def several(n: int = 1) -> gymnasium.vector.VectorEnv:
    return gymnasium.vector.SyncVectorEnv([Still] * n)


def anything(**kwargs: Any) -> Still:
    return Still(**kwargs)


HERE = __name__


@pytest.fixture
def registered() -> Iterator[str]:
    gymnasium.register("HardStill-v3", entry_point=Still, kwargs={"difficulty": 0.9}, max_episode_steps=12)
    yield "HardStill-v3"
    del gymnasium.registry["HardStill-v3"]


def task(name: str, **settings: Any) -> TaskConfig:
    return TaskConfig(env=name, **settings)


def test_only_what_the_constructor_takes_is_given(registered: str) -> None:
    assert make_env(task(f"{HERE}:Still", difficulty=0.4)).unwrapped.difficulty == 0.4
    assert make_env(task(f"{HERE}:Still", kwargs={"difficulty": 0.2})).unwrapped.difficulty == 0.2
    assert make_env(task(registered, difficulty=0.4)).unwrapped.difficulty == 0.9, "registered with its own"
    assert make_env(task(f"{HERE}:anything", difficulty=0.4)).unwrapped.difficulty == 0.1, "nobody knows what it takes"
    assert make_env(task(f"{HERE}:anything", kwargs={"color": 9})).unwrapped.color == 9
    handing = make_env(task(f"{HERE}:Handing", difficulty=0.4, kwargs={"color": 9, "size": 3})).unwrapped
    assert (handing.difficulty, handing.color, handing.size) == (0.4, 9, 3)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"env": "Handing", "kwargs": {"colors": 9}}, "takes no argument 'colors' .*Did you mean 'color'"),
        ({"env": "Needing"}, r"needs the argument 'goal': give it as task\.kwargs\.goal"),
        ({"env": "several", "kwargs": {"n": 2}}, r"makes 2 environments at once .*workers=N"),
        ({"env": "Stil"}, "registers no 'Stil' .*Did you mean 'Still'"),
        ({"env": "HERE"}, "is a str; expected a class or a function"),
    ],
)
def test_what_cannot_be_made_is_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        make_env(TaskConfig(**{**settings, "env": f"{HERE}:{settings['env']}"}))


@pytest.mark.parametrize("name", ["vla_rl/PegInsrt-v0", "nowhere:Task", "nowhere"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no task|cannot be imported"):
        make_env(task(name))


def test_a_vector_of_one_is_its_environment() -> None:
    assert isinstance(make_env(task(f"{HERE}:several")).unwrapped, Still)


def test_every_episode_has_a_limit(registered: str) -> None:
    assert episode_limit(make_env(task(f"{HERE}:Still"))) == ASSUMED_EPISODE_STEPS
    assert episode_limit(make_env(task(registered))) == 12
    assert episode_limit(make_env(task("vla_rl/PegInsert-v0"))) == 120
    robot = open_robot(task(registered, declare=EnvDeclaration(max_episode_steps=3)))
    robot.reset(0)
    for _ in range(3):
        assert not robot.truncated
        robot.write(robot.rest_command())
    assert robot.truncated


@pytest.mark.parametrize("attribute", ["max_episode_steps", "_max_episode_steps"])
def test_a_limit_of_none_is_no_limit(attribute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Still, attribute, None, raising=False)
    assert episode_limit(make_env(task(f"{HERE}:Still"))) == ASSUMED_EPISODE_STEPS
    assert episode_limit(make_env(task(f"{HERE}:Still", declare=EnvDeclaration(max_episode_steps=3)))) == 3


def test_a_check_finds_what_would_hurt() -> None:
    """Further inputs: benchmarks/data_traps/tasks.py."""
    drifting = check_task(task(f"{HERE}:Drifting"))
    assert [warning.split(" (")[0].split(":")[0] for warning in drifting.warnings] == [
        "not within its own space",
        "the same seed and actions give another episode",
        "at rest the state moves",
    ]
    assert [problem.split(" in ")[0] for problem in drifting.problems] == ["camera 'eye' shows one color"]
    assert check_task(task(f"{HERE}:Broken")).problems == ["numbers [0, 1] of the state are not finite at step 0"]
    still = check_task(task(f"{HERE}:Still"))
    assert [re.split(" give | in all of ", problem)[0] for problem in still.problems] == [
        "all of 8 seeds",
        "random actions and rest",
        "camera 'eye' shows one color",
    ]
    assert any("20 steps a second are assumed" in sentence for sentence in still.assumed)
    assert any("the task has no time limit" in sentence for sentence in still.assumed)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["task.declare.success=coverage=>1"], "task.declare.success is 'coverage=>1'"),
        (["task.image_size=0"], "task.image_size is 0"),
        (["task.renderer=elg"], "Did you mean 'egl'"),
        (["task.difficulty=7"], "task.difficulty is 7"),
        (["--seconds", "0"], "--seconds is 0"),
        (["--picture", "{folder}"], "is a folder"),
    ],
)
def test_a_bad_setting_is_refused_before_the_task_is_made(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["task", "check", f"{HERE}:Unmade", *(each.format(folder=tmp_path) for each in arguments)]
    assert main(command) == 2
    assert complaint in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


class Slow(Still):
    """Draws slowly."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode
        self.observation_space = Box(-1, 1, (2,), np.float32)  # type: ignore[assignment]

    def _observe(self) -> Any:
        return np.zeros(2, np.float32)

    def render(self) -> Any:
        time.sleep(0.02)
        return np.zeros((16, 16, 3), np.uint8)


def test_a_slow_renderer_draws_few_pictures_and_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_rules, "_SLOW_S", 0.01)
    with caplog.at_level(logging.INFO):
        report = check_task(task(f"{HERE}:Slow"))
    assert any("drawing is slow" in warning and "MUJOCO_GL=egl" in warning for warning in report.warnings)
    assert any(re.match(r"speed .* ms for the pictures", line) for line in report.found)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == f"opening {HERE}:Slow"
    assert re.match(
        r"playing at random and at rest, 100 steps at a time: about \d+ s \(.* 0.02\d* s to draw\)", said[1]
    )


class Crawling(Still):
    """Steps slowly."""

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        time.sleep(0.002)
        return super().step(action)


def test_a_slow_task_is_played_for_a_minute_at_most(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_play, "_MOST_S", 0.1)
    with caplog.at_level(logging.INFO):
        check_task(task(f"{HERE}:Crawling"))
        check_task(task(f"{HERE}:Crawling"), seconds=1.0)
    steps = [int(record.args[0]) for record in caplog.records if "steps at a time" in record.msg]  # type: ignore[index]
    assert steps[0] in range(10, 14)
    assert steps[1] == 20


@pytest.mark.parametrize(
    ("name", "raised"),
    [
        ("Unmade", "ValueError: no license was found"),
        ("Unreachable", "RuntimeError: the simulator is not reachable"),
        ("Unstable", "KeyError: 'physics'"),
    ],
)
def test_what_an_environment_raises_is_its_problem(name: str, raised: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task", "check", f"{HERE}:{name}"]) == 1
    said = capsys.readouterr().out
    assert "problem: " in said
    assert f" raised {raised}, at {__file__}:" in said


def test_the_verb_says_what_it_found_and_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "seen.png"
    command = ["task", "check", "point_world:PointReach-v0", "task.image_size=24", "--picture", str(picture)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "overhead (views.overhead), wrist (views.wrist), 24x24" in said
    assert "task.declare" in said
    assert "from left to right: overhead, wrist" in said
    with Image.open(picture) as drawn:
        assert drawn.size == (2 * 240, 240)
    assert main(["task", "check", "CartPole-v1"]) == 1
    assert "problem: " in capsys.readouterr().out
    assert main(["task", "list"]) == 0
    assert "vla_rl/PegInsert-v0" in capsys.readouterr().out.split()


def test_a_limit_that_an_environment_only_states_is_kept() -> None:
    robot = open_robot(task(f"{HERE}:Endless"))
    assert robot.action_kind == ("delta", "delta")
    robot.reset(0)
    for _ in range(5):
        assert not robot.truncated
        robot.write(robot.rest_command())
    assert robot.truncated


def test_an_environment_that_never_says_how_it_went_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = {
        "Mute": r"neither success nor failure.*success \(",
        "Endless": "",
        "Named": r"neither success nor failure.*task\.declare\.success=KEY, its info has metrics\.solved \(",
        "Passing": "reported a success and gone on to a failure",
        "Failing": "",
    }
    for name, warning in expected.items():
        caplog.clear()
        config = RunConfig(task=task(f"{HERE}:{name}"), workers=0)
        worker = SimulatorWorker(config)
        monkeypatch.setattr(worker, "_load", lambda folder, low: Resting())
        jobs = evaluation_jobs(config, tmp_path, tmp_path / name, 3)
        assert len(list(worker.run(jobs))) == 3
        worker.close()
        said = [record.message for record in caplog.records if f":{name} has " in record.message]
        assert len(said) == bool(warning)
        assert not warning or re.search(warning, said[0])


def test_an_expert_whose_success_is_not_counted_hears_where_it_may_be() -> None:
    env = vla.make_env(f"{HERE}:Named", image_size=16)
    with pytest.raises(UserError, match=r"failed 20 times in a row\. The task has .*its info has metrics\.solved"):
        vla.collect_demonstrations(env, 1, expert=lambda _: np.zeros(2, np.float32))
    counted = vla.make_env(f"{HERE}:Named", image_size=16, declare={"success": "metrics.solved"})
    assert len(vla.collect_demonstrations(counted, 1, expert=lambda _: np.zeros(2, np.float32))) == 1


class Elsewhere(Still):
    """Somebody who names his things in his own language."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Dict({"левая": Box(0, 255, (16, 16, 3), np.uint8), "j": Box(-1, 1, (2,), np.float32)})


@pytest.mark.parametrize("declared", [{}, {"_left": "левая"}])
def test_a_camera_that_no_store_can_name_is_refused_before_anybody_has_driven(declared: dict[str, str]) -> None:
    task = TaskConfig(env="tests.acting.test_task:Elsewhere", declare=EnvDeclaration(cameras=declared))
    name = next(iter(declared), "левая")
    with pytest.raises(ConfigError, match=f"the camera {name!r} .* A-Z .* task.declare.cameras="):
        open_robot(task)
    report = check_task(task)
    assert any(name in problem for problem in report.problems)
    fitting = EnvDeclaration(cameras={"left": "левая"})
    open_robot(TaskConfig(env="tests.acting.test_task:Elsewhere", declare=fitting)).close()
