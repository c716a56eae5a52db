"""Import of a package that only the `benchmarks` extra brings."""

import importlib
import warnings
from types import ModuleType

from vla_rl.core.errors import UserError


def import_benchmark(module: str) -> ModuleType:
    """Return the module, or a UserError that says how to get it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside those packages are not the user's concern
            return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UserError(
            f"This task needs the package {package!r} ({error}). Install it with: pip install 'vla-rl[benchmarks]'"
        ) from error
