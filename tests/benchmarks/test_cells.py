"""Where a cell says that it was measured."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.cells import Cells, commit, origin
from vla_rl.core.errors import UserError
from vla_rl.training.machine import describe_machine


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_results_and_documents_do_not_make_a_tree_dirty(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    (repository / "docs").mkdir(parents=True)
    (repository / "package").mkdir()
    git(repository, "init", "-q")
    for name in ("docs/cell.json", "README.md", "package/code.py"):
        (repository / name).write_text("before")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "all")
    head = git(repository, "rev-parse", "--short", "HEAD").strip()
    assert commit(repository / "package") == head
    for name in ("docs/cell.json", "README.md"):
        (repository / name).write_text("after")
    assert commit(repository / "package") == head
    (repository / "package" / "code.py").write_text("after")
    assert commit(repository / "package") == f"{head}-dirty"
    assert commit(tmp_path) is None


def test_it_is_told_on_which_processor_and_at_which_commit_cells_were_measured(tmp_path: Path) -> None:
    Cells(tmp_path, "settings").write("a", {"x": 1})
    (here,) = Cells(tmp_path, "settings").read()
    assert here["measured"]["cpu"] == describe_machine()["cpu"]
    of = [("one", "b"), ("two", "c"), ("one", "a"), ("one", "b")]
    cells = [{"measured": {"cpu": cpu, "commit": commit}} for cpu, commit in of]
    assert origin(cells) == "Measured on one at commit a, b; on two at commit c."


def test_a_cell_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    Cells(tmp_path, "settings").write("a", {"x": 1})
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(UserError, match=r"a\.json is no readable cell"):
        Cells(tmp_path, "settings")
