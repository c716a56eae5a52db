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
from vla_rl.report.story import Story
from vla_rl.report.story_page import parts, story_page
from vla_rl.report.story_panel import draw

STAGES = ("supervise 0", "evaluate 0")


@pytest.fixture
def story(run_dir: Path) -> Story:
    return Story(STAGES, run_dir, "toy", pictures={"front": make_episode("a", 2, True).images["front"][0]})


def test_the_page_follows_stage_progress_and_loss(story: Story) -> None:
    assert "Starting" in parts(story)["stage"]
    with watched_by(story.on_progress):
        for _ in track(range(4), "supervise 0", "step"):
            story.on_metrics({"kind": "train", "round": 0, "step": 1, "actor_loss": 0.25})
            list(track([1], "decoding episodes", "episode"))  # is no stage
    shown = parts(story)
    assert shown["stage"] == "Stage 1 of 2: supervise 0"
    assert "4 of 4, loss 0.250" in shown["done"]
    with watched_by(story.on_progress):
        list(track([1], "evaluate 0", "episode"))
    assert "loss" not in parts(story)["done"], "the loss is that of another stage"


def test_the_newest_failure_and_success_are_seen(story: Story, run_dir: Path) -> None:
    story.look()
    assert story.newest[False].episode_id == "v0002-000003"
    EpisodeStore(run_dir / "episodes").add(make_episode("round009-00000", 9, False))
    story._looked_s = 0.0
    story.look()
    assert story.newest[False].episode_id == "round009-00000"
    assert "round009-00000" in parts(story)["last-failure"]
    assert story.sentence == "put the peg into the box"


def test_the_report_takes_the_place_of_the_page(story: Story, run_dir: Path) -> None:
    def ask(address: str) -> bytes:
        with urllib.request.urlopen(address) as answer:
            return bytes(answer.read())

    with story_page(story) as address:
        assert b"/story" in ask(address)
        first = json.loads(ask(f"{address}story"))
        assert "data:image/webp" in first["pictures"]
        assert "91 %" in first["success"]
        assert not first["finished"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(f"{address}config.yaml")
        file = build_report(run_dir)
        story.finished = True
        assert json.loads(ask(f"{address}story"))["finished"]
        assert ask(f"{address}report") == file.read_bytes()


def test_the_panel_shows_success_and_the_last_failure(story: Story) -> None:
    console = Console(file=io.StringIO(), width=96)
    console.print(draw(story, "http://here/"))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "91% [84, 95]" in shown
    assert "last failure: v0002-000003" in shown
    assert "http://here/" in shown
