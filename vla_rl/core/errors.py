"""Errors that a user can fix: one clear line with what was found, what was expected and what to do."""

import difflib
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

# The base install is what the computer on a robot needs; which extra brings what else.
_EXTRAS = {
    "train": ("torch", "lerobot", "mujoco", "gymnasium", "tensorboard", "PIL", "scipy", "rich"),
    "vlm": ("transformers",),
    "trt": ("onnx", "onnx_ir", "onnxscript", "polygraphy"),
    "viz": ("rerun",),
    "sign": ("cryptography",),
    "serve": ("websockets", "zmq"),
}


class UserError(Exception):
    """Report bad input or a bad environment (config, name, file, disk).

    The command line prints the message on one line and exits with code 2.

    Example:
        >>> try:
        ...     load_policy("runs/nothing")
        ... except UserError as error:
        ...     print(error)
        runs/nothing holds no run (policies/), no policy (config.json) and no deployment
    """


class ConfigError(UserError):
    """A configuration key or value that does not fit."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged, or was made for another task or robot."""


class StoreError(UserError):
    """An episode store that is missing, damaged, or of another version."""


class DamagedError(StoreError):
    """A file whose content is not what was written. The doctor sets aside only such files."""


def missing_extra(error: ModuleNotFoundError, what: str) -> str:
    """Return which extra brings the package that ``what`` lacks, in a sentence; empty if none does."""
    package = (error.name or "").split(".")[0]
    extra = next((name for name, packages in _EXTRAS.items() if package in packages), None)
    return f"{what} needs the package {error.name!r}, which is not installed; install vla-rl[{extra}]" if extra else ""


def one_line(error: BaseException, longest: int = 300) -> str:
    """Return what an error says, on one line that a terminal can show: nothing in it is a control character."""
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)[:longest]


def raised(error: BaseException) -> str:
    """Return what foreign code raised, and where: kind, words, file and line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not in_library(Path(frame.filename))] or frames
    where = f", at {own[-1].filename}:{own[-1].lineno}" if own else ""
    return f"{type(error).__name__}: {one_line(error)}{where}"


def in_library(file: Path) -> bool:
    """Return whether a file belongs to Python or to an installed package, or is none at all (``<string>``)."""
    installed = {"site-packages", "dist-packages"}.intersection(file.parts)
    return bool(installed) or not file.is_absolute() or file.is_relative_to(sysconfig.get_path("stdlib"))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the nearest known name if one is near, and the list of all.

    >>> did_you_mean("PegInsrt", ["PegInsert", "Handover"])
    " Did you mean 'PegInsert'? Known: Handover, PegInsert."
    """
    names = sorted(known)
    by_lower_case = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.6)
    guess = f" Did you mean {by_lower_case[near[0]]!r}?" if near else ""
    return f"{guess} Known: {', '.join(names) or 'none'}."
