"""`report.html` of a run: one file with everything inside (style, script, SVG, pictures and videos as data URIs), no
network.

It is built from the run folder alone, at any moment of a run or after a crash.
"""

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic
from vla_rl.report import episode_sections, sections
from vla_rl.report.advice import next_steps
from vla_rl.report.failures import group_failures
from vla_rl.report.markup import glossary
from vla_rl.report.players import Redraw
from vla_rl.report.run_episodes import open_store, read_failures
from vla_rl.report.run_files import read_run
from vla_rl.report.wording import headline

# The browser itself refuses every script but ours, and whatever is not in the file.
_CONTENT_POLICY = (
    "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'"
)


def build_report(run_dir: Path, redraw: Redraw | None = None) -> Path:
    """Write ``report.html`` into a run folder and return its path.

    Args:
        run_dir: the run folder.
        redraw: see `vla_rl.report.players.player`.

    Raises:
        UserError: if the folder holds nothing of a run, or cannot be written to. Other missing or damaged parts are
            left out with a sentence.
    """
    run = read_run(run_dir)
    store = open_store(run_dir / "episodes", [])
    failures = group_failures(read_failures(run_dir / "traces", store, []) if store is not None else [])
    parts = [
        episode_sections.task(run, redraw),
        sections.success(run),
        next_steps(run, failures),
        episode_sections.clips(run, redraw),
        episode_sections.failures(failures, redraw),
        episode_sections.traces(run, redraw),
        episode_sections.foretold(run),
        sections.calibration(run),
        sections.training(run),
        sections.collection(run),
        sections.operators(run),
        sections.machine(run),
        glossary(),
        sections.config(run),
    ]
    facts = {
        "task": run.summary.get("task"),
        "algorithm": run.summary.get("algorithm"),
        "seed": run.summary.get("seed"),
    }
    known = {name: str(value) for name, value in facts.items() if value is not None}
    title = known.pop("task", run.path.resolve().name)
    chips = [f"{name} {value}" for name, value in known.items()]
    return save_page(run_dir / "report.html", page_of(title, headline(run), chips, parts, run.problems))


def page_of(title: str, told: str, chips: Iterable[str], parts: Sequence[str], problems: Sequence[str] = ()) -> str:
    """A page of sections, in one file.

    Args:
        title: what it is about.
        told: the result in a sentence.
        chips: short facts.
        parts: HTML of the sections.
        problems: sentences on what could not be read.
    """
    files = resources.files("vla_rl.report")
    style, script = (files.joinpath(name).read_text() for name in ("style.css", "report.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    facts = "".join(f"<li>{html.escape(chip)}</li>" for chip in chips)
    troubles = "".join(f'<p class="problem">{html.escape(problem)}</p>' for problem in problems)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{html.escape(_CONTENT_POLICY.format(digest))}">
<title>{html.escape(title)}: {html.escape(told)}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{html.escape(title)}</h1><p class="headline">{html.escape(told)}</p>
{f'<ul class="facts">{facts}</ul>' if facts else ""}{troubles}</header>
<main>{"".join(parts)}</main>
<script>{script}</script>
</body>
</html>
"""


def save_page(file: Path, page: str) -> Path:
    """Write a page and return its path.

    Raises:
        UserError: if it cannot be written.
    """
    try:
        write_atomic(file, page.encode())
    except OSError as error:
        raise UserError(f"cannot write the report {file}: {error.strerror}") from error
    return file
