"""Options that are gone, in files that earlier versions wrote."""

import copy
from collections.abc import Collection, Mapping
from typing import Any

from vla_rl.core.config import flatten
from vla_rl.core.errors import ConfigError


def without(
    section: Mapping[str, Any], drop: Collection[str], unchanged: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """A section without some options, and without the sections that they leave empty.

    Args:
        section: plain data; stays as it is.
        drop: the options, as ``section.key``; those that are not there do not matter.
        unchanged: those of them that had an effect -> what the program does now instead of asking.
        where: what the options' names begin with in the message.

    Raises:
        ConfigError: if one had another effect than that.
    """
    kept = copy.deepcopy(dict(section))
    for path, value in flatten(section).items():
        if path not in drop:
            continue
        if path in unchanged and value != unchanged[path]:
            raise ConfigError(
                f"made with {where}{path}={value}; this version has no such option and does what {unchanged[path]} "
                "did. Go on with the version that made it, or begin anew"
            )
        _remove(kept, path)
    return kept


def _remove(section: dict[str, Any], path: str) -> None:
    first, _, rest = path.partition(".")
    if rest:
        _remove(section[first], rest)
    if not rest or not section[first]:
        del section[first]
