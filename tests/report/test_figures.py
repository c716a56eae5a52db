import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from run_maker import make_episode

from benchmarks.pictures import figures
from benchmarks.pictures.episode_figures import _bars, _telling_episodes, draw_values
from benchmarks.pictures.figures import save_figures
from benchmarks.pictures.plotting import BAD, GOOD, HUMAN, NOTHING, POLICY
from vla_rl.core.errors import UserError
from vla_rl.report.run_episodes import Trace

ALL = {"gate", "label_bias", "segments", "values", "weights", "reliability"}


def names(files: list[Path]) -> set[str]:
    return {file.stem.removeprefix("method_") for file in files}


@pytest.mark.slow
def test_a_whole_run_gives_every_picture_and_the_same_ones_again(run_dir: Path, tmp_path: Path):
    files = save_figures(run_dir, tmp_path / "images")
    assert names(files) == ALL
    for file in files:
        drawn = [element for element in ElementTree.parse(file).iter() if element.tag.endswith(("}path", "}image"))]
        assert len(drawn) > 10, f"{file.name} is not empty"
        assert "prefers-color-scheme: dark" in file.read_text()
    assert [file.read_bytes() for file in files] == [f.read_bytes() for f in save_figures(run_dir, tmp_path / "again")]


@pytest.mark.parametrize(
    ("missing", "gone"),
    [
        ("traces", {"values", "weights"}),
        ("episodes", {"segments", "values", "weights"}),
        ("metrics.jsonl", {"reliability"}),
    ],
)
def test_what_a_run_has_no_data_for_is_left_out(
    run_dir: Path, tmp_path: Path, missing: str, gone: set[str], monkeypatch
):
    for name in ("draw_gate", "draw_label_bias"):  # drawn from the code alone
        monkeypatch.setattr(figures, name, lambda: None)
    path = run_dir / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert names(save_figures(run_dir, tmp_path)) == ALL - {"gate", "label_bias"} - gone


def test_the_bars_are_the_masks():
    episode = make_episode("round001-00000", 30, True, human=slice(12, 25))
    bars = _bars(episode)
    assert bars["who acts"] == [POLICY] * 12 + [HUMAN] * 13 + [POLICY] * 5
    assert bars["viability: paper"] == [NOTHING] * 25 + [GOOD] * 5
    assert bars["viability: takeover_is_failure"] == [BAD] * 12 + [NOTHING] * 13 + [GOOD] * 5
    assert bars["efficiency"] == [NOTHING] * 12 + [GOOD] * 18
    assert bars["actor"] == [NOTHING] * 12 + [HUMAN] * 13 + [POLICY] * 5


def test_the_newest_episode_of_every_kind_is_shown(run_dir: Path):
    from vla_rl.data.store import EpisodeStore

    store = EpisodeStore(run_dir / "episodes")
    store.add(make_episode("round000-00000", 30, True, human=slice(10, 30)))
    store.add(make_episode("round009-00000", 30, True, demo=True))
    found = {kind: episode.episode_id for kind, episode in _telling_episodes(store)}
    assert found == {
        "A success without a takeover": "round002-00000",
        "A failure without a takeover": "round001-00001",
        "A person repairs and hands back": "round001-00002",
        "A person finishes": "round000-00000",
    }


def test_an_episode_without_a_camera_is_drawn_without_its_frames():
    episode = replace(make_episode("round001-00000", 30, True), images={})
    columns = {"viability": np.full(30, 0.5), "efficiency": np.linspace(-30, 0, 30)}
    figure = draw_values([Trace("success", episode, columns)])
    assert len(figure.axes) == 2


def test_the_labels_are_as_biased_as_the_formula_says():
    assert figures._taught_value("paper", 0.5) == pytest.approx(0.36 / (0.36 + 0.5 * 0.64), abs=0.03)
    assert figures._taught_value("takeover_is_failure", 0.5) == pytest.approx(0.36, abs=0.03)


def test_a_place_that_cannot_be_written_is_one_clear_error(run_dir: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the picture"):
        save_figures(run_dir, tmp_path / "file" / "images")
