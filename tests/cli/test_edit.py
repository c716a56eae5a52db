"""`vla-rl edit`: what it prints, and what it refuses. What it changes is met in `benchmarks.data_traps.edits`."""

from pathlib import Path

import numpy as np
import pytest

from vla_rl.cli.main import main
from vla_rl.core.types import Episode, Origin
from vla_rl.data.store import EpisodeStore


@pytest.fixture
def run(tmp_path: Path) -> Path:
    store = EpisodeStore(tmp_path / "run" / "episodes")
    column, labels = np.zeros((5, 2), np.float32), ("push", None, False, Origin.REAL, 0, None, 20.0, "tiny")
    for name in ("e0", "e1"):
        store.add(Episode(name, {}, column, column, column, np.zeros(5, np.uint8), *labels))
    return tmp_path / "run"


def test_edits_are_printed_and_undone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edit", str(run), "--ids", "e0", "e1", "--trim", ":3", "--task", "pull"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "e0: as recorded -> task 'pull', trim 0:3",
        "e1: as recorded -> task 'pull', trim 0:3",
        "the outcomes stay as they were; --outcome changes them",
    ]
    assert main(["edit", str(run), "--ids", "e0", "--leave-out", "--outcome", "failure"]) == 0
    assert main(["edit", str(run), "--ids", "e1", "--undo"]) == 0
    capsys.readouterr()
    assert main(["edit", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "e0: task 'pull', trim 0:3, left out, outcome failure"
    assert lines[2].endswith("taken in, outcome unknown -> left out, outcome failure")
    assert lines[3] == "e1: task 'push', trim 0:5"
    assert lines[5].endswith("task 'pull', trim 0:3 -> task 'push', trim 0:5, undoes edit 1")
    assert main(["edit", str(run), "--ids", "e0", "--no-leave-out"]) == 0
    assert EpisodeStore(run / "episodes").ids() == ["e0", "e1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--leave-out"], "--ids is missing"),
        (["--undo"], "--ids is missing"),
        (["--ids", "e0", "--undo", "--task", "x"], "give no other change with it"),
        (["--ids", "e0", "--undo"], "has no edit to undo"),
        (["--ids", "e0", "--trim", "3"], "expected FIRST:STOP"),
        (["--ids", "e0", "--trim", ":"], "expected FIRST:STOP"),
        (["--ids", "e0", "--trim", "2:9"], "does not lie in its 5 steps"),
        (["--ids", "e0", "e9", "--leave-out"], "no episode 'e9'"),
    ],
)
def test_what_cannot_be_done_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["edit", str(run), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (run / "episodes" / "edits").exists()


def test_a_folder_without_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edit", str(tmp_path)]) == 2
    assert "no episode store" in capsys.readouterr().err
