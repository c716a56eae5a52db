"""The public classes and functions of the package, and those without an example in their docstring.

Public is what a package lists in ``__all__``, `vla_rl` first, and what `vla_rl.core.protocols` defines. A class has an
example if its docstring or that of a public member has one. `tests/test_examples.py` and `tests/test_api.py` run them.

Example: python -m benchmarks.docs_public
"""

import importlib
import inspect
import pkgutil
from typing import Any

from benchmarks.house import PACKAGES

PROTOCOLS = "vla_rl.core.protocols"


def public() -> dict[str, Any]:
    """Return the full name of each public class and function -> the object, each once."""
    rooms = [importlib.import_module(package) for package in PACKAGES]
    rooms += [
        importlib.import_module(found.name)
        for room in [*rooms]
        for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")
        if found.ispkg
    ]
    listed = [getattr(room, name) for room in rooms for name in getattr(room, "__all__", ())]
    protocols = importlib.import_module(PROTOCOLS)
    listed += [value for value in vars(protocols).values() if getattr(value, "__module__", "") == PROTOCOLS]
    return {
        f"{each.__module__}.{each.__qualname__}": each
        for each in listed
        if inspect.isclass(each) or inspect.isfunction(each)
    }


def examples(each: Any) -> list[str]:
    """Return the docstrings that hold examples: of a class or function, and of the public members of a class."""
    members = [getattr(each, name) for name in vars(each) if not name.startswith("_")]
    texts = [text for part in (each, *members) if (text := inspect.getdoc(part)) and ">>>" in text]
    return list(dict.fromkeys(texts))


def without_example() -> list[str]:
    """Return the names of public classes and functions without an example."""
    return sorted(name for name, each in public().items() if not examples(each))


if __name__ == "__main__":
    print(len(public()), *without_example(), sep="\n")
