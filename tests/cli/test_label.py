"""Outcomes that a person gives in the terminal."""

import builtins
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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
    assert main(["label", str(store.path), "--sheets", str(tmp_path / "sheets")]) == 0
    assert outcomes(store) == [True, True, None, False]
    printed = capsys.readouterr().out
    assert "[1/3] e0: 'push', 5 steps (0.2 s), 0 by a person" in printed
    assert "2 of 3 labeled" in printed
    with Image.open(tmp_path / "sheets" / "e3.webp") as sheet:
        assert sheet.size == (8 * 6, 8 + 4)
        assert sheet.getpixel((0, 0))[0] == pytest.approx(150, abs=3)
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
