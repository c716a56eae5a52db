"""The demo's second run: practice without a person, beside the first one."""

import shutil
import time
from pathlib import Path

import pytest
from PIL import Image

from tests.fakes.forked import start
from vla_rl.cli.main import main
from vla_rl.core.config import load_config
from vla_rl.core.config_files import config_file
from vla_rl.core.errors import UserError
from vla_rl.data.run_folder import RunFolder
from vla_rl.report.run_files import read_run
from vla_rl.training.beside import PracticeAlone
from vla_rl.training.config import RunConfig

TINY = ("--config", "tiny", "budget.rounds=1", "task.declare.max_episode_steps=60")
ALONE = """
algorithm: imagined_edit
takeover: {enabled: false}
exploration: 0.1
environments_per_worker: 4
budget: {steps_per_round: 5}
learning:
  actor: {batch_size: 8}
  distill_steps: 2
  dynamics: {steps: 5}
  value: {steps: 5}
  branches: {updates: 2, branches: 16}
"""


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    (tmp_path / "alone.yaml").write_text(ALONE)
    return tmp_path / "alone.yaml"


@pytest.mark.slow
def test_both_are_shown_on_one_page_also_after_a_kill(
    tmp_path: Path, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    words = ("demo", *TINY, "--alone", str(alone))
    first = start(tmp_path / "log", *words, "--out", str(folder))
    deadline = time.monotonic() + 300
    while not any(folder.glob("alone/episodes/episodes/round001-00001*")):
        assert first.is_alive(), (tmp_path / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.kill()
    first.join()
    alone.write_text("algorithm: sft\ntakeover: {enabled: false}\n")  # what has begun goes on as it began
    assert main(["demo", "--alone", str(alone), "--resume", str(folder)]) == 0
    assert "practice alone  ░" in capsys.readouterr().out
    (shown,) = read_run(folder).controls
    assert (shown.control, shown.round, shown.episodes) == ("practice alone", 1, 2)
    assert "practice alone" in (folder / "report.html").read_text()
    assert (folder / "alone" / "policies" / "version_0001" / "critic" / "config.json").exists()
    assert "Predictions of the dynamics model" in (folder / "report.html").read_text()
    film = ["imagine", "branches", str(folder / "alone"), "--start", "1", "--steps", "2", "--episodes", "1"]
    film += ["--out", str(tmp_path / "film.png")]
    assert main(film) == 0
    with Image.open(tmp_path / "film.png") as picture:
        assert picture.size == (8 * 2 * 2 * 32, 4 * 2 * 32), "two cameras, twice as large; real, and three predictions"
    assert "is predicted" in capsys.readouterr().out
    assert main([*film, "--start", "5000"]) == 2
    assert "choose a smaller --start" in capsys.readouterr().err
    assert main(["imagine", "branches", str(folder)]) == 2
    assert "requires branches (algorithm=imagined_edit" in capsys.readouterr().err


@pytest.mark.slow
def test_what_goes_wrong_beside_is_said_and_the_demo_is_whole(
    tmp_path: Path, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    (folder / "alone").mkdir(parents=True)
    (folder / "alone" / "something").touch()  # a run cannot be made here
    assert main(["demo", *TINY, "--alone", str(alone), "--out", str(folder)]) == 2
    assert "practice alone ended with code 1; see" in capsys.readouterr().err
    assert RunFolder(folder).is_finished()
    assert "is not empty" in (folder / "alone.log").read_text()
    shutil.rmtree(folder / "alone")
    assert main(["demo", "--alone", str(alone), "--resume", str(folder)]) == 0
    assert len(read_run(folder).controls) == 1


@pytest.mark.slow
def test_practice_alone_that_cannot_be_is_refused_at_once(tmp_path: Path, alone: Path) -> None:
    config = load_config(RunConfig, config_file("tiny"), ["budget.staleness=1", "workers=1"])
    run = RunFolder.create(tmp_path / "run", config)
    with run, PracticeAlone(run, config, str(alone)):
        pass  # the second run has no workers that could play ahead
    alone.write_text(f"{ALONE}  critic: {{chunk_ticks: 99}}\n")
    with run, pytest.raises(UserError, match=r"practice alone does not fit this run: critic.chunk_ticks is 99"):
        PracticeAlone(run, config, str(alone))
