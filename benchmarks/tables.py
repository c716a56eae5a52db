"""Tables in the README and the docs, generated from docs/results/*.json so that no figure is ever copied by hand.

A page marks a table's place with ``<!-- results: NAME -->`` and ``<!-- end of results -->``. The result of the
benchmark's function ``table``, or of the function after a dot (``NAME.summary``), replaces the text between.
"""

import importlib
import json
import re
from pathlib import Path

from vla_rl.core.files import write_atomic

_PLACE = re.compile(
    r"(?P<start><!-- results: (?P<name>[\w-]+)(?:\.(?P<function>\w+))? -->\n).*?(?P<end><!-- end of results -->)",
    re.DOTALL,
)


def pages(root: Path) -> list[Path]:
    """The pages that may hold tables."""
    named = [root / "README.md", root / "SECURITY.md"]
    return [page for page in [*named, *sorted((root / "docs").rglob("*.md"))] if page.exists()]


def with_tables(text: str, results: Path, only: str | None = None) -> str:
    """A page's text with the tables of all benchmarks, or of one, renewed. Missing results are named as such."""

    def render(place: re.Match[str]) -> str:
        if only not in (None, place["name"]):
            return place[0]
        file = results / f"{place['name']}.json"
        if not file.exists():
            return f"{place['start']}Not measured yet: `python -m benchmarks {place['name']}`.\n{place['end']}"
        benchmark = importlib.import_module(f"benchmarks.{place['name'].replace('-', '_')}")
        render_result = getattr(benchmark, place["function"] or "table")
        return f"{place['start']}{render_result(json.loads(file.read_text())).strip()}\n{place['end']}"

    return _PLACE.sub(render, text)


def renew_tables(root: Path, results: Path, name: str) -> None:
    """Rewrite the tables of a benchmark on all pages under ``root``."""
    for page in pages(root):
        text = page.read_text()
        renewed = with_tables(text, results, name)
        if renewed != text:
            write_atomic(page, renewed.encode())
