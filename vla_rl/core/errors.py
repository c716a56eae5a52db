"""Errors that a user can mend: one clear line that says what was found, what was expected and what to do."""

import difflib
import traceback
from collections.abc import Iterable


class UserError(Exception):
    """Bad input or a bad surrounding (config, name, file, disk). The command line prints it on one line and exits
    with code 2.
    """


class ConfigError(UserError):
    """A configuration key or value that does not fit."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged, or was made for another task or robot."""


class StoreError(UserError):
    """An episode store that is missing, damaged, or of another version."""


def one_line(error: BaseException, longest: int = 300) -> str:
    """What an error says, on one line that a terminal can show: nothing in it is a control character."""
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)[:longest]


def raised(error: BaseException) -> str:
    """What somebody else's code raised, and where: kind, words, file and line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {one_line(error)}{where}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence about an unknown name: the nearest known name if one is near, and the list of all.

    >>> did_you_mean("PegInsrt", ["PegInsert", "Handover"])
    " Did you mean 'PegInsert'? Known: Handover, PegInsert."
    """
    names = sorted(known)
    by_lower_case = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.6)
    guess = f" Did you mean {by_lower_case[near[0]]!r}?" if near else ""
    return f"{guess} Known: {', '.join(names) or 'none'}."
