"""Keys of derived results: a result is used again only under the digest of everything that can change it.

Evaluation stores, the frame cache, world models and their probes, engines and the cells of benchmarks are keyed here.
Whoever keeps a result names all its ingredients: settings as plain data or dataclasses, files and folders as paths,
code by its modules. A key that leaves an ingredient out counts another result as its own; one ingredient too many only
costs a repetition.
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

from vla_rl.core.files import digest_of

KEY_LENGTH = 12
_SOURCES = frozenset({".py", ".xml", ".yaml", ".yml", ".json", ".toml", ".urdf"})


def key_of(ingredients: Any) -> str:
    """Return the key of a result, twelve hexadecimal digits.

    Args:
        ingredients: Everything that can change the result: plain data, dataclasses and paths, nested in any way. A
            path stands for the names and the content of all files there.

    Example:
        >>> key_of({"seed": 0, "steps": 100}) == key_of({"steps": 100, "seed": 0})
        True
    """
    text = json.dumps(ingredients, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


@functools.cache
def code_of(*modules: str) -> str:
    """Return the digest of the source files of modules, each with the whole package that it belongs to."""
    sha = hashlib.sha256()
    for package in sorted({module.partition(".")[0] for module in modules}):
        for root, file in _source_files(package):
            sha.update(f"{package}/{file.relative_to(root)}\0{digest_of(file)}\0".encode())
    return sha.hexdigest()


def versions_of(*packages: str) -> dict[str, str]:
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


def _source_files(package: str) -> list[tuple[Path, Path]]:
    """List the files of a top-level module or package, each with the folder that it lies in."""
    module = importlib.import_module(package)
    folders = [Path(folder) for folder in getattr(module, "__path__", ())]
    found = [(folder, file) for folder in folders for file in sorted(folder.rglob("*")) if file.suffix in _SOURCES]
    if not folders and getattr(module, "__file__", None):
        file = Path(str(module.__file__))
        found.append((file.parent, file))
    return found
