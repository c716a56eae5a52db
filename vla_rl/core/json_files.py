"""Reads and writes files that decide how something behaves: sizes bounded, JSON strict, digests over all that decides.

Wrong content of a file is a ValueError here, a refusal of the system an OSError. The reader of each kind of file adds
the file and what to do. Nothing that a file carries is ever executed.
"""

import contextlib
import hashlib
import json
import math
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vla_rl.core.errors import CheckpointError, UserError, one_line
from vla_rl.core.files import write_atomic

SEAL = "content_sha256"
"""The key of a description under which the digest over all its other keys stands."""
LARGEST_TEXT = 64 * 2**20  # bytes
DEEPEST = 64  # levels of JSON, ours has a dozen


@contextlib.contextmanager
def reading(file: Path, remedy: str) -> Iterator[None]:
    """Whatever goes wrong inside over a file is one line: what was refused or is damaged, and the remedy."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or one_line(error)}; {remedy}") from error
    except Exception as error:  # numpy, torch, safetensors, zip and codecs raise a dozen kinds for a damaged file
        raise CheckpointError(f"{file} is damaged ({type(error).__name__}: {one_line(error)}); {remedy}") from error


def read_bytes(file: Path, largest: int | None = None) -> bytes:
    """Return the content of an ordinary file. Raises ValueError for another kind, or one of more bytes."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):  # a pipe would wait, a device never end
        raise ValueError(f"{file.name} is no ordinary file")
    if largest is not None and found.st_size > largest:
        raise ValueError(f"{file.name} has {found.st_size} bytes, at most {largest} are read")
    with file.open("rb") as stream:
        return stream.read(found.st_size + 1)


def read_json(file: Path, finite: bool = True) -> Any:
    """Return the content of a JSON file, see `parse_json`."""
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
