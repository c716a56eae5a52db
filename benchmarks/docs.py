"""Whether the documentation is true: commands that run, options that are explained, how soon the demo shows something.

Example: python -m benchmarks docs
"""

import argparse
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import docs_public, prose
from benchmarks.docs_blind import BEFORE, facts_lost
from benchmarks.docs_commands import ROOT, Command, commands, pages, run_command, workplace
from vla_rl.core.json_files import read_json

_PATIENCE_S = 60.0
_COUNTED = (
    "prose_findings",
    "mean_sentence_words",
    "sentences_over_25_words_share",
    "readme_lines",
    "pages_over_200_lines",
    "public",
    "public_without_example",
    "house_questions_under_a_minute",
    "blind_new_preferred",
    "blind_facts_lost",
)
JUDGMENTS = ROOT / "docs" / "results" / "docs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep-commands", action="store_true", help="run no command anew, keep how they ended")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Build the site, run the commands, start the demo."""
    known = json.loads((options.out / "docs.json").read_text()) if options.keep_commands else {}
    first = known.get("first_picture_s") if options.keep_commands else first_picture_s()
    every = [command for page in pages() for command in commands(page)]
    ended = {name: known[name] for name in known if name.startswith("commands") or name == "failed"}
    if known:
        ended["commands_of"] = known.get("commands_of", known["machine"]["versions"]["vla-rl"])
    return {
        "pages": site_pages(),
        **(ended or run_all(every)),
        "options_documented_share": runpy.run_path(str(ROOT / "docs" / "reference.py"))["documented_share"](),
        **({} if first is None else {"first_picture_s": first}),
        **prose_figures(),
        "public": len(docs_public.public()),
        "public_without_example": len(docs_public.without_example()),
        **judged(),
    }


def judged() -> dict[str, Any]:
    """Count what a language model judged: which file a question names, and which of two paragraphs reads better."""
    asked, compared = ([*read_json(JUDGMENTS / f"{name}.json")] for name in ("questions", "blind"))
    majority = [pair["preferred"].count("new") > len(pair["preferred"]) / 2 for pair in compared]
    return {
        "house_questions": len(asked),
        "house_questions_under_a_minute": sum(question["found"] for question in asked),
        "blind_pairs": len(compared),
        "blind_new_preferred": sum(majority),
        "blind_judgments_new": sum(pair["preferred"].count("new") for pair in compared),
        "blind_facts_lost": len(facts_lost(BEFORE)),
        "judged_by": "one language model that knew the rules of style; no person judged or was timed",
    }


def questions(result: dict[str, Any]) -> str:
    """Return Markdown: each question, the file named from file names alone, and the file that is right."""
    del result
    rows = [
        f"| {each['question']} | `{each['answered']}` | {'yes' if each['found'] else f'no: `{each["right"]}`'} |"
        for each in read_json(JUDGMENTS / "questions.json")
    ]
    return "\n".join(["| Which file do I change to ... | first answer | right |", "|---|---|---|", *rows])


def blind(result: dict[str, Any]) -> str:
    """Return Markdown: each pair of paragraphs by its pages, and how many of the passes preferred the new one."""
    del result
    rows = [
        f"| `{each['old_page']}` | `{each['new_page']}` | {each['preferred'].count('new')} of 3 |"
        for each in read_json(JUDGMENTS / "blind.json")
    ]
    return "\n".join(["| before | now | now preferred |", "|---|---|---|", *rows])


def prose_figures() -> dict[str, float]:
    """Count the findings of the prose check, the length of sentences, and pages that are too long."""
    lines = {page: len(page.read_text().splitlines()) for page in pages()}
    return {
        "prose_findings": len(prose.problems()),
        **prose.measure(prose.files()),
        "readme_lines": lines.pop(ROOT / "README.md"),
        "pages_over_200_lines": sum(length > 200 for length in lines.values()),
    }


def site_pages() -> int:
    """Pages of the site, built strictly."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
        subprocess.run(command, cwd=ROOT, check=True)
        return len(list(Path(folder).rglob("index.html")))


def run_all(every: list[Command]) -> dict[str, Any]:
    """Run the commands that are run here, page by page; those of tests elsewhere count as run."""
    failed, once = [], dict[str, Command]()
    for command in every:
        once.setdefault(command.text, command)
    with tempfile.TemporaryDirectory() as folder, workplace(Path(folder) / "here"):
        names: dict[str, dict[str, object]] = {}
        for command in every:
            if command.unrun or command.run_elsewhere:
                continue
            try:
                code: int | str = run_command(command, names.setdefault(command.page, {}))
            except (Exception, SystemExit) as error:  # whatever it is, the page is wrong
                code = f"{type(error).__name__}: {error}"
            if code:
                failed.append({"page": command.page, "command": command.text, "ended_with": code})
    unrun = [
        {"page": command.page, "command": command.text, "reason": command.unrun} for command in every if command.unrun
    ]
    return {
        "commands": len(every),
        "commands_run": len(every) - len(unrun),
        "commands_run_elsewhere": sum(bool(command.run_elsewhere) for command in every),
        "commands_failed": len(failed),
        "commands_run_share": (len(every) - len(unrun)) / len(every),
        "failed": failed,
        "commands_unrun": unrun,
    }


def first_picture_s() -> float | None:
    """Seconds from the start of ``vla-rl demo`` to its first page that holds a picture; None if it serves none."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "vla_rl.cli.main", "demo", "--out", f"{folder}/run"]
        started_s = time.perf_counter()
        with log.open("w") as output:
            demo = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            while demo.poll() is None and time.perf_counter() - started_s < _PATIENCE_S:
                if (address := re.search(r"http://127\.0\.0\.1:\d+\S*", log.read_text())) and _has_picture(address[0]):
                    return time.perf_counter() - started_s
                time.sleep(0.1)
            return None
        finally:
            os.killpg(demo.pid, signal.SIGTERM)  # unlike SIGINT, a shell does not have it ignored in the background
            demo.wait()


def _has_picture(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}parts", timeout=5) as answer:  # what its script fills the page with
            return b"<img" in answer.read()
    except OSError:  # it is not there yet
        return False


def table(result: dict[str, Any]) -> str:
    """Markdown: what was run, and what was not and why."""
    reasons = Counter(command["reason"] for command in result["commands_unrun"])
    first = result.get("first_picture_s")
    rows = [
        f"| pages of the site | {result['pages']} |",
        f"| commands and blocks of Python | {result['commands']} |",
        f"| of them run by a test | {result['commands_run']} ({result['commands_run_share']:.0%}) |",
        f"| failed | {result['commands_failed']} |",
        *([f"| commands measured with version | {result['commands_of']} |"] if "commands_of" in result else []),
        *(f"| not run: {reason} | {number} |" for reason, number in reasons.most_common()),
        f"| options with a meaning | {result['options_documented_share']:.0%} |",
        *([f"| from the start of `vla-rl demo` to a picture | {first:.1f} s |"] if first is not None else []),
        *(f"| {key.replace('_', ' ')} | {result[key]:.3g} |" for key in _COUNTED if key in result),
    ]
    return "\n".join(["| | |", "|---|---|", *rows, "", f"Command: `{result['command']}`."])
