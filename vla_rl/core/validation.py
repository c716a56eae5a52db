"""Checks of what comes from outside: files (sizes bounded, JSON strict, digests over all that decides) and options.

What is wrong with a file's content is a ValueError here, what the system refuses an OSError; whoever reads a kind of
file says which file it is and what to do. Nothing that a file carries is ever executed.
"""

import contextlib
import hashlib
import json
import math
import operator
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vla_rl.core.errors import CheckpointError, ConfigError, UserError, one_line
from vla_rl.core.files import write_atomic

SEAL = "content_sha256"
"""The key of a description under which the digest over all its other keys stands."""
LARGEST_TEXT = 64 * 2**20  # bytes
DEEPEST = 64  # levels of JSON, ours has a dozen
LARGEST_NUMBER = 1e9  # of a statistic or a scale, in anybody's units
_INTERVAL = re.compile(r"([\[(])\s*([^,]+),\s*([^\])]+)([\])])")
_SIDES = {">=": operator.ge, ">": operator.gt}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", re.ASCII)


@contextlib.contextmanager
def reading(file: Path, remedy: str, kind: type[UserError] = CheckpointError) -> Iterator[None]:
    """Whatever goes wrong inside over a file is one line: what was refused or is damaged, and the remedy."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise kind(f"cannot read {file}: {error.strerror or one_line(error)}; {remedy}") from error
    except Exception as error:  # numpy, torch, safetensors, zip and codecs raise a dozen kinds for a damaged file
        raise kind(f"{file} is damaged ({type(error).__name__}: {one_line(error)}); {remedy}") from error


def read_bytes(file: Path, largest: int | None = None) -> bytes:
    """The content of an ordinary file of at most so many bytes. Raises ValueError for another kind or a larger one."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):  # a pipe would wait, a device never end
        raise ValueError(f"{file.name} is no ordinary file")
    if largest is not None and found.st_size > largest:
        raise ValueError(f"{file.name} has {found.st_size} bytes, at most {largest} are read")
    with file.open("rb") as stream:
        return stream.read(found.st_size + 1)


def read_json(file: Path, finite: bool = True) -> Any:
    """The content of a JSON file, see `parse_json`."""
    return parse_json(read_bytes(file, LARGEST_TEXT), finite)


def parse_json(content: bytes | str, finite: bool = True) -> Any:
    """Strict JSON: UTF-8, no key twice, at most `DEEPEST` levels, integers of 64 bits, with ``finite`` no NaN nor
    infinity. Raises ValueError.
    """
    try:
        text = content if isinstance(content, str) else content.decode()
        value = json.loads(text, object_pairs_hook=_without_twins, parse_int=_integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_tree(value, most=len(text), finite=finite)
    return value


def check_tree(value: Any, most: int, finite: bool = True) -> None:
    """Raise ValueError for plain data of more than `DEEPEST` levels or ``most`` nodes, or with ``finite`` for a number
    that is not finite. Aliases in YAML make exponentially many nodes of few lines.
    """
    level, count = [value], 1
    for _ in range(DEEPEST):
        if finite and any(isinstance(node, float) and not math.isfinite(node) for node in level):
            raise ValueError("a number in it is not finite")
        inner = [node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list)]
        if not inner:
            return
        count += sum(map(len, inner))
        if count > most:
            raise ValueError(f"it holds more than {most} values")
        level = [child for children in inner for child in children]
    raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def sealed(content: Mapping[str, Any], finite: bool = True) -> dict[str, Any]:
    """Plain data with the digest over all of it, for `check_seal`. With ``finite``, ValueError for NaN and infinity."""
    plain = json.loads(json.dumps(content, allow_nan=not finite))
    return {**plain, SEAL: _digest(plain)}


def write_sealed(file: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file that decides how something behaves; it carries the digest over all of itself."""
    write_atomic(file, json.dumps(sealed(content), indent=1).encode())


def check_seal(content: Any) -> None:
    """Raise ValueError if data is not what `sealed` gave."""
    if not isinstance(content, dict):
        raise ValueError(f"it is a {type(content).__name__}, expected a mapping")
    if SEAL not in content:
        raise ValueError(f"it has no {SEAL}")
    if content[SEAL] != _digest({key: value for key, value in content.items() if key != SEAL}):
        raise ValueError("its content is not the one that its digest was taken of")


def plain_name(name: Any) -> str:
    """A name from a file that may be joined to a folder. Raises ValueError for anything that could lead elsewhere."""
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
        raise ValueError(f"{str(name)[:120]!r} is not the name of a file beside it")
    return name


def check_version(version: Any) -> int:
    """A policy's version. Raises ValueError unless it is an integer of at least -1 that a folder can be named by."""
    if type(version) is not int or not -1 <= version < 10**9:
        raise ValueError(f"the policy version is {str(version)[:80]!r}; expected an integer of at least -1")
    return version


def check_vector(
    name: str, values: Sequence[float], size: int, least: float = -LARGEST_NUMBER, most: float = LARGEST_NUMBER
) -> None:
    """Raise ValueError unless values are ``size`` finite numbers from ``least`` to ``most``."""
    if len(values) != size:
        raise ValueError(f"{name} has {len(values)} numbers, expected {size}")
    for value in values:
        if not least <= value <= most:  # nor is NaN
            raise ValueError(f"{name} holds {value}, expected are numbers from {least:g} to {most:g}")


def _digest(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _integer(text: str) -> int:
    if len(text) > 20:  # of 64 bits
        raise ValueError(f"the number {text[:40]} is too large")
    return int(text)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands in it twice")
    return found


def check_ranges(section: Any, name: str, **ranges: str) -> None:
    """Refuse an option that is outside its range; NaN is outside every range.

    Args:
        section: Config that has the options as attributes. A list is within a range if each of its numbers is.
        name: Name of the section, for the error; empty for the top level.
        ranges: Option -> ``>= 1``, ``> 0``, or an interval such as ``[0, 1)``.

    Raises:
        ConfigError: With option, value and range.

    Example:
        >>> from types import SimpleNamespace
        >>> check_ranges(SimpleNamespace(learning_rate=-1), "actor", learning_rate="> 0")
        Traceback (most recent call last):
        ...
        vla_rl.core.errors.ConfigError: actor.learning_rate is -1; expected > 0
    """
    for option, expected in ranges.items():
        value = getattr(section, option)
        numbers = value if isinstance(value, tuple | list) else (value,)
        if not numbers or not all(_is_within(number, expected) for number in numbers):
            key = f"{name}.{option}" if name else option
            kind = "a number in " if expected[0] in "[(" else ""
            raise ConfigError(f"{key} is {value}; expected {kind}{expected}")


def _is_within(number: float, expected: str) -> bool:
    if found := _INTERVAL.fullmatch(expected):
        opens, low, high, closes = found.groups()
        above = number >= float(low) if opens == "[" else number > float(low)
        return above and (number <= float(high) if closes == "]" else number < float(high))
    sign, bound = expected.split()
    return math.isfinite(number) and bool(_SIDES[sign](number, float(bound)))
