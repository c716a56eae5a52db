"""Tables in the README and the docs, generated from docs/results/*.json so that no figure is ever copied by hand.

A page marks a table's place with ``<!-- results: NAME -->`` and ``<!-- end of results -->``; what stands between is
replaced.
"""

import importlib
import json
import re
from pathlib import Path

from vla_rl.core.files import write_atomic

_PLACE = re.compile(r"(<!-- results: (?P<name>[\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def pages(root: Path) -> list[Path]:
    """The pages that may hold tables."""
    named = [root / "README.md", root / "SECURITY.md"]
    return [page for page in [*named, *sorted((root / "docs").glob("*.md"))] if page.exists()]


def with_tables(text: str, results: Path, only: str | None = None) -> str:
    """A page's text with the tables of all benchmarks, or of one, renewed. What has not been run is said to be so."""

    def render(place: re.Match[str]) -> str:
        if only not in (None, place["name"]):
            return place[0]
        file = results / f"{place['name']}.json"
        if not file.exists():
            return f"{place[1]}Not measured yet: `python -m benchmarks {place['name']}`.\n{place[3]}"
        benchmark = importlib.import_module(f"benchmarks.{place['name'].replace('-', '_')}")
        return f"{place[1]}{benchmark.table(json.loads(file.read_text())).strip()}\n{place[3]}"

    return _PLACE.sub(render, text)


def renew_tables(root: Path, results: Path, name: str) -> None:
    """Rewrite the tables of a benchmark on all pages under ``root``."""
    for page in pages(root):
        text = page.read_text()
        renewed = with_tables(text, results, name)
        if renewed != text:
            write_atomic(page, renewed.encode())
