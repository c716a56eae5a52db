"""What evaluation episodes are named by: a result of another simulator counts as another one."""

import importlib
from pathlib import Path

import pytest

from vla_rl.core.registry import required_packages
from vla_rl.training.config import RunConfig
from vla_rl.training.evaluation import evaluation_key


def install(site: Path, name: str, version: str, requires: tuple[str, ...] = (), task: str = "") -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    if task:
        (info / "entry_points.txt").write_text(f"[vla_rl.tasks]\n{task} = made_up_tasks:Task\n")


def test_another_version_of_the_simulator_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, policy = tmp_path / "site", tmp_path / "policy"
    site.mkdir(), policy.mkdir()
    requires = ("made-up-suite (>=1.0) ; extra == 'suite'", "numpy[extra]<9")
    install(site, "made-up-tasks", "0.1.0", requires, "made_up/Task-v0")
    install(site, "made-up-suite", "1.0.0")
    (site / "made_up_tasks.py").write_text("from sim.tasks.peg_insert import PegInsertEnv as Task\n")
    monkeypatch.syspath_prepend(str(site))
    assert required_packages("tasks", "made_up/Task-v0") == {"made-up-suite", "numpy"}
    assert required_packages("tasks", "made_up_tasks:Task") == {"made-up-suite", "numpy"}
    assert required_packages("tasks", "module:Name") == required_packages("tasks", "vla_rl/PegInsert-v0") == frozenset()
    config = RunConfig()
    config = type(config)(task=type(config.task)(env="made_up/Task-v0"))
    before = evaluation_key(config, policy)
    assert evaluation_key(config, policy) == before
    (site / "made_up_suite-1.0.0.dist-info").rename(site / "gone")
    install(site, "made-up-suite", "1.1.0")
    importlib.invalidate_caches()
    assert evaluation_key(config, policy) != before
