"""Where a cell says that it was measured."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.cells import Cells, commit
from vla_rl.core.errors import UserError


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


def test_a_cell_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    Cells(tmp_path, "settings").write("a", {"x": 1})
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(UserError, match=r"a\.json is no readable cell"):
        Cells(tmp_path, "settings")
