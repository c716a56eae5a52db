"""How tasks of other people are named and made, and what they print."""

import contextlib
import io
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from benchmarks.data_traps.tasks import SIZE, Dot
from benchmarks.data_traps.traps import expect, trap
from vla_rl.acting.task import make_env, open_robot
from vla_rl.acting.task_config import TaskConfig
from vla_rl.acting.task_names import find_task, task_names

NAMES, OUTPUT = "names and arguments of a task", "output of a task"


class Named(Dot):
    """Takes arguments under names that helpers use as well, and settings of another kind than ours."""

    def __init__(
        self,
        name: str,
        creator: str = "",
        task: int = 0,
        spec: int = 0,
        id: int = 0,
        max_episode_steps: int = 9,
        difficulty: str = "easy",
        image_size: tuple[int, int] = (SIZE, SIZE),
        renderer: str = "onscreen",
    ) -> None:
        super().__init__()
        self.given = (name, creator, task, spec, id, max_episode_steps, difficulty, image_size, renderer)


@trap(NAMES, "constructor arguments called name, creator, task, spec, id and max_episode_steps")
def _colliding_names(_: Path) -> str:
    kwargs = {"name": "arm", "creator": "we", "task": 2, "spec": 3, "id": 4, "max_episode_steps": 5}
    given = make_env(TaskConfig(env=f"{__name__}:Named", kwargs=kwargs)).unwrapped.given
    expect(given == (*kwargs.values(), "easy", (SIZE, SIZE), "onscreen"), str(given))
    return str(given)


_PACKAGE = """
import gymnasium
from benchmarks.data_traps.tasks import Dot
gymnasium.register("trap-toys/Dot-v0", entry_point=Dot, max_episode_steps=7)
"""


@trap(NAMES, "trap-toys/Dot-v0, an id whose namespace is the package trap_toys, not imported yet")
def _namespace(folder: Path) -> str:
    (folder / "trap_toys.py").write_text(_PACKAGE)
    sys.path.insert(0, str(folder))
    try:
        found = find_task("trap-toys/Dot-v0")
    finally:
        sys.path.remove(str(folder))
        gymnasium.registry.pop("trap-toys/Dot-v0", None)
        sys.modules.pop("trap_toys", None)
    expect(found.max_episode_steps == 7, str(found))
    return str(found.id)


@trap(NAMES, "an id whose namespace is no installed package", remedy="package:Id-v0")
def _no_namespace(_: Path) -> str:
    return str(find_task("gym_nowhere/PushT-v0"))


@trap(NAMES, "the list of tasks: what a check accepts by name")
def _listed(_: Path) -> str:
    found = task_names()
    wanted = ("vla_rl/PegInsert-v0", "vla_rl/MetaWorldDoorOpen-v0", "vla_rl/PickRed-v0")
    expect(set(wanted) <= set(found), str(found))
    for name in found:
        find_task(name)
    return f"{len(found)} tasks"


@trap(NAMES, "gymnasium.make of our tasks after `import vla_rl`, without `import sim`")
def _registered(_: Path) -> str:
    code = "import gymnasium, vla_rl; print(gymnasium.spec('vla_rl/PegInsert-v0').id)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    expect(done.returncode == 0, done.stderr)
    return done.stdout


class Chatty(Dot):
    def __init__(self) -> None:
        super().__init__()
        print("Hello from the community of toys")
        print("[toys WARNING] no private macro file", file=sys.stderr)
        logger = logging.getLogger("chatty_toys")
        if not logger.handlers:  # as a package does that brings its own handler
            logger.addHandler(logging.StreamHandler())
            logger.propagate = False
        logger.warning("the toys use their defaults")

    def reset(self, **start: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        logging.getLogger("chatty_toys").warning("the toys use their defaults")
        return super().reset(**start)


@trap(OUTPUT, "a package that greets and warns for every environment, by print and its own log handler")
def _chatty(_: Path) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for seed in range(4):
            open_robot(TaskConfig(env=f"{__name__}:Chatty")).reset(seed)
    expect(not out.getvalue(), f"stdout has {out.getvalue()!r}")
    for line in ("Hello", "macro file", "their defaults"):
        expect(err.getvalue().count(line) == 1, err.getvalue())
    return err.getvalue()


class Headless(Dot):
    render_mode = "rgb_array"

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(-1, 1, (4,), np.float32)

    def observe(self) -> Any:
        return super().observe()["dot"]

    def render(self) -> Any:
        try:
            raise OSError("X11: The DISPLAY environment variable is missing")
        except OSError:
            raise AttributeError("'NoneType' object has no attribute 'glGetError'") from None


@trap(OUTPUT, "a renderer that does not load without a screen", remedy="MUJOCO_GL=egl")
def _headless(_: Path) -> str:
    return str(open_robot(TaskConfig(env=f"{__name__}:Headless")).reader.size)
