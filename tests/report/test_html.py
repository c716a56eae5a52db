import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from run_maker import make_episode, write_trace

from vla_rl.core.errors import UserError
from vla_rl.data.store import EpisodeStore
from vla_rl.report import media, sections
from vla_rl.report.html import build_comparison, build_report
from vla_rl.report.media import save_clips
from vla_rl.report.run_files import Run
from vla_rl.report.sinks import JsonlSink
from vla_rl.report.statistics import fisher_p

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Reads a page strictly: every element is closed, in order. Keeps tags, links, words, table rows and data."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.text = file.read_text()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self.data: list[dict[str, Any]] = []
        self._open: list[str] = []
        self.feed(re.sub(r'<span class="tip".*?</span>', "", self.text))  # what only shows when it is asked for
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in {"src", "href", "srcset", "action", "data"}]
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1:] in (["script"], ["style"]):
            if data.startswith("{"):
                self.data.append(json.loads(data))
            return
        self.words.append(data)
        if {"td", "th"} & set(self._open) and "title" not in self._open:
            self.rows[-1][-1] += data

    @property
    def prose(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def success(self) -> dict[str, Any]:
        """The chart of success."""
        return next(data for data in self.data if data.get("axis") == "rounds of practice")

    @property
    def episodes(self) -> dict[str, Any]:
        """The rows of the list of episodes by id."""
        return {row["id"]: row for row in next(data for data in self.data if "rows" in data)["rows"]}

    def row(self, first: str) -> list[str]:
        return next(row for row in self.rows if row[0] == first)


def content(page: Page, kind: str) -> list[io.BytesIO]:
    """All pictures or videos of the page."""
    start = f"data:{kind};base64,"
    return [io.BytesIO(base64.b64decode(link.removeprefix(start))) for link in page.links if link.startswith(start)]


def videos(page: Page) -> list[np.ndarray]:
    """Their frames, [N, H, W, 3]."""
    found = []
    for video in content(page, "video/mp4"):
        with av.open(video) as container:
            found.append(np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]))
    return found


def panels_of(run_dir: Path, episode_id: str) -> dict[str, dict[str, Any]]:
    """The panels of the player of an episode, by title."""
    curves = Page(build_report(run_dir)).episodes[episode_id]["curves"]
    return {panel["title"]: panel for panel in curves["panels"]}


def unpacked(panel: dict[str, Any]) -> np.ndarray:
    """The lines of a panel, [L, T]."""
    values = np.frombuffer(base64.b64decode(panel["data"]), "<u2").reshape(len(panel["names"]), -1).astype(float)
    values[values == 65535] = np.nan
    return panel["from"] + values / 65534 * (panel["to"] - panel["from"])


@pytest.mark.parametrize(
    ("figures", "heads", "words"),
    [
        ({"advantage_gate": 1.25}, ["mean advantage gate"], "A gate above 1"),
        ({"value_rise": 0.0213}, ["mean rise of the value"], "predicted from other episodes"),
        ({}, [], ""),
    ],
)
def test_operators_have_the_figures_of_the_algorithm(run_dir: Path, figures, heads, words) -> None:
    """A person who lacks a figure has a dash; a figure that nobody has has no column, and nothing is said of it."""
    people = {"ann/takeovers": 3, "ann/rescued": 2 / 3, "bob/takeovers": 0}
    record = {"kind": "operators", "round": 1, "step": 1500, **people}
    with JsonlSink(run_dir / "metrics.jsonl") as sink:
        sink.on_metrics(record | {f"ann/{name}": value for name, value in figures.items()})
    page = Page(build_report(run_dir))
    at = page.rows.index(["", "takeovers", "of these rescued", *heads])
    shown = ["1.25" if "advantage_gate" in figures else "+0.021"] if figures else []
    assert page.rows[at + 1] == ["ann", "3", "67%", *shown]
    assert page.rows[at + 2] == ["bob", "0", "\N{EN DASH}", *["\N{EN DASH}" for _ in shown]]
    said = " ".join(page.words).partition("Operators")[2].partition("takeovers")[0]
    assert words in said if words else not said.strip()


def test_the_page_is_one_file_that_needs_nothing_else(run_dir: Path):
    file = build_report(run_dir)
    page = Page(file)
    assert file == run_dir / "report.html"
    assert file.stat().st_size < 9e6
    assert len(content(page, "image/webp")) == 2, "the task's cameras"
    assert len(videos(page)) == 2 * 5
    assert len(page.links) == 2 + 2 * 5 + 1
    ours = re.sub(r"/\*! https://github.com/leeoniya/uPlot", "", page.text)  # its own comment
    assert not re.search(r"https?://|@import|url\((?!\"\$\{row)|//cdn", ours)
    assert not {"link", "iframe", "object", "embed"} & set(page.tags)


def test_the_browser_runs_our_script_and_no_other(run_dir: Path):
    page = Page(build_report(run_dir))
    scripts = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert [script[:9] for script in scripts] == ["/*! https", "// Charts"]
    assert f"script-src &#x27;sha256-{digests[0]}&#x27; &#x27;sha256-{digests[1]}&#x27;" in page.text
    assert "unsafe-inline&#x27;; script-src" in page.text
    assert "nan" not in re.findall(r'[\s",]nan\b', page.text)


def test_the_same_folder_gives_the_same_page(run_dir: Path):
    assert build_report(run_dir).read_bytes() == build_report(run_dir).read_bytes()


def test_a_video_has_the_same_bytes_whatever_memory_held_before():
    program = """
import hashlib, numpy as np
from vla_rl.report.media import render_video
cells = np.random.default_rng(0).integers(0, 25, (12, 33, 43, 3), np.uint8)
frames = cells.repeat(8, 1).repeat(8, 2)[:, :256, :342] + np.linspace(0, 200, 342, dtype=np.uint8)[:, None]
print(hashlib.sha256(render_video(frames, 20.0)).hexdigest())
"""
    held = [{**os.environ, "MALLOC_PERTURB_": str(byte)} for byte in (1, 165)]
    first, second = (subprocess.check_output([sys.executable, "-c", program], env=env) for env in held)
    assert first == second


def test_the_headline_is_the_result(run_dir: Path):
    sentence = "Success 38 % → 91 % [84, 95] after 2 rounds of practice, 200 episodes, 7 min 12 s on 2 cores."
    assert sentence in Page(build_report(run_dir)).prose


def test_the_figures_of_every_policy_agree_with_the_summary(run_dir: Path):
    page = Page(build_report(run_dir))
    assert page.row("supervised") == ["supervised", "38 %", "[29, 48]", "38 / 100", "40", "1,500", "60", "1.2e-15"]
    assert page.row("round 2") == ["round 2", "91 %", "[84, 95]", "91 / 100", "240", "4,500", "58", ""]
    control = page.row("more supervised training, round 2")
    assert control[1:4] == ["47 %", "[38, 57]", "47 / 100"]
    ours, other = page.success["lines"]
    assert (ours["x"], ours["y"]) == ([0, 1, 2], [0.38, 0.66, 0.91])
    assert (other["label"], other["look"], other["y"]) == ("more supervised training", "points", [0.47])
    assert [other["low"][0], other["high"][0]] == pytest.approx([0.375, 0.567], abs=0.002)


@pytest.mark.slow
def test_clips_show_first_and_last_on_the_same_seeds_telling_ones_first(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(media, "MAX_FRAMES", 48)
    monkeypatch.setattr(media, "CAMERA_PX", 256)
    page = Page(build_report(run_dir))
    assert re.findall(r"seed (9\d\d)", page.prose) == ["901", "904", "900", "903", "902"]
    assert "Of 5 seeds: 2 only the last policy solves, 1 only the first, 1 both, 1 neither." in page.prose
    clips = videos(page)[:10]
    assert {clip.shape[1:] for clip in clips} == {(256, 342 + 256, 3)}, "16 x 12 px and 16 x 16 px, equally high"
    assert [len(clip) for clip in clips[::2]] == [len(clip) for clip in clips[1::2]], "a pair repeats together"
    assert len(clips[0]) == 14 + 20, "the last picture stands for a second"
    assert clips[0][0, :, :300].mean() < 20 < 200 < clips[0][-1, :, :300].mean(), "it begins dark and ends bright"
    assert (page.prose.count("✓ success"), page.prose.count("✗ failure")) == (5, 5), "those of the pairs"
    first = r"seed 901 front top ✗ failure , 14 steps, version 0;[^✓✗]*✓ success , 6 steps, version 2;"
    assert re.search(first, page.prose)


def test_other_seeds_are_no_pair(run_dir: Path):
    played = EpisodeStore(run_dir / "evaluation")
    played.add(make_episode("v0000-000005", 8, False, seed=1))
    played.add(make_episode("v0002-000005", 8, True, seed=2))
    assert "Of 5 seeds" in Page(build_report(run_dir)).prose


def test_an_episode_that_nobody_has_labelled_is_not_called_a_failure(run_dir: Path):
    EpisodeStore(run_dir / "episodes").add(make_episode("round003-00000", 20, None))
    write_trace(run_dir, "round003-00000", 20)
    rows = Page(build_report(run_dir)).episodes
    assert (rows["round003-00000"]["outcome"], rows["round001-00001"]["outcome"]) == ("unlabelled", "failure")


def test_practice_counts_successes_without_help(run_dir: Path):
    page = Page(build_report(run_dir))
    assert page.row("round 1") != []
    rows = [row for row in page.rows if row[0] == "round 1" and len(row) == 7]
    assert rows == [["round 1", "100", "37", "31", "26", "84", ""]]
    assert page.row("demonstrations")[1:6] == ["40", "40", "0", "0", "\N{EN DASH}"]
    assert "width:37.00%" in page.text


def test_curves_machine_and_config_are_there(run_dir: Path):
    page = Page(build_report(run_dir))
    for words in (
        "Some CPU",
        "numpy 2.2.6",
    ):
        assert words in page.prose
    curves = {data["title"]: data for data in page.data if data.get("axis") == "gradient steps"}
    assert curves["Actor loss"]["lines"][0]["y"][-1] == 0.011111
    assert curves["Actor loss"]["rounds"] == [1500.0, 3000.0]
    gate = curves["Advantage gate: mean, saturated"]["lines"]
    assert [(line["label"], line["y"][-1]) for line in gate] == [("gate mean", 0.9), ("gate saturated", 0.1)]
    assert curves["Actor samples per second"]["lines"][0]["y"][-1] == 1280
    assert page.row("supervise 0")[1] == "7 min 00 s"
    assert "budget: rounds: 2" in page.prose
    assert "gpu" not in page.prose


def test_forecasts_are_shown_per_round_with_what_they_were_measured_on(run_dir: Path):
    page = Page(build_report(run_dir))
    assert page.row("episodes of") == [
        "episodes of",
        "calibration error",
        "Brier score",
        "area under the curve",
        "mean predicted",
        "observed",
        "steps",
    ]
    rows = [row for row in page.rows if len(row) == 7 and row[0] in ("round 2", "round 3")]
    assert rows == [
        ["round 2", "0.250", "0.200", "0.875", "50 %", "40 %", "60"],
        ["round 3", "0.125", "0.200", "0.875", "50 %", "40 %", "60"],
    ]
    assert "it was trained on none of them" in page.prose
    assert "a success counts 0.99 to the power of the ticks until it came" in page.prose
    (chart,) = [data for data in page.data if data.get("square")]
    newest = next(line for line in chart["lines"] if line["label"] == "round 3")
    assert (newest["x"], newest["y"]) == ([0.25, 0.75], [0.25, 0.55])


@pytest.mark.parametrize(
    "damage", [{"steps": None}, {"samples": [1, 2]}, {"samples": []}, {"brier": None}, {"predicted": "x"}]
)
def test_a_damaged_forecast_is_left_out(run_dir: Path, damage):
    with (run_dir / "metrics.jsonl").open("a") as file:
        whole = {"kind": "calibrate", "round": 4, "step": 6000, "steps": 9, "calibration_error": 0.1, "brier": 0.1}
        whole |= {"mean_predicted": 0.5, "mean_observed": 0.5, "predicted": [0.5], "observed": [0.5], "samples": [9]}
        file.write(json.dumps({**whole, **damage}) + "\n")
    page = Page(build_report(run_dir))
    assert not [row for row in page.rows if row and row[0] == "round 4"]
    assert [row for row in page.rows if row[0] == "round 3" and len(row) == 7]


def test_every_algorithm_has_panels_of_its_own(run_dir: Path):
    columns = {
        "value": np.linspace(-1, 0, 24),
        "advantage": np.linspace(-0.2, 0.3, 24),
        "indicator": np.array([0] * 4 + [1] * 10 + [2] * 10),
    }
    np.savez(run_dir / "traces" / "round002-00000.npz", **columns)
    panels = panels_of(run_dir, "round002-00000")
    assert [*panels][2:] == [
        "expected return (0: at the goal, \N{MINUS SIGN}1: failure)",
        "N-step advantage, in lengths of the task",
        "indicator (1: better than usual, 0: not)",
    ]
    judged = unpacked(panels["indicator (1: better than usual, 0: not)"])[0]
    assert np.isnan(judged[:4]).all(), "where nothing was judged there is no line"
    assert judged[4:].tolist() == [0.0] * 10 + [1.0] * 10
    np.savez(run_dir / "traces" / "round002-00000.npz", discounted_value=np.full(24, 0.5), weight=np.full(24, 7.0))
    panels = panels_of(run_dir, "round002-00000")
    assert [*panels][2:] == ["discounted chance of success", "weight in the actor's loss"]
    assert unpacked(panels["weight in the actor's loss"])[0].tolist() == [7.0] * 24


def test_a_resumed_run_counts_a_round_once(run_dir: Path):
    again = {"kind": "collect", "round": 1, "step": 1500, "episodes": 50, "successes": 5, "takeovers": 0, "rescued": 0}
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(again | {"takeovers": np.nan}) + '\n{"kind": "train", "ro')
    rows = [row for row in Page(build_report(run_dir)).rows if row[0] == "round 1" and len(row) == 7]
    assert [row[1] for row in rows] == ["50"]


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("summary.json", "No policy has been evaluated yet."),
        ("config.yaml", "There is no config.yaml in this run folder."),
        ("metrics.jsonl", "No gradient steps have been logged yet."),
        ("evaluation", "There are no evaluation episodes of two policies on the same seeds yet."),
        ("evaluation/store.json", "The episodes in evaluation/ were left out"),
    ],
)
def test_a_missing_part_is_left_out_with_a_sentence(run_dir: Path, missing: str, sentence: str):
    path = run_dir / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    page = Page(build_report(run_dir))
    assert sentence in page.prose
    assert page.tags.count("section") >= 9


@pytest.mark.parametrize("folder", [".", "alone"])
def test_a_film_of_branches_is_on_the_page_in_its_own_bytes(run_dir: Path, folder: str):
    rng = np.random.default_rng(0)
    clips = [rng.integers(0, 255, (3, 32, 64, 3), np.uint8) for _ in range(2)]
    (run_dir / folder).mkdir(exist_ok=True)
    film = run_dir / folder / "branches.mp4"
    save_clips(clips, film, 3.0)
    page = build_report(run_dir).read_text()
    (shown,) = re.findall(r'base64,([^"]*)" [^>]*aria-label="reality above, predictions below"', page)
    assert base64.b64decode(shown) == film.read_bytes()
    film.write_bytes(bytes(2_000_000))
    assert "film of 2,000,000 bytes is left out" in build_report(run_dir).read_text()


def test_a_run_that_has_just_begun_has_a_report(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    page = Page(build_report(tmp_path))
    assert "No policy has been evaluated yet." in page.prose
    assert page.tags.count("section") == 9
    assert "No episode has been recorded yet." in page.prose


def test_one_evaluation_is_a_result_too(run_dir: Path):
    summary = json.loads((run_dir / "summary.json").read_text())
    summary["evaluations"] = summary["evaluations"][:1]
    (run_dir / "summary.json").write_text(json.dumps(summary))
    page = Page(build_report(run_dir))
    assert "Success 38 % [29, 48] after supervised training." in page.prose


@pytest.mark.parametrize(
    ("unexplained_newest", "is_shown"), [({}, True), ({"imagined_unexplained_newest": 0.5}, False)]
)
def test_a_proxy_that_is_too_bad_to_imagine_with_is_shown(run_dir: Path, unexplained_newest: dict, is_shown: bool):
    record = {"kind": "train", "round": 3, "step": 99999, "critic_loss": 0.5, "imagined_stopped": 1.0}
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**record, "proxy_unexplained": 0.31, **unexplained_newest}) + "\n")
    words = "The proxy leaves 31% of the base policy's chunks unexplained, so nothing was imagined."
    assert (words in Page(build_report(run_dir)).prose) == is_shown


def test_the_report_says_what_each_rounds_model_predicts_and_whether_it_was_used(run_dir: Path):
    assert "The world model of each round" not in Page(build_report(run_dir)).prose
    accepted = {"imagined_unexplained": 0.15, "imagined_unexplained_newest": 0.22, "imagined_gain": 0.1234}
    refused = {"imagined_stopped": 1.0, "imagined_unexplained_older": 0.21, "imagined_unexplained_newest": 2.5}
    with (run_dir / "metrics.jsonl").open("a") as file:
        for number, logs in ((3, accepted), (4, refused)):
            file.write(json.dumps({"kind": "train", "round": number, "step": 99990 + number, **logs}) + "\n")
    words = Page(build_report(run_dir)).prose
    words = words[words.index("The world model of each round") :]
    assert "3 15% not checked 22% yes +0.123" in words
    assert "4 not checked 21% 250% no: nothing was imagined not checked" in words


@pytest.mark.slow
def test_what_to_do_next_comes_first_and_follows_from_the_figures(run_dir: Path):
    def advice() -> str:
        words = Page(build_report(run_dir)).prose
        return words[words.index("What to do next") : words.index("Success On episodes")]

    assert "The last round helped" in advice()
    assert "A control shows it" not in advice(), "there is one"
    summary = json.loads((run_dir / "summary.json").read_text())
    summary["evaluations"][2] |= {"successes": 13, "episodes": 20}
    del summary["evaluations"][3]
    (run_dir / "summary.json").write_text(json.dumps(summary))
    assert "The last round helped" not in advice()
    assert "The interval of success is 39 points wide: evaluate more." in advice()
    assert f"--compare {run_dir}-control" in advice()
    summary["evaluations"][2] |= {"successes": 4, "episodes": 100}
    (run_dir / "summary.json").write_text(json.dumps(summary))
    config = {"budget": {"demonstrations": 40, "supervised_steps": 1500}}
    (run_dir / "config.yaml").write_text(json.dumps(config))
    few = advice()
    assert "Practice learns from successes: give it more demonstrations or supervised steps first." in few
    assert "budget.demonstrations=80 budget.supervised_steps=3000" in few
    assert "helped" not in few
    assert "A control shows it" not in few
    config["task"] = {"demonstrations": "shown"}
    config["budget"] = {"supervised_steps": 1500, "steps_per_demonstration": 50}
    (run_dir / "config.yaml").write_text(json.dumps(config))
    assert "Record demonstrations into shown (vla-rl record)." in advice()
    assert "budget.demonstrations" not in advice()
    assert "budget.supervised_steps=3000 budget.steps_per_demonstration=100" in advice()


def test_steps_to_success_are_the_limit_where_a_success_does_not_end_an_episode(run_dir: Path):
    assert "58 (limit)" not in Page(build_report(run_dir)).prose
    shutil.rmtree(run_dir / "evaluation")
    store = EpisodeStore(run_dir / "evaluation")
    for seed in (901, 902):
        store.add(replace(make_episode(f"v0002-{seed:06d}", 9, True, version=2, seed=seed), terminated=False))
    page = Page(build_report(run_dir)).prose
    assert "58 (limit)" in page


def test_words_explain_themselves_and_are_listed(run_dir: Path):
    text = build_report(run_dir).read_text()
    assert text.count("how likely the attempt is to end in success") > 1, "once where it is said, once in the list"
    assert 'tabindex="0">Wilson&#x27;s 95 % interval<span class="tip"' in text


def test_two_runs_are_compared(run_dir: Path, tmp_path: Path):
    other = Path(shutil.copytree(run_dir, tmp_path / "other"))
    (other / "config.yaml").write_text((run_dir / "config.yaml").read_text().replace("rounds: 2", "rounds: 9"))
    summary = json.loads((other / "summary.json").read_text())
    summary["evaluations"][2]["successes"] = 60
    (other / "summary.json").write_text(json.dumps(summary))
    file = build_comparison([run_dir, other])
    page = Page(file)
    assert file.name == "comparison-other.html"
    assert page.row("round 2")[1:3] == ["91 % [84, 95]", "60 % [50, 69]"]
    assert float(page.row("round 2")[3]) == pytest.approx(fisher_p(91, 100, 60, 100), rel=0.1)
    assert page.row("budget.rounds") == ["budget.rounds", "2", "9"]
    assert "Of 5 seeds: 0 only other solves" in page.prose
    (other / "summary.json").write_text("{}")
    with pytest.raises(UserError, match="no evaluated policy"):
        build_comparison([run_dir, other])


def test_several_runs_are_on_one_page(run_dir: Path, tmp_path: Path):
    others = [Path(shutil.copytree(run_dir, tmp_path / name)) for name in ("second", "third")]
    page = Page(build_comparison([run_dir, *others]))
    assert [line["label"] for line in page.success["lines"]] == ["run", "second", "third"]
    losses = next(data for data in page.data if data.get("title") == "Actor loss")
    assert [line["label"] for line in losses["lines"]] == ["run", "second", "third"]
    rows = next(data for data in page.data if "rows" in data)
    assert rows["runs"] == ["run", "second", "third"]
    assert len(rows["rows"]) == 3 * 19
    assert page.row("round 2") == ["round 2", *["91 % [84, 95]"] * 3, "1", "1"]
    with pytest.raises(UserError, match="given twice"):
        build_comparison([run_dir, run_dir])


def test_controls_alone_are_drawn(run_dir: Path):
    summary = json.loads((run_dir / "summary.json").read_text())
    del summary["evaluations"][:3]
    (run_dir / "summary.json").write_text(json.dumps(summary))
    assert Page(build_report(run_dir)).row("more supervised training, round 2")[1] == "47 %"


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"evaluations": 5, "stages": {"a": 1}, "machine": 7, "wall_s": "x"}', "\x00\xff"]
)
def test_a_damaged_summary_is_left_out_with_a_sentence(run_dir: Path, content: str):
    (run_dir / "summary.json").write_bytes(content.encode("latin-1"))
    assert "left out" in Page(build_report(run_dir)).prose


@pytest.mark.parametrize(
    "entry",
    [
        {"round": 2, "control": "x", "successes": 5, "episodes": 4},
        *({"round": 3, "successes": s, "episodes": n} for s, n in ((9, 4), (0, 0))),
        {"round": 3, "successes": 1, "episodes": 4, "tasks": {"x": {"successes": 3, "episodes": 2}}},
        {"round": 3, "successes": 1, "episodes": 4, "tasks": [5]},
        {},
        {"control": "x"},
        7,
    ],
)
def test_an_impossible_entry_is_left_out_with_a_sentence(run_dir: Path, entry):
    summary = json.loads((run_dir / "summary.json").read_text())
    summary["evaluations"].append(entry)
    (run_dir / "summary.json").write_text(json.dumps(summary))
    page = Page(build_report(run_dir))
    assert "An evaluation in summary.json is not complete and was left out." in page.prose
    assert page.row("round 2")[1] == "91 %"
    assert page.row("more supervised training, round 2")[1] == "47 %"


def test_a_policy_of_several_tasks_is_broken_down(run_dir: Path):
    summary = json.loads((run_dir / "summary.json").read_text())
    summary["evaluations"][2]["tasks"] = {
        "vla_rl/PegInsert-v0": {"successes": 45, "episodes": 50},
        "vla_rl/PickPlace-v0": {"successes": 46, "episodes": 50},
    }
    (run_dir / "summary.json").write_text(json.dumps(summary))
    page = Page(build_report(run_dir))
    heads = ["policy", "vla_rl/PegInsert-v0", "vla_rl/PickPlace-v0"]
    first = page.rows.index(heads)
    assert page.rows[first + 1] == ["supervised", "\N{EN DASH}", "\N{EN DASH}"]
    assert page.rows[first + 3] == ["round 2", "90 % [79, 96]", "92 % [81, 97]"]


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 3 : 2 * len(content) // 3] = bytes(len(content) // 3)
    file.write_bytes(content[: len(content) - 40])


def test_a_damaged_evaluation_episode_is_left_out_with_a_sentence(run_dir: Path):
    damage(run_dir / "evaluation" / "episodes" / "v0002-000001.zarr.zip")
    page = Page(build_report(run_dir))
    assert "left out" in page.prose
    assert re.findall(r"seed (9\d\d)", page.prose) == ["904", "900", "903", "902"]


def test_a_damaged_practice_episode_is_left_out_with_a_sentence(run_dir: Path):
    damage(run_dir / "episodes" / "episodes" / "round002-00000.zarr.zip")
    page = Page(build_report(run_dir))
    assert "Episode round002-00000 was left out" in page.prose
    assert page.episodes["round001-00000"]["curves"]


def write_bare_array(file: Path) -> None:
    with file.open("wb") as stream:
        np.save(stream, np.zeros(24))


def plant_pickle(file: Path) -> None:
    np.savez(file, viability=np.array([print], dtype=object))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: write_trace(file.parent.parent, file.stem, 7),
        lambda file: file.write_bytes(b"no trace"),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:200]),
        lambda file: np.savez(file, other=np.zeros(24)),
        write_bare_array,
        plant_pickle,
    ],
    ids=["wrong length", "not npz", "empty", "cut", "no column", "npy", "pickle"],
)
def test_a_bad_trace_is_left_out_with_a_sentence(run_dir: Path, spoil):
    spoil(run_dir / "traces" / "round002-00000.npz")
    page = Page(build_report(run_dir))
    assert "The trace of episode round002-00000 was left out" in page.prose
    assert len(page.episodes["round002-00000"]["curves"]["panels"]) == 2, "state and action"
    assert len(page.episodes["round001-00000"]["curves"]["panels"]) > 2


def test_traces_of_an_algorithm_without_critics_and_with_gaps(run_dir: Path):
    weight = np.full(24, 0.5)
    weight[3:9] = np.nan
    weight[20] = np.inf
    np.savez(run_dir / "traces" / "round002-00000.npz", weight=weight)
    found = unpacked(panels_of(run_dir, "round002-00000")["weight in the actor's loss"])[0]
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(weight))
    assert found[0] == 0.5


def test_words_from_the_run_cannot_become_markup(run_dir: Path):
    evil = '</pre><script>alert(1)</script>"&'
    (run_dir / "config.yaml").write_text(evil)
    summary = json.loads((run_dir / "summary.json").read_text())
    summary |= {"task": evil, "algorithm": evil, "seed": evil, "machine": {evil: evil}}
    summary["stages"][0]["name"] = summary["evaluations"][0]["label"] = summary["evaluations"][3]["control"] = evil
    (run_dir / "summary.json").write_text(json.dumps(summary))
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "train", "round": evil, "step": 9000, evil: 1.0}) + "\n")
        file.write(json.dumps({"kind": "collect", "round": evil, "step": 9000, "episodes": 2}) + "\n")
    page = Page(build_report(run_dir))
    assert len(re.findall(r"<script>", page.text)) == 2, "the library and ours, whose digests the page's policy names"
    assert page.tags.count("script") == 2 + len(page.data)
    assert page.prose.count("alert(1)") >= 7
    assert evil in {data.get("title") for data in page.data}


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="holds no run"):
        build_report(tmp_path)
    with pytest.raises(UserError, match="holds no run"):
        build_report(tmp_path / "nowhere")


def test_each_comparison_says_what_acts_from_then_on() -> None:
    collected = {"kind": "collect", "round": 1, "step": 5, "episodes": 118, "successes": 40, "mean_length": 60.0}
    compared = [
        {"kind": "compare", "round": number, "step": 9, "episodes": 32, "success": success, "plain_success": 0.5}
        | {"whole_acts": float(success >= 0.5)}
        for number, success in ((1, 0.25), (2, 0.75))
    ]
    shown = sections.collection(Run(Path("run"), "", {}, {}, [], [], [collected, *compared], []))
    assert "Round 1, comparison of 32 more episodes: 25 % succeed with critic and residual, 50 % without" in shown
    first, second = shown.split("Round 2, comparison of 32 more episodes: 75 %")
    assert "By all comparisons so far, the policy acts without them." in first
    assert "the whole policy acts." not in first
    assert "By all comparisons so far, the whole policy acts." in second
