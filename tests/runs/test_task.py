"""A task is found by its name, and made with the arguments that it takes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from PIL import Image

from robot_io.env_interface import EnvDeclaration
from vla_rl.cli.main import main
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.runs.config import TaskConfig
from vla_rl.runs.task import ASSUMED_EPISODE_STEPS, episode_limit, make_env, open_robot
from vla_rl.runs.task_check import check_task

PACKAGE = Path(__file__).resolve().parents[1] / "fakes" / "own_package"


@pytest.fixture(autouse=True)
def _his_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PACKAGE)


class Still(gymnasium.Env[dict[str, Any], Any]):
    """Takes a difficulty and nothing else of ours; hands the rest on to its base, which takes a colour."""

    def __init__(self, difficulty: float = 0.1, colour: int = 7) -> None:
        self.difficulty, self.colour = difficulty, colour
        self.action_space = Box(-1, 1, (2,), np.float32)
        self.observation_space = Dict(eye=Box(0, 255, (16, 16, 3), np.uint8), joints=Box(-1, 1, (2,), np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> dict[str, Any]:
        return {"eye": np.full((16, 16, 3), self.colour, np.uint8), "joints": np.zeros(2, np.float32)}


class Handing(Still):
    def __init__(self, size: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = size


class Needing(Still):
    def __init__(self, goal: str) -> None:
        super().__init__()


class Drifting(Still):
    """Neither obeys its seed nor keeps still, and leaves its space."""

    calls = 0

    def _observe(self) -> dict[str, Any]:
        Drifting.calls += 1
        return super()._observe() | {"joints": np.full(2, 0.01 * Drifting.calls, np.float32)}


class Broken(Still):
    def _observe(self) -> dict[str, Any]:
        return super()._observe() | {"joints": np.full(2, np.nan, np.float32)}


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
    assert make_env(task(f"{HERE}:anything", kwargs={"colour": 9})).unwrapped.colour == 9
    handing = make_env(task(f"{HERE}:Handing", difficulty=0.4, kwargs={"colour": 9, "size": 3})).unwrapped
    assert (handing.difficulty, handing.colour, handing.size) == (0.4, 9, 3)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"env": "Handing", "kwargs": {"color": 9}}, "takes no argument 'color' .*Did you mean 'colour'"),
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


def test_a_check_finds_what_would_hurt() -> None:
    drifting = check_task(task(f"{HERE}:Drifting"))
    assert [warning.split(" (")[0].split(":")[0] for warning in drifting.warnings] == [
        "not within its own space",
        "the same seed and actions give another episode",
        "at rest the state moves",
    ]
    assert not drifting.problems
    assert check_task(task(f"{HERE}:Broken")).problems == ["numbers [0, 1] of the state are not finite at step 0"]
    still = check_task(task(f"{HERE}:Still"))
    assert (still.warnings, still.problems) == ([], [])
    assert any("20 steps a second are assumed" in sentence for sentence in still.assumed)


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
