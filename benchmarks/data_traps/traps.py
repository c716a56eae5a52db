"""What a trap is: a small input of a kind that public bug reports describe, and the check of what comes of it.

A trap is one function. It builds its input in an empty folder, sends it through a public entry point and returns what
was printed or computed. It raises `SilentlyWrong` if a wrong value came through without a word. A `UserError` counts as
a refusal, which must name its remedy.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.docs_commands import ROOT
from vla_rl.core.errors import UserError, one_line

Meet = Callable[[Path], str]
Verdict = Literal["right", "refused", "refused without remedy", "silently wrong", "traceback"]


class SilentlyWrong(Exception):
    """A wrong value came through without a word."""


@dataclass(frozen=True)
class Trap:
    """One input and the check of it.

    Attributes:
        kind: Kind of defect, in a few words; traps of one kind share a mend.
        input: The input, in one sentence.
        remedy: Text that a refusal must contain: the option or command that helps. Empty: the input must be accepted.
        meet: The function that builds the input and checks the result.
    """

    kind: str
    input: str
    remedy: str
    meet: Meet


@dataclass(frozen=True)
class Outcome:
    """What came of one trap.

    Attributes:
        kind, input: As in `Trap`.
        verdict: ``right``, ``refused`` with the remedy named, ``refused without remedy``, ``silently wrong`` or
            ``traceback``.
        printed: What the user sees, in one line.
    """

    kind: str
    input: str
    verdict: Verdict
    printed: str

    def to_plain(self) -> dict[str, Any]:
        """Return the outcome as JSON data."""
        return asdict(self)


TRAPS: list[Trap] = []


def trap(kind: str, input: str, remedy: str = "") -> Callable[[Meet], Meet]:
    """Register a function as a trap. Arguments as in `Trap`."""

    def register(meet: Meet) -> Meet:
        TRAPS.append(Trap(kind, input, remedy, meet))
        return meet

    return register


def expect(right: bool, wrong: str) -> None:
    """Raise `SilentlyWrong` with what is wrong unless the value that came through is right."""
    if not right:
        raise SilentlyWrong(wrong)


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect what the package and its plug-ins log."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(lambda record: record.name.startswith("vla_rl"))
    logging.getLogger().addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger().removeHandler(handler)


def meet(found: Trap, folder: Path) -> Outcome:
    """Run one trap in an empty folder and return what came of it."""

    def outcome(verdict: Verdict, printed: str) -> Outcome:
        shown = printed.replace(str(folder), "FOLDER").replace(f"{ROOT}/", "")
        return Outcome(found.kind, found.input, verdict, " ".join(shown.split())[:600])

    try:
        return outcome("right", found.meet(folder))
    except SilentlyWrong as error:
        return outcome("silently wrong", str(error))
    except UserError as error:
        named = bool(found.remedy) and found.remedy in str(error)
        return outcome("refused" if named else "refused without remedy", one_line(error, 900))
    except Exception as error:  # any other exception reaches the user as a traceback
        return outcome("traceback", f"{type(error).__name__}: {error}")
