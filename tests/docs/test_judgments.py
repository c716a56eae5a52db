"""The published judgments of the text: files that questions name exist, and counts follow from the tables."""

from benchmarks.docs import JUDGMENTS, blind, judged, questions
from benchmarks.docs_blind import pairs
from benchmarks.docs_commands import ROOT
from vla_rl.core.json_files import read_json


def test_the_answers_to_questions_are_files_of_the_repository() -> None:
    asked = read_json(JUDGMENTS / "questions.json")
    assert all((ROOT / each["right"]).exists() for each in asked), "rename the answer with the file"
    assert all(each["found"] == (each["answered"] == each["right"]) for each in asked)
    assert questions({}).count("| yes |") == judged()["house_questions_under_a_minute"]
    assert len(asked) == judged()["house_questions"] == 10


def test_preferences_are_counted_by_majority() -> None:
    found = judged()
    assert blind({}).count("| 3 of 3 |") == found["blind_new_preferred"]
    assert 0 < found["blind_new_preferred"] <= found["blind_pairs"] == 20


def test_drawn_paragraphs_differ_and_are_the_same_again() -> None:
    drawn = pairs("5432f13", 3, seed=1)
    assert drawn == pairs("5432f13", 3, seed=1)
    assert len(drawn) == 3
    assert all(pair["old"] != pair["new"] for pair in drawn)
