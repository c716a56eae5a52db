"""Outcomes that a person gives in the terminal."""

import base64
import builtins
import contextlib
import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.data_traps.lerobot_files import Dataset, arm, write
from vla_rl.acting.question_page import QuestionQueue, question_page
from vla_rl.cli.main import main
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.types import Episode, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.policies import folders
from vla_rl.policies.base import BasePolicy
from vla_rl.policies.flow_vla import FlowVLA

sys.path.append(str(Path(__file__).parents[1] / "outcomes"))
from seen_success import played
from tiny_policy import make_model


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    store = EpisodeStore(tmp_path / "store")
    for number, success in enumerate([None, True, None, None]):
        images = {"front": np.full((5, 8, 6, 3), 50 * number, np.uint8), "wrist": np.zeros((5, 4, 6, 3), np.uint8)}
        column = np.zeros((5, 2), np.float32)
        source = np.zeros(5, np.uint8)
        labels = (success, False, Origin.REAL, 0, None, 20.0, "tiny")
        store.add(Episode(f"e{number}", images, column, column, column, source, "push", *labels))
    return store


def answer(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """What a person types; then the input ends."""
    lines: Iterator[str] = iter(answers)

    def typed(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(builtins, "input", typed)


def outcomes(store: EpisodeStore) -> list[bool | None]:
    return [store.read(name).success for name in store.ids()]


def test_only_what_has_no_outcome_is_asked_for(
    store: EpisodeStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer(monkeypatch, "what?", "S", "", "f")
    assert main(["label", str(store.path), "--films", str(tmp_path / "films")]) == 0
    assert outcomes(store) == [True, True, None, False]
    printed = capsys.readouterr().out
    assert "[1/3] e0: 'push', 5 steps (0.2 s), 0 by a person" in printed
    assert "2 answers in" in printed
    with Image.open(tmp_path / "films" / "e3.gif") as film:
        assert film.size == (192 + 384, 256)
        assert film.convert("RGB").getpixel((0, 0))[0] == pytest.approx(150, abs=3)
    answer(monkeypatch, "q")
    assert main(["label", str(store.path)]) == 0
    assert outcomes(store) == [True, True, None, False]


def test_the_end_of_the_input_loses_no_answer(store: EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "f")
    assert main(["label", str(store.path)]) == 0
    assert outcomes(store) == [False, True, None, None]


def test_named_episodes_can_be_labeled_again_and_without_asking(
    store: EpisodeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["label", str(store.path), "--ids", "e1", "e2", "--as", "failure"]) == 0
    assert outcomes(store) == [None, False, False, None]
    assert main(["label", str(store.path), "--ids", "e1", "--as", "unknown"]) == 0
    assert outcomes(store) == [None, None, False, None]
    assert main(["label", str(store.path), "--as", "success"]) == 2
    assert "needs --ids" in capsys.readouterr().err
    assert main(["label", str(store.path.parent)]) == 2


def test_an_episode_that_a_person_is_not_sure_of_is_asked_once(
    store: EpisodeStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, "n", "s", "f")
    assert main(["label", str(store.path)]) == 0
    assert outcomes(store) == [None, True, True, False]
    answer(monkeypatch)
    assert main(["label", str(store.path)]) == 0
    assert "every episode has an outcome" in capsys.readouterr().out


def test_a_run_folder_is_labeled_by_its_name(store: EpisodeStore, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    store.path.rename(tmp_path / "run" / "episodes")
    assert main(["label", str(tmp_path / "run"), "--ids", "e0", "--as", "failure"]) == 0
    assert EpisodeStore(tmp_path / "run" / "episodes").read("e0").success is False


def ask(address: str, message: dict[str, str] | None = None) -> dict[str, Any]:
    """Get the question, or post an answer, as the page does."""
    data = None if message is None else json.dumps(message).encode()
    with urllib.request.urlopen(f"{address}question", data) as found:
        return json.loads(found.read())


def test_the_page_asks_about_what_waits_and_what_comes_later(store: EpisodeStore) -> None:
    queue = QuestionQueue(store)
    with question_page(queue) as address:
        with urllib.request.urlopen(address) as page:
            assert b"s: success" in page.read()
        first = ask(address)
        assert (first["name"], first["left"], first["task"]) == ("e0", 3, "push")
        assert base64.b64decode(first["film"]).startswith(b"GIF8")
        with urllib.request.urlopen(f"{address}question?shown=e0") as found:
            assert json.loads(found.read()) == {"name": "e0", "left": 3}, "a film that is shown is not made again"
        for key in "sn":
            ask(address, {"name": ask(address)["name"], "key": key})
        ask(address, {"name": "e3", "key": "f"})
        assert outcomes(store) == [True, True, None, False]
        assert ask(address) == {"name": "", "left": 0}
        store.label("e1", None, "detector ensemble-6")  # practice goes on
        assert ask(address)["name"] == "e1"
        for wrong in ({"name": "e0", "key": "f"}, {"name": "e1", "key": "x"}, {"name": "../e1", "key": "s"}, {}):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                ask(address, wrong)
    assert outcomes(store) == [True, None, None, False]
    assert queue.answered == 3


def test_the_verb_asks_named_episodes_in_the_browser(store: EpisodeStore, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def person() -> None:
        for name in ("e1", "e3"):
            for _ in range(200):
                with contextlib.suppress(urllib.error.URLError):
                    ask(f"http://127.0.0.1:{port}/", {"name": name, "key": "f"})
                    break
                time.sleep(0.05)

    thread = threading.Thread(target=person)
    thread.start()
    assert main(["label", str(store.path), "--ids", "e1", "e3", "--browser", str(port)]) == 0
    thread.join()
    assert "2 answers in" in capsys.readouterr().out
    assert outcomes(store) == [None, False, None, False]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "policy"
    make_model().save(folder, {"policy_version": 0})
    return folder


def arms(side: int = 16, episodes: int = 10) -> Dataset:
    """A dataset as lerobot records it, with the cameras of the policy and without outcomes."""
    cameras = {f"observation.images.{name}": (side, side) for name in ("front", "top")}
    return arm(lengths=(6,) * episodes, cameras=cameras)


def always(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answer success and failure in turns, and return the questions."""
    asked: list[str] = []

    def typed(prompt: str) -> str:
        asked.append(prompt)
        return "sf"[len(asked) % 2]

    monkeypatch.setattr(builtins, "input", typed)
    return asked


def test_a_dataset_without_outcomes_is_asked_about(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, store = always(monkeypatch), tmp_path / "store"
    command = ["label", str(write(tmp_path / "data", arms())), "--policy", str(policy), "--out", str(store)]
    assert main([*command, "--answers", "4", "mapping.lerobot.demonstrations=true"]) == 2
    said = capsys.readouterr().err
    assert "10 episodes, and all are demonstrations" in said
    assert "mapping.lerobot.demonstrations=false" in said
    assert asked == []
    command[-1] = str(tmp_path / "other")
    assert main([*command, "--answers", "4"]) == 0
    assert len(asked) >= 4
    assert "come from no column: there is neither next.success nor next.reward" in capsys.readouterr().out
    found = EpisodeStore(tmp_path / "other")
    assert {found.read_header(name).origin for name in found.ids()} == {Origin.REAL}
    assert len([name for name in found.ids() if found.edit_log(name).labeler]) == 10


def test_recorded_outcomes_of_a_dataset_are_known_answers(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = always(monkeypatch)
    outcomes = np.repeat([number % 2 == 0 for number in range(10)], 6)
    data = write(tmp_path / "data", arms().having(next_success=outcomes))
    command = ["label", str(data), "--policy", str(policy), "--out", str(tmp_path / "store")]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "next.success (1 is a success): 5 success, 5 failure, 0 unknown" in printed
    assert "every episode has an outcome" in printed
    assert main([*command, "--save", str(tmp_path / "detector")]) == 0
    assert (tmp_path / "detector" / "detector.json").exists()
    assert asked == []


def test_pictures_of_another_size_are_mapped(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, store = always(monkeypatch), tmp_path / "store"
    data = write(tmp_path / "data", arms(side=24, episodes=5))
    command = ["label", str(data), "--policy", str(policy), "--answers", "4", "--out", str(store)]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "episode 'data-000000' does not fit the policy: camera 'front' gives uint8 [24, 24, 3]" in said
    assert "Set mapping.lerobot.image_size=[16,16]" in said
    assert (asked, store.exists()) == ([], False)
    (tmp_path / "mapping.yaml").write_text("lerobot: {image_size: [16, 16]}")
    assert main([*command, "--mapping", str(tmp_path / "mapping.yaml")]) == 0
    assert len(asked) >= 4
    command = ["label", str(data), "--out", str(tmp_path / "other"), "--as", "failure", "--ids", "data-000000"]
    assert main([*command, "--films", str(tmp_path), "mapping.lerobot.image_size=[16,16]"]) == 0
    assert EpisodeStore(store).recording("data-000000") == EpisodeStore(tmp_path / "other").recording("data-000000")
    assert main(["label", str(store), "mapping.lerobot.image_size=[16,16]"]) == 2
    assert "--out STORE" in capsys.readouterr().err


def test_the_policy_is_loaded_once(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, load_model = list[Path](), folders.load_model

    def load(folder: Path) -> Any:
        loaded.append(folder)
        return load_model(folder)

    monkeypatch.setattr(folders, "load_model", load)
    always(monkeypatch)
    command = ["label", str(write(tmp_path / "data", arms())), "--policy", str(policy), "--answers", "4"]
    assert main([*command, "--out", str(tmp_path / "store")]) == 0
    assert loaded == [policy]


def test_cameras_of_a_dataset_get_the_names_of_the_policy(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = always(monkeypatch)
    cameras = {f"observation.images.{name}": (16, 16) for name in ("laptop", "phone")}
    data = write(tmp_path / "data", arm(lengths=(6,) * 10, cameras=cameras))
    command = ["label", str(data), "--policy", str(policy), "--answers", "4", "--out", str(tmp_path / "store")]
    assert main(command) == 2
    assert "mapping.lerobot.cameras={front: COLUMN, top: COLUMN}" in capsys.readouterr().err
    assert asked == []
    columns = "{front: observation.images.laptop, top: observation.images.phone}"
    assert main([*command, f"mapping.lerobot.cameras={columns}"]) == 0
    assert len(asked) >= 4


def test_names_of_the_state_that_do_not_fit_are_refused_before_the_first_question(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = always(monkeypatch)
    model = make_model()
    model.spec = replace(model.spec, dimensions=((Dimensions(("x", "y", "z")), Dimensions(("x", "y"))),))
    model.save(tmp_path / "named", {"policy_version": 0})
    data = write(tmp_path / "data", arms())
    command = ["label", str(data), "--policy", str(tmp_path / "named"), "--answers", "4"]
    assert main([*command, "--out", str(tmp_path / "store")]) == 2
    assert "the state has no dimension 'x'" in capsys.readouterr().err
    assert asked == []


def test_what_does_not_fit_the_policy_is_refused_before_the_first_question(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, store = always(monkeypatch), EpisodeStore(tmp_path / "store")
    for number in range(5):
        store.add(replace(played(f"e{number}", True, number), success=None))
    other = played("other", True, 9)
    store.add(replace(other, images={"front": other.images["front"]}, final_state=None, final_images={}, success=None))
    command = ["label", str(store.path), "--policy", str(policy), "--answers", "4"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "episode 'other' does not fit the policy: the policy needs camera 'top'" in said
    assert "--ids" in said
    assert asked == []
    assert main([*command, "--ids", *store.ids()[:-1]]) == 0
    assert len(asked) >= 4
    asked.clear()
    monkeypatch.setattr(FlowVLA, "features", BasePolicy.features)
    assert main(command) == 2
    assert "features" in capsys.readouterr().err
    assert asked == []
