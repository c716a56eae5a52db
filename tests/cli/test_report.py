"""The verb `report`: the page, or pictures of the run."""

import json
from pathlib import Path
from xml.etree import ElementTree

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


@pytest.mark.slow
def test_pictures_are_drawn_instead_where_they_are_asked_for(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, figures = tmp_path / "demo.png", tmp_path / "images"
    assert main(["report", str(run_dir), "--picture", str(picture), "--figures", str(figures)]) == 0
    drawn = [Path(line) for line in capsys.readouterr().out.split()]
    assert drawn == [picture, figures / "method_gate.svg", figures / "method_label_bias.svg"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert all(ElementTree.parse(file).getroot().tag.endswith("svg") for file in drawn[1:])
    assert not (run_dir / "report.html").exists()


def test_a_folder_without_a_run_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
