"""What brings the world to the start of an attempt: a person, the simulator, or the policy itself by a second task.

The simulator does it where nothing else is asked for: `robot_io.env_robot.EnvRobot.reset` draws a new start. A real
robot's scene is set by a person (`ask_person`). Two tasks that undo each other need neither (`SecondTask`).
"""

import io
import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vla_rl.core.config import load_config, save_config
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.files import write_atomic
from vla_rl.core.validation import check_ranges

if TYPE_CHECKING:
    from robot_io.env_robot import EnvRobot  # needs gymnasium, which a robot does not have

logger = logging.getLogger(__name__)
_CONFIG, _WORLD, _LOG = "resets.yaml", "world.npy", "resets.jsonl"
Play = Callable[[str, str], None]
"""Plays one attempt of a task, recorded under a name."""


def ask_person(name: str, wait: Callable[[], None]) -> None:
    """Ask a person at the terminal to set the scene of an attempt; ``wait`` returns when they let it begin."""
    print(f"{name}: Enter begins. Is the scene ready, no person near?", file=sys.stderr)
    wait()


@dataclass(frozen=True)
class ResetConfig:
    """How a policy resets the world.

    Attributes:
        patience: Number of further attempts before the world counts as stuck and is reset by hand.
    """

    patience: int = 10

    def __post_init__(self) -> None:
        check_ranges(self, "resets", patience=">= 1")


def check_world(tasks: tuple[str, ...], one_world: bool) -> None:
    """Check that the policy of a run can reset its world by a second task.

    Args:
        tasks: Tasks of the run.
        one_world: Whether one process plays one attempt after the other.

    Raises:
        ConfigError: If the run has no second task or several worlds.
    """
    if len(tasks) != 2:
        raise ConfigError(
            f"--resets was given, and the run has {len(tasks)} tasks. Expected are two that undo each other: task.env "
            "and one task.also"
        )
    if not one_world:
        raise ConfigError(
            "--resets lets attempts share one world, so one process plays them in turn. Set workers=0, ray=null, "
            "environments_per_worker=1, budget.check_episodes=0 and budget.compare_episodes=0"
        )


def choose_resets(run: Path, config: ResetConfig) -> None:
    """Let the policy of a run reset the world by a second task, from its first episode on.

    Args:
        run: Run folder.
        config: When a hand is needed.

    Raises:
        ConfigError: If the run was begun otherwise.
    """
    file = run / _CONFIG
    if (run / "metrics.jsonl").exists() and not file.exists():
        raise ConfigError(f"{run} was begun without --resets; name another run folder")
    save_config(config, file)


class SecondTask:
    """Two tasks in one world, where the success of each is the start of the other: forward-backward practice.

    Before an attempt, the policy plays further attempts until the other task is done. The first one is of the other
    task. The next one is of the attempt's own task, unless that is done already: undoing often frees what is stuck.
    After `ResetConfig.patience` of them the world is reset by hand, which ``resets.jsonl`` counts. In a simulation the
    environment's reset is this hand. ``world.npy`` keeps the state of the world, so a resumed run goes on there.

    Args:
        run: Run folder of `choose_resets`.
        robots: Both tasks as robots. Their environments have ``get_state``, ``set_state`` and ``is_success``, and
            take ``options={"world": STATE}`` at a reset.

    Attributes:
        world: State in which the last attempt ended; None: the simulator draws a start.

    Raises:
        UserError: If an environment cannot begin at a state.
    """

    def __init__(self, run: Path, robots: Mapping[str, "EnvRobot"]) -> None:
        for name, robot in robots.items():
            if missing := [each for each in ("get_state", "set_state", "is_success") if not hasattr(_env(robot), each)]:
                raise UserError(
                    f"--resets lets a world go on, and the environment of {name} lacks {', '.join(missing)}. Add them, "
                    "or leave --resets out"
                )
        self.patience = load_config(ResetConfig, run / _CONFIG).patience
        self._run, self._robots = run, robots
        with (run / _LOG).open("ab+") as log:  # a killed process may have left no line, or a part of one
            log.seek(0)
            log.truncate(log.read().rfind(b"\n") + 1)
        file = run / _WORLD
        self.world = np.load(file, allow_pickle=False) if file.exists() else None

    def prepare(self, task: str, name: str, play: Play) -> None:
        """Play attempts until the world is at the start of the attempt ``name`` of a task, or reset it by hand."""
        if self.world is None:  # the first attempt of all: the scene has just been set up
            return
        other = next(each for each in self._robots if each != task)
        first = self._count(f"{name}-again")  # a killed process may have played some
        for number in range(self.patience):
            if self._is_done(other):
                return
            helps = task if number % 2 and not self._is_done(task) else other
            play(helps, f"{name}-again{first + number:02d}")
        if not self._is_done(other):
            logger.warning("%s: stuck after %d further attempts; the world is reset by hand", name, self.patience)
            self.world = None
            self._log({"hand": name})

    def note(self, task: str, name: str, success: bool | None) -> None:
        """Keep the state in which an attempt has ended."""
        self.world = _env(self._robots[task]).get_state()
        buffer = io.BytesIO()
        np.save(buffer, self.world, allow_pickle=False)
        write_atomic(self._run / _WORLD, buffer.getvalue())
        self._log({"episode": name, "task": task, "success": success})

    def _is_done(self, task: str) -> bool:
        env = _env(self._robots[task])
        env.set_state(self.world)
        return bool(env.is_success())

    def _count(self, prefix: str) -> int:
        entries = map(json.loads, (self._run / _LOG).read_text().splitlines())
        return sum(entry.get("episode", "").startswith(prefix) for entry in entries)

    def _log(self, entry: dict[str, Any]) -> None:
        with (self._run / _LOG).open("a") as file:
            file.write(json.dumps(entry) + "\n")

    @classmethod
    def of(cls, run: Path, robots: Mapping[str, "EnvRobot"]) -> "SecondTask | None":
        """Return the resets that a run chose; None: the simulator resets."""
        return cls(run, robots) if (run / _CONFIG).exists() else None


def _env(robot: "EnvRobot") -> Any:
    return robot.env.unwrapped
