"""Outcomes that a person gives in the terminal."""

import base64
import builtins
import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vla_rl.acting.question_page import QuestionQueue, question_page
from vla_rl.cli.main import main
from vla_rl.core.types import Episode, Origin
from vla_rl.data.store import EpisodeStore


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
