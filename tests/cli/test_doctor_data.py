"""`vla-rl doctor --data`: exit code, table, JSON and the picture of suspicious frames."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.data_traps.lerobot_files import FRONT, arm, write
from tests.data.episode_maker import make_episode
from vla_rl.cli.main import main
from vla_rl.data.store import EpisodeStore


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    found = EpisodeStore(tmp_path / "store")
    for number in range(4):
        found.add(make_episode(f"episode-{number}", length=30, seed=number, size=(32, 48)))
    return found


def test_sound_data_end_with_exit_code_0(store: EpisodeStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--data", str(store.path)]) == 0
    assert "4 episodes, 120 steps: 0 problems" in capsys.readouterr().out


def test_a_black_camera_is_in_the_table_the_json_and_the_picture(
    store: EpisodeStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    episode = make_episode("dark", length=30, seed=9, size=(32, 48))
    store.add(replace(episode, images={**episode.images, "top": np.zeros_like(episode.images["top"])}))
    assert main(["doctor", str(store.path), "--data", "--picture", str(tmp_path / "seen.png")]) == 1
    assert "up to 100 % of the pictures of top are black" in capsys.readouterr().out
    with Image.open(tmp_path / "seen.png") as picture:
        assert picture.size[0] > 100
    assert main(["doctor", str(store.path), "--data", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == 1
    (finding,) = [each for each in report["findings"] if each["severity"] == "problem"]
    assert (finding["check"], finding["episodes"]) == ("black video", ["dark"])


def test_options_that_do_not_go_together_are_refused(
    store: EpisodeStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(store.path), "--data", "--repair"]) == 2
    assert "leave one of them out" in capsys.readouterr().err
    assert main(["doctor", str(store.path), "--picture", str(tmp_path / "seen.png")]) == 2
    assert "add --data" in capsys.readouterr().err


def test_a_store_without_faults_as_json(store: EpisodeStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(store.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_lerobot_dataset_is_read_without_the_import_of_lerobot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That import takes 7 s of processor time."""
    dataset = write(tmp_path / "dataset", arm(cameras={FRONT: (32, 32)}))
    monkeypatch.setitem(sys.modules, "lerobot", None)
    assert main(["doctor", str(dataset), "--data"]) == 1, "its actions equal its states"
    assert main(["hub", "pull", str(dataset), str(tmp_path / "store")]) == 0
