"""Check the prose of pages, docstrings, comments, messages and commit subjects, and measure its sentences.

The rules: no house words where the field has a term, no summary that points elsewhere, at most 25 words in a sentence
(20 in an error message), at most 72 characters in a commit subject. Files whose words are keys of published
results are left out.

Example: python -m benchmarks.prose
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COMMITS = "160571d..HEAD"  # earlier subjects keep their length
SEEN = ["*.md", "configs/*.yaml", "vla_rl/*.py", "world_model/*.py", "robot_io/*.py", "sim/*.py", "deploy_trt/*.py"]
SEEN += ["benchmarks/*.py", "examples/*.py", "plugins/*.py", ":!.github", ":!benchmarks/prose.py", ":!*/data_traps/*"]
SEEN += [":!benchmarks/campaign_refusals.py"]
HOUSE_WORDS = {
    r"nobody|somebody|anybody|whoever|whomever": "name the actor: the trainer, the executor, a person",
    r"told|tells?|said": "logs, prints, reports, declares, distinguishes",
    r"fore(?:told|tells?|telling)": "predicted, predicts",
    r"alarms?": "out-of-distribution check",
    r"as it is|as they are": "unchanged, or name the state",
    r"(?:in )?haste|hurr(?:y|ies|ied)": "time discount, faster",
    r"taught|teach(?:es|ing|er)?": "self-imitation, distillation, trained on",
    r"choosers?": "best-of-N selection",
    r"twins?": "paired run, counterpart",
    r"tellers?": "publishers",
}
_HOUSE = re.compile("|".join(rf"(?P<h{i}>\b(?:{words})\b)" for i, words in enumerate(HOUSE_WORDS)), re.IGNORECASE)
_ENTRY = re.compile(r"^ {4}[*`\w][\w*`, .\[\]]*(?: \([^)]*\))?: ")
_END = re.compile(r"(?<=[.!?])[\"')*]*(?<!e\.g\.)(?<!i\.e\.)(?<!\bal\.)(?<!vs\.)(?<!cf\.)\s+")
_READ = ("page", "summary", "docstring")  # what is counted
_SKIPPED = re.compile(r"^```.*?^ *```$|<!--(.*?)-->\n.*?<!-- end of \S+ -->|<!--.*?-->", re.DOTALL | re.MULTILINE)


class Passage(NamedTuple):
    """A piece of prose: page, summary, docstring, comment, message, error, or label (a heading or a table cell)."""

    line: int
    kind: str
    text: str


def sentences(text: str) -> list[str]:
    """Split plain text into sentences; inline code and a value count as one word each."""
    text = re.sub(r"``.*?``|`[^`]*`", "X", text)
    text = re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", text).replace("**", "")
    return [part for part in _END.split(" ".join(text.split())) if words(part)]


def words(sentence: str) -> int:
    """Count the words of a sentence: what stands between spaces and holds a letter or a digit."""
    return len(re.findall(r"\S*\w\S*", sentence))


def markdown(text: str) -> Iterator[Passage]:
    """Yield the passages of a page, without code, equations and generated tables."""
    text = _SKIPPED.sub(lambda match: "\n" * match[0].count("\n"), text)
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if re.match(r"#|\s*\||\s*!\[.*\)$|.*<\w+[^>]*>", line):
            cells = [cell for cell in re.split(r"(?<!\\)\|", line.lstrip("#")) if cell.strip(" -:")]
            yield from (Passage(number, "label", cell) for cell in cells)
            line = ""
        starts = re.match(r"\s*(?:[-*+]|\d+\.)\s", line)
        if block and (not line.strip() or starts):
            yield Passage(number - len(block), "page", " ".join(block))
            block = []
        if block or (line.strip() and (starts or not line.startswith("    "))):
            block.append(re.sub(r"^\s*(?:[-*+]|\d+\.|>)\s+", "", line))


def python(text: str) -> Iterator[Passage]:
    """Yield the docstrings, messages and comments of a module."""
    nodes = list(ast.walk(ast.parse(text)))
    seen, raised = set[int](), {id(inner) for node in nodes if isinstance(node, ast.Raise) for inner in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            first = node.body[0].value  # type: ignore[attr-defined]
            seen.add(id(first))
            parts = enumerate(docstring(first.value))
            yield from (Passage(first.lineno, "docstring" if n else "summary", part) for n, part in parts)
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            message = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
            seen.update(id(part) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in seen:
            message = node.value
        else:
            continue
        if len(re.findall(r"(?<= )[a-z]+(?=[ ,.:;])", message)) > 2 and not re.search(r"[<{]\w+[ >]|\w\(|^\|", message):
            yield Passage(node.lineno, "error" if id(node) in raised else "message", message)
    comment, begun, joins = "", 0, 0  # comments that follow each other on lines of their own are one passage
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"# ?(type:|noqa|fmt:|\[|!|codespell)", token.string):
            number, alone = token.start[0], token.line.lstrip().startswith("#")
            if not (alone and number == joins):
                yield Passage(begun, "comment", comment)
                comment, begun = "", number
            comment, joins = f"{comment} {token.string.lstrip('#: ')}", number + 1 if alone else 0
    yield Passage(begun, "comment", comment)


def docstring(text: str) -> Iterator[str]:
    """Yield the paragraphs and entries of a docstring, without examples and equations."""
    for paragraph in re.split(r"\n\s*\n", cleandoc(text)):
        lines = paragraph.splitlines()
        if re.match(r"Examples?:", lines[0]) or lines[0].startswith(("    ", ">>>", "```", "===")):
            continue
        if re.match(r"[A-Z]\w+:$", lines[0]):
            lines = [re.sub(_ENTRY, "\0", line) for line in lines[1:]]
        parts = "\n".join(re.sub(r"^ *- |^  \w+  +", "\0", line) for line in lines).split("\0")
        yield from (part.split("::\n")[0] for part in parts if part.strip())


def passages(name: str) -> Iterator[Passage]:
    """Yield the passages of a file of the repository."""
    text = (ROOT / name).read_text()
    if name == "CHANGELOG.md":
        text = text[: text.find("\n## [", text.find("## [Unreleased]") + 5)]
    if name.endswith(".md"):
        yield from markdown(text)
    elif name.endswith(".py"):
        yield from python(text)
    else:
        for match in re.finditer(r"(?:^ *#.*\n)+|(?<= )#.*", text, re.MULTILINE):
            yield Passage(text[: match.start()].count("\n") + 1, "comment", re.sub(r"^ *# ?", "", match[0], flags=re.M))


def findings(name: str) -> Iterator[str]:
    """Yield what is wrong with a file, as ``file:line: what, and what to write``."""
    for line, kind, text in passages(name):
        for sentence in sentences(text):
            for match in _HOUSE.finditer(sentence):
                yield f"{name}:{line}: {match[0]!r}: {list(HOUSE_WORDS.values())[int(str(match.lastgroup)[1:])]}"
            if kind != "label" and (count := words(sentence)) > (limit := 20 if kind == "error" else 25):
                yield f"{name}:{line}: {count} words, at most {limit}: {sentence[:70]} ..."
        if kind == "summary" and re.match(r"(See|The same)\b", text):
            yield f"{name}:{line}: {text[:40]!r} is no summary: say what it does"


def files() -> list[str]:
    """List the files that hold prose."""
    return subprocess.check_output(["git", "ls-files", *SEEN], cwd=ROOT, text=True).split()


def measure(names: Iterable[str]) -> dict[str, float]:
    """Measure the sentences of pages and docstrings: how many, their mean length, and the share over 25 words."""
    read = (passage for name in names for passage in passages(name) if passage.kind in _READ)
    lengths = [words(sentence) for passage in read for sentence in sentences(passage.text)]
    over = sum(length > 25 for length in lengths) / len(lengths)
    mean = sum(lengths) / len(lengths)
    return {"sentences": len(lengths), "mean_sentence_words": mean, "sentences_over_25_words_share": over}


def problems() -> list[str]:
    """List all findings of files and of commit subjects."""
    wrong = [finding for name in files() for finding in findings(name)]
    log = subprocess.run(
        ["git", "log", "--no-merges", "--format=%s", COMMITS], cwd=ROOT, capture_output=True, text=True
    )
    return wrong + [
        f"commit {subject!r}: over 72 characters" for subject in log.stdout.splitlines() if len(subject) > 72
    ]


if __name__ == "__main__":
    wrong = problems()
    print(*wrong, *(f"{key} {value:.4g}" for key, value in measure(files()).items()), sep="\n")
    sys.exit(bool(wrong))
