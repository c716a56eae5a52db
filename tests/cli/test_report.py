"""The verb `report`."""

import json
from pathlib import Path

import pytest

from vla_rl.cli.main import main


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with one evaluation and nothing else."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 3\n")
    evaluation = {"round": 0, "successes": 40, "episodes": 100}
    (folder / "summary.json").write_text(json.dumps({"evaluations": [evaluation]}))
    return folder


def test_the_page_is_built(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run_dir)]) == 0
    assert capsys.readouterr().out.split() == [str(run_dir / "report.html")]


def test_a_folder_without_a_run_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
