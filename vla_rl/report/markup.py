"""The few kinds of HTML that the sections of the report are made of. Words of the glossary explain themselves."""

import html
import re
from collections.abc import Iterable, Sequence

from vla_rl.report.wording import GLOSSARY, count

_MAX_PROBLEMS = 4
_LONGEST_FIRST = sorted((re.escape(html.escape(name)) for name in GLOSSARY), key=len, reverse=True)
_TERMS = re.compile(rf"\b({'|'.join(_LONGEST_FIRST)})\b", re.IGNORECASE)


def explained(words: str) -> str:
    """Words as HTML; the first place of each word of the glossary shows its meaning to the mouse, a touch or a key."""
    known: set[str] = set()

    def mark(found: re.Match[str]) -> str:
        name = html.unescape(found[0]).lower()
        if name in known:
            return found[0]
        known.add(name)
        tip = html.escape(GLOSSARY[name])
        return f'<span class="term" tabindex="0">{found[0]}<span class="tip" role="note">{tip}</span></span>'

    return _TERMS.sub(mark, html.escape(words))


def glossary() -> str:
    """All words with their meanings, folded."""
    entries = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(words)}</dd>" for name, words in GLOSSARY.items())
    return section("Words", f"<details><summary>{count(len(GLOSSARY), 'word')}</summary><dl>{entries}</dl></details>")


def legend(names: dict[str, str]) -> str:
    """Style of a colour -> what it stands for."""
    return "".join(f'<span class="key fill-{style}"></span>{html.escape(words)}' for style, words in names.items())


def section(title: str, body: str, name: str = "") -> str:
    """A section; ``name``, if any, is what links jump to."""
    anchor = f' id="{name}"' if name else ""
    return f"<section{anchor}><h2>{html.escape(title)}</h2>{body}</section>\n"


def lead(words: str) -> str:
    """What a section shows."""
    return f'<p class="lead">{explained(words)}</p>'


def missing(words: str) -> str:
    """What is not there yet."""
    return f'<p class="missing">{html.escape(words)}</p>'


def problems(found: Sequence[str]) -> str:
    """What could not be read, the first few of it."""
    more = len(found) - _MAX_PROBLEMS
    sentences = [*found[:_MAX_PROBLEMS], *([f"And {count(more, 'more problem')} like these."] if more > 0 else [])]
    return "".join(f'<p class="problem">{html.escape(sentence)}</p>' for sentence in sentences)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; heads are words, cells are HTML."""
    head = "".join(f"<th>{explained(name)}</th>" if name else "<td></td>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    scrolls = 'class="scroll" tabindex="0" role="group" aria-label="table"'
    return f"<div {scrolls}><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
