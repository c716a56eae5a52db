"""The commands and the Python blocks of README and docs/. The verbs themselves run them, in a folder that holds what
the pages presuppose, with budgets that are small enough for a test.
"""

import functools
import importlib.util
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from vla_rl.cli.main import main
from vla_rl.core.config import flatten
from vla_rl.core.config_files import read_yaml

ROOT = Path(__file__).resolve().parents[1]
# What makes a run short, of what every algorithm has; later arguments win over earlier ones, so not the rounds.
_NOT = ("budget.rounds", "learning.critic_training", "learning.advantage", "task.")
_TINY = [
    f"{key}={json.dumps(value)}"
    for key, value in flatten(read_yaml(ROOT / "configs" / "tiny.yaml")).items()
    if not key.startswith(_NOT)
]
_TINY += ["budget.demonstrations=2", "budget.episodes_per_round=2", "budget.steps_per_round=3"]
_TINY += ["budget.evaluate_every_round=false", "budget.evaluation_episodes=1"]
_BRIEFLY_IMAGINED = ["learning.dynamics.steps=5", "learning.value.steps=5", "learning.branches.updates=2"]
_BRIEFLY_IMAGINED += ["learning.distill_steps=2"]
# Enough for an expert of Meta-World.
_ONE_BRIEF_ROUND = ["budget.rounds=1", "task.image_size=32", "task.declare.max_episode_steps=200"]
_BRIEF_RESIDUAL = ["learning.td.updates=4", "learning.distill_steps=2"]
_BRIEF_RESIDUAL += ["budget.compare_episodes=1", "budget.episodes_per_round=3"]
# As many rounds and episodes as pages speak of, just long enough for every fault: every step goes into datasets too.
_DEMO = ["budget.rounds=3", "budget.episodes_per_round=4", "task.image_size=64"]
_DEMO += ["task.difficulty=0", "task.declare.max_episode_steps=70"]
# Arguments that are added to the first of these that a command matches.
SMALLER = {
    r"vla-rl finetune .*--resume .*steps=": ["steps=8"],
    r"vla-rl (train|finetune) .*--resume": [],
    r"vla-rl demo\b|make demo\b": [*_TINY, "budget.rounds=1", "--alone", ""],  # tests/cli/test_demo.py
    r"vla-rl train .*staleness=": [*_TINY, "workers=1"],
    r"vla-rl train .*check_episodes=": [*_TINY, *_BRIEFLY_IMAGINED, "budget.check_episodes=2"],
    r"vla-rl train .*(--config imagined|algorithm=imagined_edit)": [*_TINY, *_BRIEFLY_IMAGINED],
    r"vla-rl train .*algorithm=residual_ppo": _TINY,
    r"vla-rl train .*--config alone .*MetaWorld": [*_TINY, *_BRIEF_RESIDUAL, *_ONE_BRIEF_ROUND],
    r"vla-rl train .*--config alone .*compare_episodes=0": [*_TINY, *_BRIEF_RESIDUAL, "budget.compare_episodes=0"],
    r"vla-rl train .*--config alone": [*_TINY, *_BRIEF_RESIDUAL, "budget.rounds=1"],
    r"vla-rl train\b.*rounds=": _TINY,
    r"vla-rl train\b": [*_TINY, "budget.rounds=1"],
    r"vla-rl finetune\b": ["steps=4", "checkpoint_every=2", "learning.actor.batch_size=8"],
    r"vla-rl eval\b": ["--episodes", "2"],
    r"vla-rl record\b": ["--episodes", "2"],
    r"vla-rl corrector\b": ["steps=4"],
    r"vla-rl rollout\b.*--inject": [],
    r"vla-rl rollout\b": ["--episodes", "1"],
    r"python -m benchmarks imagination\b": ["--out", "measured"],
    r"python -m benchmarks known\b.*--changes": ["--gather"],
    r"python -m benchmarks (algorithms|people|known)\b": ["--gather", "--out", "measured"],
}
# What a Python block is run with in place of what it says.
SMALLER_PYTHON = {
    "steps=1600": "steps=2",
    "steps=600": "steps=2",
    "episodes=100": "episodes=2",
    "episodes_per_round=150": "episodes_per_round=2",
    "practice.rounds(3)": "practice.rounds(1)",
    'out="runs/peg"': 'out="runs/peg", settings={"budget.steps_per_round": 2, "budget.evaluation_episodes": 2, '
    '"learning.distill_steps": 1, "learning.actor.warmup_steps": 1, "learning.td.updates": 2}',
}
# Run by tests of their own, under the same arguments.
ELSEWHERE = {
    r"python -m vla_rl\.policies\.lerobot_adapter": "tests/policies/test_lerobot_adopt.py",
    r"python -m lerobot_policy_vla_rl": "tests/policies/test_lerobot_commands.py",
    r"lerobot-(eval|train)\b": "tests/policies/test_lerobot_commands.py",
    r"lerobot-rollout\b": "tests/policies/test_lerobot_rollout.py",
    r"python examples/scripts/improve_": "tests/examples/test_scripts.py",
    r"vla-rl train .*policy.kind=proxy": "tests/training/test_proxy_run.py",
    r"vla-rl export runs/improved": "tests/deploy_trt/test_proxied_export.py",
    r"vla-rl play\b": "tests/cli/test_play.py",
    r"vla-rl serve\b": "tests/acting/test_serve.py",
    r"vla-rl rollout openpi://": "tests/acting/test_serve.py",
    r"vla-rl hub\b": "tests/cli/test_hub.py",
    r"vla-rl imagine (train|rollout)\b": "tests/cli/test_imagine.py",
    r"vla-rl imagine branches\b": "tests/cli/test_demo.py",
    r"vla-rl train .*algorithm=residual_ppo": "tests/training/test_residual_run.py",
    r"vla-rl finetune .*policy\.lora": "tests/acting/test_lerobot_practice.py",
    r"vla-rl finetune .*(--mapping|models/my_act)": "tests/cli/test_finetune.py",
    r"torchrun\b": "tests/cli/test_finetune.py",
    r"vla-rl label .*--browser\b": "tests/cli/test_label.py",
    r"vla-rl label .*--policy\b": "tests/outcomes/test_labeling.py",
    r"vla-rl train .*--outcomes\b": "tests/outcomes/test_practice_on_labels.py",
    r"vla-rl train .*--resets\b": "tests/acting/test_resets.py",
    r"lerobot-calibrate\b": "tests/cli/test_documented_arm.py",
    r"vla-rl (record|rollout|robot check) .*--robot lerobot\b": "tests/cli/test_documented_arm.py",
    r"python -m benchmarks world-model\b": "tests/benchmarks/test_bench_world_model.py",
    r"python -m benchmarks one_world\b": "tests/benchmarks/test_bench_one_world.py",
}
UNRUN = {
    r"make test$": "it is what runs the tests",
    r"python -m benchmarks (robot|speed)\b": "hours; the results are in docs/results",
    r"vla-rl .*--robot ros2\b": "needs ROS 2; tests/robot_io/ros2 runs the same in a process of its own",
    r"(ros2|source /opt/ros|cd ~/ws|pip install colcon)\b": "needs ROS 2",
    r"(sudo apt|python3\.12 -m venv|LD_LIBRARY_PATH=)": "needs a Jetson",
    r"vla-rl export .*--(build|modelopt)\b": "needs TensorRT or ModelOpt",
    r"uv pip install -e .examples/benchmarks\[": "installs robosuite and OGBench, which the next commands use",
    r"uv pip install --no-deps -e examples/own_reset$": "the tests find the example as if it were installed",
    r"pip install \./plugins\b": "the tests find the plug-ins as if they were installed",
}
SMALLER_SHELL = {"seq 20": "seq 1", "--config demo --from": "--config runs/demo/config.yaml budget.rounds=1 --from"}
# Run by a shell whose home is the working directory, after these commands.
SHELL = {
    r"git worktree add\b": f"git clone --quiet --shared --no-checkout {ROOT} history; cd history; ",
    r"mkdir -p ~/ws\b": "",
    r"optuna\b": "",
}
# Run where this package is installed.
NEEDS = {
    r"TRACKIO_DIR=": "trackio",
    r"optuna\b": "optuna",
    r"(MUJOCO_GL=egl )?vla-rl .*robosuite/": "robosuite",
    r"vla-rl .*ogbench/": "ogbench",
}


class Command(NamedTuple):
    """One line of a shell block, one whole Python block, or a shell block with a loop.

    Attributes:
        page: the file, relative to the repository.
        text: without comments, continued lines joined; a shell block with a loop is one command, as it stands.
        python: whether it is Python.
    """

    page: str
    text: str
    python: bool

    @property
    def run_elsewhere(self) -> str:
        """The file of the test that runs it, if another one does."""
        return "" if self.python else _first(ELSEWHERE, self.text, "")

    @property
    def unrun(self) -> str:
        """Why it is not run, if it is not."""
        if self.python or self.run_elsewhere:
            return ""
        needs = _first(NEEDS, self.text, "")
        missing = f"needs {needs}" if needs and importlib.util.find_spec(needs) is None else ""
        return missing or _first(UNRUN, self.text, "")


def _first[ValueT](table: dict[str, ValueT], text: str, default: ValueT) -> ValueT:
    return next((value for pattern, value in table.items() if re.match(pattern, text)), default)


def pages() -> list[Path]:
    """All pages that are written by hand."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(page: Path) -> list[Command]:
    """All commands of a page, from top to bottom."""
    name, found = str(page.relative_to(ROOT)), []
    for language, block in re.findall(r"^```(bash|python)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        if language == "python":
            found.append(Command(name, block, python=True))
            continue
        if re.search(r"^done$", block, re.MULTILINE):  # a loop: the block is one program
            found.append(Command(name, block, python=False))
            continue
        lines = [re.sub(r"(^|\s+)#.*", "", line).strip() for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
        found += [Command(name, line, python=False) for line in lines if line]
    return found


def run_command(command: Command, names: dict[str, object]) -> int:
    """Run a command in the working directory; returns its exit code.

    Args:
        command: one that is neither `Command.unrun` nor `Command.run_elsewhere`.
        names: what the Python blocks of its page have defined so far; a block adds its own.
    """
    if command.python:
        text = functools.reduce(lambda text, pair: text.replace(*pair), SMALLER_PYTHON.items(), command.text)
        exec(compile(text, command.page, "exec"), names)
        return 0
    # Whatever brings the environment and its programs: here they are.
    text = re.sub(r"^make demo\b", "vla-rl demo", command.text.removeprefix(".venv/bin/"))
    if any(re.match(pattern, text) for pattern in SHELL):
        text = functools.reduce(lambda text, pair: text.replace(*pair), SMALLER_SHELL.items(), text)
        places = {"HOME": os.getcwd(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "-euc", _first(SHELL, command.text, "") + text], check=False, env=os.environ | places
        ).returncode
    if variable := re.match(r"([A-Z_]+)=(\S+) (.*)", text):
        with mock.patch.dict(os.environ, {variable[1]: variable[2]}):
            return run_command(command._replace(text=variable[3]), names)
    program, *arguments = [*shlex.split(text), *_first(SMALLER, text, list[str]())]
    if "--out" in arguments and arguments[0] in ("train", "demo", "finetune", "export"):
        shutil.rmtree(arguments[arguments.index("--out") + 1], ignore_errors=True)  # of an earlier page
    if program == "vla-rl":
        return main(arguments)
    assert (program, arguments[0]) == ("python", "-m"), f"{command.page}: who runs {text!r}?"
    return _run_module(*arguments[1:])


def _run_module(module: str, *arguments: str) -> int:
    before, sys.argv = sys.argv, [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=False)
    except SystemExit as stopped:
        return int(stopped.code or 0)
    finally:
        sys.argv = before
    return 0


@contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """Make a working directory that holds what the pages presuppose: the demo's run, tasks of one's own, a dataset,
    recordings of an arm. Questions at the terminal get answers.
    """
    (folder / "runs").mkdir(parents=True)
    shutil.copytree(ROOT / "configs", folder / "configs")
    shutil.copytree(ROOT / "docs" / "results", folder / "measured")
    task = (ROOT / "examples" / "own_task" / "own_task.py").read_text()
    (folder / "own_task.py").write_text(task)
    (folder / "my_package.py").write_text(task.replace("Dot-v0", "MyTask-v0"))
    before, stdin = Path.cwd(), sys.stdin
    os.chdir(folder)
    sys.stdin = io.StringIO("q\n" * 100)
    try:
        if main(["train", "--config", "tiny", "--out", "runs/demo", *_TINY, *_DEMO]):
            raise RuntimeError("the run that the pages speak of could not be made")
        for copy in ("runs/robot", "RUN"):
            shutil.copytree("runs/demo", copy)
        for store in ("runs/arm/demonstrations", "runs/arm/practice"):
            shutil.copytree("runs/demo/episodes", store)
        from vla_rl.data.lerobot_export import export_lerobot
        from vla_rl.data.store import EpisodeStore

        two = ["demo-00000", "demo-00001"]
        export_lerobot(EpisodeStore(Path("runs/demo/episodes")), Path("datasets/so101_peg"), ids=two)
        yield folder
    finally:
        os.chdir(before)
        sys.stdin = stdin
