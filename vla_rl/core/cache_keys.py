"""Keys of derived results: a result is used again only under the digest of everything that can change it.

A key that leaves an ingredient out counts another result as its own; one ingredient too many only costs a repetition.
"""

import dataclasses
import functools
import hashlib
import importlib
import json
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vla_rl.core.errors import UserError
from vla_rl.core.files import digest_of, write_atomic

KEY_LENGTH = 12
_SOURCES = frozenset({".py", ".xml", ".yaml", ".yml", ".json", ".toml", ".urdf"})


def cache_key(ingredients: Any) -> str:
    """Return the key of a result, twelve hexadecimal digits.

    Args:
        ingredients: Everything that can change the result: plain data, dataclasses and paths, nested in any way. A
            path stands for the names and the content of all files there.

    Example:
        >>> cache_key({"seed": 0, "steps": 100}) == cache_key({"steps": 100, "seed": 0})
        True
    """
    text = json.dumps(ingredients, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def claim(file: Path, key: str, found: str, made: bool = False) -> None:
    """Note in `file` the key of what is made beside it.

    Raises:
        UserError: If something was ``made`` there already under another key or none. ``found`` says what, and the
            remedy.
    """
    known = file.read_text().strip() if file.exists() else None
    if known != key and (made or known is not None):
        raise UserError(found)
    if known is None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, f"{key}\n".encode())


@functools.cache
def code_digest(*modules: str) -> str:
    """Return the digest of the source files of modules, and of packages with all that is in them."""
    files = [entry for module in sorted(set(modules)) for entry in _source_files(module)]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def package_versions(*packages: str) -> dict[str, str]:
    """Return the installed version of each package, "" for one that is not installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found


def _plain(value: Any) -> Any:
    """Turn what JSON does not know into plain data."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        files = sorted(file for file in value.rglob("*") if file.is_file()) if value.is_dir() else [value]
        return [[file.relative_to(value).as_posix(), digest_of(file)] for file in files]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value)
    return value.tolist()  # numpy's


def _source_files(module: str) -> list[tuple[str, str, str]]:
    """List the source files of a module or package: its name, the file's and its digest."""
    found = importlib.import_module(module)
    folders = [Path(folder) for folder in getattr(found, "__path__", ())]
    files = [(file, folder) for folder in folders for file in sorted(folder.rglob("*")) if file.suffix in _SOURCES]
    if not folders and getattr(found, "__file__", None):
        files.append((Path(str(found.__file__)), Path(str(found.__file__)).parent))
    return [(module, file.relative_to(folder).as_posix(), digest_of(file)) for file, folder in files]
