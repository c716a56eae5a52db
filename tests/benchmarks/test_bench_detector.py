"""The benchmark of the success detector: scores of judgments, and the table of what there is."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import detector
from vla_rl.outcomes.detector import Judgment
from vla_rl.outcomes.ensemble import Track


def tracks(outcomes: list[bool]) -> list[Track]:
    return [Track(np.zeros((1, 2), np.float32), outcome) for outcome in outcomes]


def test_scores_count_what_was_called_and_what_was_asked() -> None:
    judgments = [Judgment(True, 0.9), Judgment(None, 0.8), Judgment(True, 0.7), Judgment(False, 0.2)]
    judge: Any = SimpleNamespace(judge_rows=lambda rows: judgments)
    scores = detector._scores(judge, tracks([True, False, False, True]))
    assert scores["false_success"] == pytest.approx(2 / 3)
    assert scores["false_success_asking"] == pytest.approx(1 / 2)
    assert scores["false_failure"] == 1.0
    assert scores["asked"] == 0.25
    assert scores["area"] == pytest.approx(2 / 4)


def test_the_table_shows_what_was_measured() -> None:
    row = {"area": 0.9, "false_success": 0.1, "false_failure": 0.2, "asked": 0.05, "novel": 0.0}
    row |= {"answers": 40, "order": 0, "false_success_asking": 0.02, "false_failure_asking": 0.01}
    measured = {"cpu": "a processor", "commit": "abc"}
    cells = [{"part": "recorded", "seed": 0, "episodes": 150, "successes": 90, "rows": [row], "measured": measured}]
    for labels, after in (("true", 0.8), ("detector", 0.75)):
        rounds = [{"round": 2, "asked": 7.0, "unknown": 0.0, "false_success": 0.01, "false_failure": 0.0}]
        practice = {"part": "practice", "seed": 0, "labels": labels, "success": [0.5, 0.6, after]}
        cells.append({**practice, "rounds": rounds if labels == "detector" else [], "measured": measured})
    figures = detector._figures(cells)
    assert figures["false_success_asking_percent_40"] == pytest.approx(2)
    assert figures["success_against_true_labels_points"] == pytest.approx(-5)
    assert "false_success_asking_percent_80" not in figures
    text = detector.table({**figures, "cells": cells, "command": "python -m benchmarks detector"})
    assert "| 40 | 0.900 | 10.0%, 20.0% | **2.0%**, 1.0% | 5.0% | 2.0% |" in text
    assert "| seed 0, labels: detector | 50%, 60%, 75% | 7 | 1.0% |" in text
    assert figures["false_success_percent"] == pytest.approx(1)
    assert figures["asked_share"] == pytest.approx(7 / 150)
