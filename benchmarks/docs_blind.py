"""Print paragraphs of an earlier version of the pages beside today's, in random order, for a judge who prefers A or B.

An old paragraph is drawn by the seed. Its counterpart is today's paragraph with the most shared rare words. The key,
which of both is today's, goes into a file.

Example: python -m benchmarks.docs_blind --before 5432f13 --key key.json
"""

import argparse
import json
import math
import random
import re
import subprocess
from collections import Counter
from pathlib import Path

from benchmarks.docs_commands import ROOT, pages
from benchmarks.prose import markdown, words

BEFORE = "5432f13"
FEWEST_WORDS, MOST_WORDS = 35, 110
SHARED = 0.6  # of the old words; below, the paragraph was split, moved to a table, or left out


def paragraphs(texts: dict[str, str]) -> list[tuple[str, str]]:
    """Return (page, paragraph) of all pages."""
    found = [(page, piece.text) for page, text in texts.items() for piece in markdown(text) if piece.kind == "page"]
    return [(page, text) for page, text in found if FEWEST_WORDS <= words(text) <= MOST_WORDS]


def before(revision: str) -> dict[str, str]:
    """Return the pages of a revision of the repository, by name."""
    git = ["git", "-C", str(ROOT)]
    listed = [*git, "ls-tree", "-r", "--name-only", revision, "README.md", "docs"]
    names = subprocess.check_output(listed, text=True).split()
    chosen = [name for name in names if name.endswith(".md")]
    return {name: subprocess.check_output([*git, "show", f"{revision}:{name}"], text=True) for name in chosen}


def pairs(revision: str, count: int, seed: int) -> list[dict[str, str]]:
    """Draw old paragraphs whose text has changed, each with its counterpart of today."""
    now = {str(page.relative_to(ROOT)): page.read_text() for page in pages()}
    new = paragraphs(now)
    bags = [set(re.findall(r"[a-z_]{3,}|\d[\d.,]*", text.lower())) for _, text in new]
    seen = Counter(word for bag in bags for word in bag)
    old = sorted(paragraphs(before(revision)))
    random.Random(seed).shuffle(old)
    drawn: list[dict[str, str]] = []
    for page, text in old:
        bag = set(re.findall(r"[a-z_]{3,}|\d[\d.,]*", text.lower()))
        scores = [sum(math.log(len(new) / seen[word]) for word in bag & other) / len(other) ** 0.5 for other in bags]
        at = max(range(len(new)), key=scores.__getitem__)
        if len(bag & bags[at]) >= SHARED * len(bag) and new[at][1] != text and len(drawn) < count:
            drawn.append({"old_page": page, "old": text, "new_page": new[at][0], "new": new[at][1]})
    return drawn


def facts_lost(revision: str, count: int = 20, seed: int = 53) -> list[str]:
    """Return the numbers and the code of the drawn old paragraphs that stand on no page of today."""
    number, code = r"(?<![\w.])\d[\d,]*(?:\.\d+)?", r"`([^`]+)`"
    now = "\n".join(page.read_text() for page in pages())
    old = "\n".join(pair["old"] for pair in pairs(revision, count, seed))
    lost = {*re.findall(number, old)}.difference(re.findall(number, now))
    return sorted(lost.union(name for name in re.findall(code, old) if name not in now))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default=BEFORE, help="revision of the old pages")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=53, help="of the draw")
    parser.add_argument("--order", type=int, default=0, help="seed of the order, another one for each pass")
    parser.add_argument("--key", type=Path, required=True, help="where the key is written")
    arguments = parser.parse_args()
    generator, key = random.Random(f"order {arguments.order}"), {}
    numbered = list(enumerate(pairs(arguments.before, arguments.count, arguments.seed), 1))
    generator.shuffle(numbered)
    for number, pair in numbered:
        sides = ["old", "new"]
        generator.shuffle(sides)
        key[number] = {"A": sides[0], "B": sides[1], "old_page": pair["old_page"], "new_page": pair["new_page"]}
        print(f"{number}\nA: {pair[sides[0]]}\nB: {pair[sides[1]]}\n")
    arguments.key.write_text(json.dumps(key, indent=1))


if __name__ == "__main__":
    main()
