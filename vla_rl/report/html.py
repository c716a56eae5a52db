"""`report.html` of a run: one file with everything inside (style, SVG, pictures as data URIs), no script, no network.

It is built from the run folder alone, at any moment of a run or after a crash.
"""

import html
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic
from vla_rl.report import sections
from vla_rl.report.run_files import Run, read_run
from vla_rl.report.wording import headline

# The browser itself refuses scripts and whatever is not in the file.
_CONTENT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def build_report(run_dir: Path) -> Path:
    """Write ``report.html`` into a run folder and return its path.

    Raises:
        UserError: if the folder holds nothing of a run, or cannot be written to. Other missing or damaged parts are
            left out with a sentence.
    """
    run = read_run(run_dir)
    parts = [
        sections.success(run),
        sections.clips(run),
        sections.traces(run),
        sections.calibration(run),
        sections.training(run),
        sections.collection(run),
        sections.machine(run),
        sections.config(run),
    ]
    file = run_dir / "report.html"
    try:
        write_atomic(file, _page(run, parts).encode())
    except OSError as error:
        raise UserError(f"cannot write the report {file}: {error.strerror}") from error
    return file


def _page(run: Run, parts: Sequence[str]) -> str:
    facts = {
        "task": run.summary.get("task"),
        "algorithm": run.summary.get("algorithm"),
        "seed": run.summary.get("seed"),
    }
    known = {name: str(value) for name, value in facts.items() if value is not None}
    title = known.get("task", run.path.resolve().name)
    style = resources.files("vla_rl.report").joinpath("style.css").read_text()
    chips = _chips(f"{name} {value}" for name, value in known.items() if name != "task")
    problems = "".join(f'<p class="problem">{html.escape(problem)}</p>' for problem in run.problems)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{html.escape(_CONTENT_POLICY)}">
<title>{html.escape(title)}: {html.escape(headline(run))}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{html.escape(title)}</h1><p class="headline">{html.escape(headline(run))}</p>{chips}{problems}</header>
<main>{"".join(parts)}</main>
</body>
</html>
"""


def _chips(words: Iterable[str]) -> str:
    return '<ul class="facts">' + "".join(f"<li>{html.escape(word)}</li>" for word in words) + "</ul>"
