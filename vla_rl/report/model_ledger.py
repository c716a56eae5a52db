"""The ledger of world models in the report: what each round's model predicts, and whether practice used it."""

from typing import Any

from vla_rl.report.markup import lead, section, table
from vla_rl.report.run_files import Run

_SHARES = {
    "unexplained, data of the model": "imagined_unexplained",
    "older episodes, unseen": "imagined_unexplained_older",
    "newest episodes, unseen": "imagined_unexplained_newest",
}


def model_ledger(run: Run) -> str:
    """Render a row for each round that has fitted a world model; empty without one."""
    rounds: dict[int, dict[str, Any]] = {}
    for record in run.records("train"):
        if any(name.startswith("imagined_") for name in record):
            rounds[int(record["round"])] = record
    if not rounds:
        return ""
    rows = []
    for number, record in sorted(rounds.items()):
        shares = {title: _shown(record.get(name), "{:.0%}") for title, name in _SHARES.items()}
        accepted = "no: nothing was imagined" if record.get("imagined_stopped") else "yes"
        gain = _shown(record.get("imagined_gain"), "{:+.3f}")
        rows.append({"round": str(number), **shares, "accepted": accepted, "imagined gain": gain})
    words = (
        "Each round fits a world model anew. The shares are what it leaves unexplained of the change within a chunk. "
        "The out-of-distribution check compares the newest episodes with older ones, which its model has not seen. "
        "A high imagined gain says nothing: it is as high in a wrong world."
    )
    return section("The world model of each round", lead(words) + table(rows))


def _shown(number: Any, form: str) -> str:
    return form.format(number) if isinstance(number, int | float) else "not checked"
