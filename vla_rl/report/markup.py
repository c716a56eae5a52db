"""The HTML elements of the pages, and a page as one file. Terms of the glossary have tooltips."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic
from vla_rl.report.wording import GLOSSARY, count

UNKNOWN = "\N{EN DASH}"
"""The cell of a table for an unknown figure."""

# The browser refuses every other script, and everything that is not in the file.
_CONTENT_POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; script-src {}"
_MAX_PROBLEMS = 4
_LIBRARY = "uplot"  # https://github.com/leeoniya/uPlot, with its license beside it
_LONGEST_FIRST = sorted((re.escape(html.escape(name)) for name in GLOSSARY), key=len, reverse=True)
_TERMS = re.compile(rf"\b({'|'.join(_LONGEST_FIRST)})\b", re.IGNORECASE)


def explained(words: str) -> str:
    """Return words as HTML; the first use of each term of the glossary has a tooltip."""
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
    """Render all terms with their meanings, folded."""
    entries = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(words)}</dd>" for name, words in GLOSSARY.items())
    return section("Words", f"<details><summary>{count(len(GLOSSARY), 'word')}</summary><dl>{entries}</dl></details>")


def legend(names: dict[str, str]) -> str:
    """Render the meanings of colors: style -> words."""
    return "".join(f'<span class="key fill-{style}"></span>{html.escape(words)}' for style, words in names.items())


def section(title: str, body: str, name: str = "") -> str:
    """Render a section; ``name`` is its anchor, if any."""
    anchor = f' id="{name}"' if name else ""
    return f"<section{anchor}><h2>{html.escape(title)}</h2>{body}</section>\n"


def lead(words: str) -> str:
    """Render the words that begin a section."""
    return f'<p class="lead">{explained(words)}</p>'


def missing(words: str) -> str:
    """Render the words for something that does not exist yet."""
    return f'<p class="missing">{html.escape(words)}</p>'


def problems(found: Sequence[str]) -> str:
    """Render the first few sentences on what could not be read."""
    more = len(found) - _MAX_PROBLEMS
    sentences = [*found[:_MAX_PROBLEMS], *([f"And {count(more, 'more problem')} like these."] if more > 0 else [])]
    return "".join(f'<p class="problem">{html.escape(sentence)}</p>' for sentence in sentences)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Render a table of at least one row: name of a column -> HTML of the cell. Spaces alone are no name."""
    head = "".join(f"<th>{explained(name)}</th>" if name.strip() else "<td></td>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row.values()) + "</tr>" for row in rows)
    scrolls = 'class="scroll" tabindex="0" role="group" aria-label="table"'
    return f"<div {scrolls}><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def embedded(data: Any) -> str:
    """Return data for the page's script; no text in it can end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def page_of(title: str, headline: str, chips: Iterable[str], parts: Sequence[str], unread: Sequence[str] = ()) -> str:
    """Return a page as one file: title, the result as headline, chips of short facts, and sections as HTML.

    ``unread`` are sentences on what could not be read.
    """
    files = resources.files("vla_rl.report")
    style = "".join(files.joinpath(name).read_text() for name in (f"{_LIBRARY}/uplot.min.css", "style.css"))
    scripts = [files.joinpath(name).read_text() for name in (f"{_LIBRARY}/uplot.min.js", "report.js")]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    policy = _CONTENT_POLICY.format(" ".join(f"'sha256-{digest}'" for digest in digests))
    facts = "".join(f"<li>{html.escape(chip)}</li>" for chip in chips)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">
<title>{html.escape(title)}: {html.escape(headline)}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{html.escape(title)}</h1><p class="headline">{html.escape(headline)}</p>
{f'<ul class="facts">{facts}</ul>' if facts else ""}{problems(unread)}</header>
<main>{"".join(parts)}</main>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def save_page(file: Path, page: str) -> Path:
    """Write a page and return its path. Raises UserError if it cannot be written."""
    try:
        write_atomic(file, page.encode())
    except OSError as error:
        raise UserError(f"cannot write the report {file}: {error.strerror}") from error
    return file
