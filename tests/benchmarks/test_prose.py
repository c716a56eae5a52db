"""The prose check finds what the rules forbid, and leaves code, equations and generated tables alone."""

from pathlib import Path

import pytest

from benchmarks import prose

LONG = "The trainer " + "reads and " * 13 + "stops."


def found(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, text: str) -> list[str]:
    (folder / name).write_text(text)
    monkeypatch.setattr(prose, "ROOT", folder)
    return [finding.removeprefix(f"{name}:") for finding in prose.findings(name)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Nobody reads this.", "1: 'Nobody'"),
        ("| a | it rings an alarm |", "1: 'alarm'"),
        (LONG, "1: 29 words, at most 25"),
    ],
)
def test_a_page_with_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, expected: str) -> None:
    (finding,) = found(monkeypatch, tmp_path, "page.md", text)
    assert finding.startswith(expected)


def test_code_equations_and_generated_tables_are_no_prose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = "Run `tell nobody`.\n\n    nobody = 1\n\n```bash\nnobody\n```\n"
    page += f"<!-- results: a -->\n{LONG}\n<!-- end of results -->\n"
    assert found(monkeypatch, tmp_path, "page.md", page) == []


def test_docstrings_messages_and_comments_are_prose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    error = "the robot reads " + "and reads " * 9 + "and stops"
    module = f'''"""The same as another module.

Example: python nobody.py
"""


def act(robot, policy):
    """Act.

    Args:
        robot: {"the robot that acts " * 4}.
        policy: {"the policy that plans " * 4}.
    """
    policy = 1  # whoever plans
    raise ValueError(f"{error}, {{robot}}")
'''
    lines = found(monkeypatch, tmp_path, "module.py", module)
    assert [line.partition(":")[0] for line in lines] == ["1", "15", "14"], lines
    assert "is no summary" in lines[0]
    assert "24 words, at most 20" in lines[1]


def test_sentences_are_counted_as_they_are_read() -> None:
    text = "It reads `a long command` (e.g. [a link](page.md#x)). It takes 95 % of it, vs. half before."
    assert [prose.words(sentence) for sentence in prose.sentences(text)] == [6, 8]
