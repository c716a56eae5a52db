"""The page and the panel of a run that goes on."""

import io
import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from rich.console import Console
from run_maker import make_episode

from vla_rl.core.progress import track, watched_by
from vla_rl.data.store import EpisodeStore
from vla_rl.report.html import build_report
from vla_rl.report.monitor import Monitor, draw, monitor_page, page_parts

STAGES = ("supervise 0", "evaluate 0")


@pytest.fixture
def monitor(run_dir: Path) -> Monitor:
    return Monitor(STAGES, run_dir, "toy", pictures={"front": make_episode("a", 2, True).images["front"][0]})


def test_the_page_follows_stage_progress_and_loss(monitor: Monitor) -> None:
    assert "Starting" in page_parts(monitor)["stage"]
    with watched_by(monitor.on_progress):
        for _ in track(range(4), "supervise 0", "step"):
            monitor.on_metrics({"kind": "train", "round": 0, "step": 1, "actor_loss": 0.25})
            list(track([1], "decoding episodes", "episode"))  # is no stage
    shown = page_parts(monitor)
    assert shown["stage"] == "Stage 1 of 2: supervise 0"
    assert "4 of 4, loss 0.250" in shown["done"]
    with watched_by(monitor.on_progress):
        list(track([1], "evaluate 0", "episode"))
    assert "loss" not in page_parts(monitor)["done"], "the loss is that of another stage"


def test_the_newest_failure_and_success_are_seen(monitor: Monitor, run_dir: Path) -> None:
    monitor.look()
    assert monitor.newest[False].episode_id == "v0002-000003"
    EpisodeStore(run_dir / "episodes").add(make_episode("round009-00000", 9, False))
    monitor._looked_s = 0.0
    monitor.look()
    assert monitor.newest[False].episode_id == "round009-00000"
    assert "round009-00000" in page_parts(monitor)["last-failure"]
    assert monitor.sentence == "put the peg into the box"


def test_the_report_takes_the_place_of_the_page(monitor: Monitor, run_dir: Path) -> None:
    def ask(address: str) -> bytes:
        with urllib.request.urlopen(address) as answer:
            return bytes(answer.read())

    with monitor_page(monitor) as address:
        assert b"/parts" in ask(address)
        first = json.loads(ask(f"{address}parts"))
        assert "data:image/webp" in first["pictures"]
        assert "91% [84, 95]" in first["success"]
        assert not first["finished"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(f"{address}config.yaml")
        file = build_report(run_dir)
        monitor.finished = True
        assert json.loads(ask(f"{address}parts"))["finished"]
        assert ask(f"{address}report") == file.read_bytes()


def test_the_panel_shows_success_and_the_last_failure(monitor: Monitor) -> None:
    console = Console(file=io.StringIO(), width=96)
    console.print(draw(monitor, "http://here/"))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "91% [84, 95]" in shown
    assert "last failure: v0002-000003" in shown
    assert "http://here/" in shown
