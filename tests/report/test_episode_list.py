"""The list of episodes: what it holds, its bound in bytes, and that a browser shows it from a file without network."""

import base64
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_maker import make_episode, write_run
from test_html import Page, panels_of, unpacked

from vla_rl.core.dimensions import Dimensions
from vla_rl.data.store import EpisodeStore
from vla_rl.report import episode_list
from vla_rl.report.html import build_report


def add(run: Path, episode_id: str, **changes: Any) -> None:
    EpisodeStore(run / "episodes").add(replace(make_episode(episode_id, 30, False), **changes))


def test_every_episode_is_listed_newest_first(run_dir: Path):
    rows = Page(build_report(run_dir)).episodes
    assert len(rows) == 3 * 5 + 4
    assert next(iter(rows)) == "v0002-000004"
    taken = rows["round001-00002"]
    assert (taken["kind"], taken["person"], taken["outcome"], taken["steps"]) == ("practice", 13, "success", 30)
    assert ["human", 12, 25] in taken["curves"]["source"]
    assert rows["v0001-000003"]["kind"] == "evaluation"


def test_state_and_actions_are_drawn_under_their_names(run_dir: Path):
    ramp = np.linspace(-3, 5, 60).reshape(30, 2).astype(np.float32)
    names = Dimensions(("pan", "lift"))
    add(run_dir, "round003-00000", action_sent=ramp * 0.5, action_policy=ramp, action_dimensions=names)
    panel = panels_of(run_dir, "round003-00000")["action sent (solid) and of the policy (dashed)"]
    assert panel["names"] == ["pan", "lift", "pan of the policy", "lift of the policy"]
    assert panel["dashed_from"] == 2
    np.testing.assert_allclose(unpacked(panel)[2:], ramp.T, atol=2e-4)
    np.testing.assert_allclose(unpacked(panel)[:2], ramp.T * 0.5, atol=2e-4)


def test_a_film_has_its_frames_below_each_other(run_dir: Path):
    film = Page(build_report(run_dir)).episodes["v0002-000004"]["film"]
    kind, _, content = film["image"].partition(";base64,")
    assert kind == "data:image/webp"
    assert base64.b64decode(content)[8:12] == b"WEBP"
    assert film["cameras"] == ["front", "top"]
    assert film["at"][-1] == 5, "the last step is seen"


def test_a_long_episode_keeps_its_length_in_steps(run_dir: Path):
    EpisodeStore(run_dir / "episodes").add(make_episode("round003-00000", 1500, True))
    row = Page(build_report(run_dir)).episodes["round003-00000"]
    assert (row["steps"], row["curves"]["at"][-1], len(row["curves"]["at"])) == (1500, 1499, 375)


def test_the_page_is_bounded_and_shows_some_of_every_kind(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(episode_list, "CURVES_BYTES", 4000)
    monkeypatch.setattr(episode_list, "FILMS_BYTES", 1500)
    for number in range(40):
        add(run_dir, f"round003-{number:05d}")
    rows = Page(build_report(run_dir)).episodes
    played = [row for row in rows.values() if row.get("curves")]
    assert len(rows) == 19 + 40
    assert sum(len(json.dumps(row["curves"])) for row in played) < 4400
    assert sum(len(json.dumps(row["film"])) for row in played if row["film"]) < 1700
    assert {"evaluation", "practice"} == {row["kind"] for row in played}
    monkeypatch.setattr(episode_list, "MAX_LISTED", 20)
    page = Page(build_report(run_dir))
    assert len(page.episodes) == 20
    assert "Only the newest 20 of 59 are listed." in page.prose


def test_a_browser_plays_the_list_from_a_file(tmp_path: Path):
    """Without network; the task's sentence holds markup, which stays text."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium")
    run = tmp_path / "run"
    run.mkdir()
    write_run(run)
    store = EpisodeStore(run / "evaluation")
    evil = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>"
    store.add(replace(make_episode("v0002-000009", 12, True, version=2, seed=909), task=evil))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}"]
    options += ["--virtual-time-budget=5000", "--dump-dom", f"file://{build_report(run)}"]
    shown = subprocess.run([browser, *options], capture_output=True, text=True, check=True, timeout=120).stdout
    title = re.search(r"<title>(.*?)</title>", shown)
    assert title is not None
    assert "owned" not in title[1]
    assert "20 of 20 episodes, 14 successes" in shown
    assert "v0002-000009: success after 12 steps" in shown, "the newest is played at once"
    assert "step 0 of 11, 0.00 s, policy" in shown
    assert "&lt;img src=x onerror" in shown
    assert shown.count("<canvas") > 6
    assert "background-position" in shown
