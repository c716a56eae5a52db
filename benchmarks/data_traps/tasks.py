"""Tasks of other people: what is silently wrong with them, and what a check of the task reports.

Each class is `Dot` with one mistake: a dot that is driven onto a square, seen by a camera and as a position.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from benchmarks.data_traps.traps import expect, trap
from robot_io.env_interface import EnvDeclaration
from vla_rl.acting.task import make_env
from vla_rl.acting.task_check import TaskReport, check_task
from vla_rl.acting.task_config import TaskConfig
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.store import EpisodeStore

SIZE = 16
CHECK = "task check"


class Dot(gymnasium.Env[dict[str, Any], Any]):
    """A dot with a position from -1 to 1, driven by steps onto a square at another one."""

    metadata = {"render_fps": 20}  # noqa: RUF012 - gymnasium declares it so
    action_kind, task_description, max_episode_steps = "delta", "drive the dot onto the square", 30

    def __init__(self) -> None:
        self.action_space: Any = Box(-0.1, 0.1, (2,), np.float32)
        self.observation_space: Any = Dict(top=Box(0, 255, (SIZE, SIZE, 3), np.uint8), dot=Box(-1, 1, (4,), np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.dot, self.goal = self.np_random.uniform(-1, -0.5, 2), self.np_random.uniform(0.5, 1, 2)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        self.move(action)
        there = self.there()
        return self.observe(), float(there), there, False, {"is_success": there}

    def move(self, action: Any) -> None:
        self.dot = np.clip(self.dot + action, -1, 1)

    def there(self) -> bool:
        return bool(np.abs(self.dot - self.goal).max() < 0.1)

    def observe(self) -> dict[str, Any]:
        return {"top": self.draw(), "dot": np.array([*self.dot, *self.goal], np.float32)}

    def draw(self) -> Any:
        picture = np.zeros((SIZE, SIZE, 3), np.uint8)
        for color, place in ((0, self.goal), (1, self.dot)):
            row, column = ((place + 1) / 2 * (SIZE - 1)).round().astype(int)
            picture[row, column, color] = 255
        return picture


def _report(name: str, **settings: Any) -> TaskReport:
    return check_task(TaskConfig(env=f"{__name__}:{name}", **settings), seconds=1.0)


def _expect_finding(report: TaskReport, kind: str, *words: str) -> str:
    """Expect one sentence of a kind that contains all words, the remedy among them."""
    found = [line for line in getattr(report, kind) if all(word in line for word in words)]
    expect(len(found) == 1, f"{kind} are {getattr(report, kind)}")
    return found[0]


def mistake(input: str, kind: str, *words: str) -> Callable[[type[Dot]], type[Dot]]:
    """Register a task as a trap: its check has to report one sentence of a kind that contains all words."""

    def register(task: type[Dot]) -> type[Dot]:
        trap(CHECK, input)(lambda _: _expect_finding(_report(task.__name__), kind, *words))
        return task

    return register


@trap(CHECK, "a task without a mistake: no problem, no warning")
def _sound(_: Path) -> str:
    report = _report("Dot")
    expect(not report.problems and not report.warnings, f"{report.problems} {report.warnings}")
    return report.found[-1]


@mistake(
    "a robot at rest solves the task, at its first step",
    "problems",
    "succeeds in 3 of 3",
    "0 after 1",
    "task.declare.success",
)
class SolvedAtRest(Dot):
    def there(self) -> bool:
        return bool((self.dot < self.goal).all())


@mistake("a robot at rest solves some starts of a task", "warnings", "of 3 episodes", "start further from the goal")
class SometimesSolvedAtRest(Dot):
    def there(self) -> bool:
        return bool(self.goal[0] > 0.8)


@mistake(
    "every seed gives the same start, state and pictures",
    "problems",
    "all of 8 seeds give the same start",
    "self.np_random",
)
class SameStart(Dot):
    def reset(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return super().reset(seed=0)


@mistake(
    "actions have no effect on state and pictures",
    "problems",
    "random actions and rest give the same",
    "apply the action",
)
class Deaf(Dot):
    def move(self, _: Any) -> None:
        """Do nothing."""


@mistake("all pictures are black", "problems", "camera 'top' shows one color", "level 0", "declare.cameras")
class Dark(Dot):
    def draw(self) -> Any:
        return np.zeros((SIZE, SIZE, 3), np.uint8)


@mistake(
    "the picture was drawn once, at the first reset",
    "warnings",
    "shows the same picture in every episode",
    "at every step",
)
class Frozen(Dot):
    def draw(self) -> Any:
        if not hasattr(self, "drawn"):
            self.drawn = super().draw()
        return self.drawn


@mistake("every episode ends after its first step", "problems", "ends within 1 step", "task.declare.max_episode_steps")
class OneStep(Dot):
    def step(self, action: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        return (*super().step(action)[:2], True, False, {"is_success": False})


class Telling(Dot):
    """Observes its outcome, under a name that says so and under one that does not."""

    def __init__(self) -> None:
        super().__init__()
        flag = Box(0, 1, (1,), np.float32)
        self.observation_space = Dict({**self.observation_space.spaces, "is_success": flag, "lamp": flag})

    def observe(self) -> dict[str, Any]:
        flag = np.array([self.there()], np.float32)
        return {**super().observe(), "is_success": flag, "lamp": flag}

    def there(self) -> bool:
        return bool(self.dot[0] > self.goal[0] - 1.4)


@trap(CHECK, "the observation holds the success, by its name and by its values")
def _telling(_: Path) -> str:
    report = _report("Telling")
    by_name = _expect_finding(report, "warnings", "outcome 'is_success'", "task.declare.state=")
    return f"{by_name} {_expect_finding(report, 'warnings', 'equal the success at every step', 'task.declare.state=')}"


@mistake("the state is all zeros", "warnings", "the state never changes", "task.declare.state=")
class Blind(Dot):
    def observe(self) -> dict[str, Any]:
        return {"top": self.draw(), "dot": np.zeros(4, np.float32)}


@mistake("actions from -1e6 to 1e6", "warnings", "a range of 2e+06", "action_low and action_high")
class Wide(Dot):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = Box(-1e6, 1e6, (2,), np.float32)


@mistake(
    "actions over all of float32, whose range is infinite", "problems", "finite bounds", "action_low and action_high"
)
class Endless(Wide):
    max_episode_steps = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (2,), np.float32)


@trap(CHECK, "no time limit")
def _no_limit(_: Path) -> str:
    declared = EnvDeclaration(action_low=(-0.1,), action_high=(0.1,))
    report = _report("Endless", declare=declared)
    return _expect_finding(report, "assumed", "no time limit", "cut after 1000 steps", "max_episode_steps")


@mistake(
    "an end with the only reward, which the info calls a failure",
    "warnings",
    "the only positive reward",
    "task.declare.success",
)
class Contradicting(Dot):
    def step(self, action: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        observation, _, _, _, _ = super().step(action)
        self.count = getattr(self, "count", 0) + 1
        ends = self.count % 20 == 0
        return observation, float(ends), ends, False, {"is_success": False}


@mistake(
    "a task that is solved by waiting, after the short episodes of the check have ended",
    "problems",
    "succeeds in 3 of 3",
    "0 after 200",
    "declare.success",
)
class SolvedByTime(Dot):
    max_episode_steps = 300

    def reset(self, **start: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        self.left = 200
        return super().reset(**start)

    def there(self) -> bool:
        self.left -= 1
        return self.left == 0


@mistake("a task that goes on after its success", "warnings", "goes on after a success", "time limit", "terminate")
class GoingOn(Telling):
    def step(self, action: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, False, truncated, info


class Depth(Dot):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Dict({**self.observation_space.spaces, "depth": Box(0, 9, (SIZE, SIZE), np.float32)})

    def observe(self) -> dict[str, Any]:
        return {**super().observe(), "depth": np.ones((SIZE, SIZE), np.float32)}


@trap(CHECK, "a depth map of floats, which would be 256 numbers of the state")
def _depth(_: Path) -> str:
    report = _report("Depth")
    expect("dot (4)" in report.found[3], report.found[3])
    return _expect_finding(report, "assumed", "left out", "'depth'", "cameras are uint8")


@mistake("metadata['render_fps'] of -20", "problems", "'render_fps'", "task.declare.control_hz")
class Backwards(Dot):
    metadata = {"render_fps": -20}  # noqa: RUF012


def _demonstrations(folder: Path, lengths: list[int], action: float = 0.05) -> Path:
    store = EpisodeStore(folder / "shown")
    for number, length in enumerate(lengths):
        rows = np.linspace(0, action, 2 * length, dtype=np.float32).reshape(length, 2)
        store.add(
            Episode(
                episode_id=f"demo-{number:06d}",
                images={"top": np.zeros((length, SIZE, SIZE, 3), np.uint8)},
                state=np.zeros((length, 4), np.float32),
                action_policy=rows,
                action_sent=rows,
                source=np.full(length, Source.DEMO, np.uint8),
                task="drive the dot onto the square",
                success=True,
                terminated=True,
                origin=Origin.DEMO,
                policy_version=-1,
                seed=number,
                control_hz=20.0,
                env_id=f"{__name__}:Dot",
            )
        )
    return store.path


@trap(CHECK, "half of the demonstrations last one step")
def _one_step_demonstrations(folder: Path) -> str:
    report = _report("Dot", demonstrations=str(_demonstrations(folder, [1, 9, 1, 9])))
    return _expect_finding(report, "problems", "2 of 4 demonstrations", "last one step", "vla-rl label")


@trap(CHECK, "demonstrations in millimeters for a task in meters, and longer than its limit")
def _foreign_units(folder: Path) -> str:
    report = _report("Dot", demonstrations=str(_demonstrations(folder, [40, 9], action=50.0)))
    outside = _expect_finding(report, "warnings", "leave the action space", "units", "action_low")
    return f"{outside} {_expect_finding(report, 'warnings', 'has 40 steps', 'task.declare.max_episode_steps=40')}"


@trap(CHECK, "gym-aloha with targets that jump at every step, until its simulation diverges")
def _diverging(_: Path) -> str:
    env: Any = make_env(TaskConfig(env="vla_rl_benchmarks.aloha_tasks:TransferCube", image_size=32))
    env.unwrapped.drawing = False
    rng, space = np.random.default_rng(0), env.observation_space["agent_pos"]
    env.reset(seed=0)
    for step in range(300):
        observation, _, terminated, truncated, info = env.step(rng.uniform(-np.pi, np.pi, 14).astype(np.float32))
        expect(space.contains(observation["agent_pos"]), f"{observation['agent_pos']} at step {step}")
        if terminated or truncated:
            break
    env.close()
    expect(terminated and not info["is_success"], str(info))
    return f"diverged after {step + 1} steps: a failure"
