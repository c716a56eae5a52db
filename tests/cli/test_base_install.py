"""The base install, what the computer on a robot gets: nothing that an extra brings is there, and yet every verb can
say what it does, and what it lacks.
"""

import functools
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vla_rl.cli.main import VERBS


def brought_by(distribution: str, found: set[str]) -> set[str]:
    """The distributions that installing one without extras brings, itself among them."""
    if (name := canonicalize_name(distribution)) not in found:
        found.add(name)
        for line in requires(distribution) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                brought_by(requirement.name, found)
    return found


@functools.cache
def hiding_all_else() -> str:
    """Code after which Python finds only what the base install brings."""
    base = brought_by("vla-rl", set())
    hidden = sorted(
        module
        for module, distributions in packages_distributions().items()
        if base.isdisjoint(map(canonicalize_name, distributions))
    )
    return f"""
import sys
from importlib.machinery import PathFinder

class BaseFinder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden} else super().find_spec(name, path, target)

sys.meta_path = [BaseFinder if finder is PathFinder else finder for finder in sys.meta_path]
"""


def in_the_base_install(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", hiding_all_else() + script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_only_what_extras_bring_is_missing() -> None:
    extras = ["torch", "lerobot", "gymnasium", "mujoco", "PIL", "pyarrow", "ray", "rosbags", "onnx", "rerun", "pytest"]
    done = in_the_base_install(f"""
import numpy, onnxruntime, zarr
from importlib.util import find_spec

print(*(name for name in {extras} if find_spec(name)))
""")
    assert (done.stdout, done.stderr) == ("\n", "")


def test_every_verb_helps_without_any_extra() -> None:
    """In one process: what one verb imports without an extra is no help to the next."""
    script = f"""
from vla_rl.cli.main import main

for verb in {list(VERBS)}:
    try:
        main([verb, "--help"])
    except SystemExit as stopped:
        assert stopped.code == 0, verb
    else:
        raise AssertionError(verb)
"""
    done = in_the_base_install(script)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [verb for verb in VERBS if f"usage: vla-rl {verb}" not in done.stdout] == []


def test_what_a_robot_runs_is_imported_without_any_extra() -> None:
    """`sim` and `world_model.imagined_env` are gymnasium environments; all the rest of the loop is here."""
    modules = (
        "vla_rl",
        "vla_rl.data.store",
        "vla_rl.data.doctor",
        "vla_rl.credit",
        "vla_rl.advantage",
        "vla_rl.execution.loop",
        "vla_rl.execution.executor",
        "vla_rl.execution.inference_process",
        "vla_rl.execution.sources",
        "vla_rl.acting.rollout",
        "vla_rl.acting.policy_folder",
        "vla_rl.acting.robots.mock",
        "vla_rl.acting.robots.ros2",
        "robot_io.gate",
        "robot_io.recorder",
        "robot_io.mock_robot",
        "deploy_trt.runtime",
        "world_model",
    )
    done = in_the_base_install(f"import importlib\nfor name in {modules}: importlib.import_module(name)")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", ["train", "demo", "play", "eval", "report", "finetune", "imagine"])
def test_a_verb_that_needs_an_extra_names_it_in_one_line(verb: str, tmp_path: Path) -> None:
    arguments = {
        "train": ["--out", str(tmp_path / "run")],
        "demo": ["--out", str(tmp_path / "run")],
        "play": [],
        "eval": ["nowhere"],
        "report": ["nowhere"],
        "finetune": ["--data", str(tmp_path), "--out", str(tmp_path / "run")],
        "imagine": ["rollout", "nowhere"],
    }[verb]
    done = in_the_base_install("import sys\nfrom vla_rl.cli.main import main\nsys.exit(main())", verb, *arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"vla-rl: error: {verb} needs the package " in done.stderr
    assert "install vla-rl[train]" in done.stderr
    assert not (tmp_path / "run").exists()
