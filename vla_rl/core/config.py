"""Configuration: frozen dataclasses, read from YAML and from ``key.sub=value`` overrides through draccus, saved
resolved in every run folder.

A section may belong to a part that is chosen by name (an algorithm, an execution strategy). Its fields are then those
of that part's own ``config_class``; the options of the others do not exist. See `part`.
"""

import copy
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from vla_rl.core.config_files import parse_yaml, read_yaml, to_yaml
from vla_rl.core.errors import ConfigError, UserError, did_you_mean, one_line
from vla_rl.core.files import write_atomic
from vla_rl.core.registry import KINDS, find

PART = "part"  # where the metadata of a field that `part` made keep its kind
_KEY = re.compile(r"`([\w.]+)`: ")  # how draccus begins a sentence about a key


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """The section of a part that has nothing to choose."""


@dataclasses.dataclass(frozen=True)
class _Part:
    """Where a section's class comes from: the name stands in the field ``beside`` it, or under the key ``inside``."""

    kind: str
    beside: str
    inside: str
    default: str
    may_have_none: bool


def part(kind: str, *, beside: str = "", inside: str = "", default: str = "", may_have_none: bool = False) -> Any:
    """Return a dataclass field that is the section of a part chosen by name.

    A dataclass with such fields calls `fill_parts` in its ``__post_init__``: left out, a section has its defaults.

    Args:
        kind: A key of `vla_rl.core.registry.KINDS`. What is found there has a dataclass ``config_class``.
        beside: Name of the field of the same dataclass that holds the part's name.
        inside: Or the key inside of the section that does.
        default: The name where none is given; only with ``inside``.
        may_have_none: A part without ``config_class`` has no options, instead of being refused.
    """
    return dataclasses.field(default=None, metadata={PART: _Part(kind, beside, inside, default, may_have_none)})


def fill_parts(config: Any) -> None:
    """Give every section that was left out its defaults, and refuse one of another part.

    Raises:
        ConfigError: for an unknown name, or a section that is not of the part's class.
    """
    for field, found in _parts(type(config)):
        section = getattr(config, field)
        name = getattr(config, found.beside) if found.beside else getattr(section, found.inside, found.default)
        wanted = _config_class(found, name)
        if section is None:
            object.__setattr__(config, field, wanted())  # the one moment at which a frozen config may change
        elif not isinstance(section, wanted):
            raise ConfigError(
                f"{field} is a {type(section).__name__}; the {KINDS[found.kind]} {name!r} takes a {wanted.__name__}"
            )


def override_items(changes: Mapping[str, Any]) -> list[str]:
    """Format config changes as ``key=value`` items for `load_config`."""
    return [f"{key}={json.dumps(value)}" for key, value in changes.items()]


def parse_overrides(items: Sequence[str]) -> dict[str, Any]:
    """Read ``section.key=value`` items, values in YAML, as config changes; ConfigError for anything else."""
    changes = {}
    for item in items:
        key, separator, value = item.partition("=")
        if not separator:
            raise ConfigError(f"override {item!r} has no '='; write it as section.key=value")
        try:
            changes[key.strip("-")] = parse_yaml(value)
        except (yaml.YAMLError, ValueError) as error:
            shown = f"{value[:80]!r} ({one_line(error, 80)})"
            raise ConfigError(f"the value of {key} is not valid YAML: {shown}") from error
    return changes


def load_config[ConfigT](
    config_class: type[ConfigT],
    file: Path | None = None,
    overrides: Sequence[str] = (),
    base: Mapping[str, Any] | None = None,
) -> ConfigT:
    """Build a config from its defaults, then a base, then a YAML file, then ``section.key=value`` overrides.

    An override that chooses another part than base and file did takes the options of the replaced one away with it.
    A section of which some options are given keeps the other defaults of the field that holds it. The file replaces
    whole sections of the base.

    Raises:
        ConfigError: for an unknown key (with the nearest known one), a value of the wrong type, or an unreadable file.
    """
    raw = {**copy.deepcopy(dict(base or {})), **(read_yaml(file) if file is not None else {})}
    changed = _with_overrides(raw, overrides)
    left = _without_options_of_replaced_parts(config_class, raw, changed)
    where = str(file) if file else "overrides"
    if not overrides:
        return config_from_dict(config_class, left, where, own_defaults=True)
    try:
        return config_from_dict(config_class, _with_overrides(left, overrides), "overrides", own_defaults=True)
    except ConfigError:
        config_from_dict(config_class, raw, where)  # raises in their place if they are not to blame
        raise


def config_from_dict[ConfigT](
    config_class: type[ConfigT], raw: dict[str, Any], where: str = "config", own_defaults: bool = False
) -> ConfigT:
    """Decode a nested mapping into a config dataclass.

    With ``own_defaults`` a section with some given options has the others from the default of its field, else from its
    class. The latter holds for a file that was saved before an option existed. ``where`` names the mapping in errors.

    Raises:
        ConfigError: for an unknown key, a missing one, or a value of the wrong type.
    """
    _check_keys(config_class, raw, where, prefix="")
    try:
        laid = _over_own_defaults(config_class, raw) if own_defaults else raw
        decoded: ConfigT = _decode(config_class, laid)
        return decoded
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def config_to_dict(config: Any) -> dict[str, Any]:
    """Return the resolved config as plain data (mappings, lists, scalars), ready for YAML or JSON."""
    import draccus

    encoded: dict[str, Any] = _plain(draccus.encode(config))
    parts = dict(_parts(type(config)))
    for field, hint in get_type_hints(type(config)).items():
        if field in parts or _has_parts(hint):
            encoded[field] = config_to_dict(getattr(config, field))
    return encoded


def flatten(raw: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested sections of plain data as ``section.key``."""
    flat: dict[str, Any] = {}
    for key, value in raw.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def save_config(config: Any, file: Path) -> None:
    """Write the resolved config as YAML, atomically."""
    write_atomic(file, to_yaml(config_to_dict(config)).encode())


def _with_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    raw = copy.deepcopy(raw)
    for key, value in parse_overrides(overrides).items():
        *path, last = key.split(".")
        section = raw
        for name in path:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise ConfigError(f"{key}: {name!r} is a value, not a section")
        section[last] = value
    return raw


def _parts(config_class: Any) -> list[tuple[str, _Part]]:
    if not dataclasses.is_dataclass(config_class):
        return []
    return [(field.name, field.metadata[PART]) for field in dataclasses.fields(config_class) if PART in field.metadata]


def _has_parts(hint: Any) -> bool:
    return bool(_parts(hint)) or (
        dataclasses.is_dataclass(hint) and any(map(_has_parts, get_type_hints(hint).values()))
    )


def _config_class(section: _Part, name: Any) -> type:
    kind = section.kind
    if not isinstance(name, str):
        raise ConfigError(f"the name of the {KINDS[kind]} is {name!r}; expected a word")
    found: type | None = getattr(find(kind, name), "config_class", NoOptions if section.may_have_none else None)
    if found is None:
        raise ConfigError(f"the {KINDS[kind]} {name!r} has no attribute config_class, a dataclass of its options")
    return found


def _section_class(config_class: Any, field: str, hint: Any, raw: Mapping[str, Any]) -> Any:
    """Return the class of a section: the part's own, if a name decides."""
    found, section = dict(_parts(config_class)).get(field), raw.get(field)
    if found is None:
        return hint
    if found.beside:
        return _config_class(found, raw.get(found.beside, _default_of(config_class, found.beside)))
    return _config_class(
        found, section.get(found.inside, found.default) if isinstance(section, dict) else found.default
    )


def _without_options_of_replaced_parts(
    config_class: Any, raw: dict[str, Any], changed: Mapping[str, Any]
) -> dict[str, Any]:
    kept = copy.deepcopy(raw)
    for field, hint in get_type_hints(config_class).items():
        section = kept.get(field)
        if not isinstance(section, dict):
            continue
        before = _section_class(config_class, field, hint, raw)
        after = _section_class(config_class, field, hint, changed)
        if before is not after:
            _drop_lost(before, after, section)
        elif _has_parts(hint):
            kept[field] = _without_options_of_replaced_parts(hint, section, changed[field])
    return kept


def _drop_lost(before: Any, after: Any, section: dict[str, Any]) -> None:
    """Take from a section the options that only the class of before has."""
    ours, theirs = get_type_hints(before), get_type_hints(after)
    for key in list(section):
        if key in ours and key not in theirs:
            del section[key]
        elif (
            dataclasses.is_dataclass(ours.get(key)) and ours[key] is not theirs[key] and isinstance(section[key], dict)
        ):
            _drop_lost(ours[key], theirs[key], section[key])


def _over_own_defaults(config_class: Any, raw: dict[str, Any]) -> dict[str, Any]:
    """Return raw data in which each section has what its field's default changes of its class."""
    laid = dict(raw)
    for field, hint in get_type_hints(config_class).items():
        section, found = raw.get(field), _section_in(_section_class(config_class, field, hint, raw))
        if not isinstance(section, dict) or found is None:
            continue
        default = _default_of(config_class, field)
        if type(default) is found and not _has_parts(found):
            laid[field] = _laid_over(default, section)
        else:
            laid[field] = _over_own_defaults(found, section)
    return laid


def _laid_over(default: Any, raw: dict[str, Any]) -> dict[str, Any]:
    laid = config_to_dict(default)
    for key, value in raw.items():
        inner = getattr(default, key, None)
        laid[key] = _laid_over(inner, value) if isinstance(value, dict) and dataclasses.is_dataclass(inner) else value
    return laid


def _default_of(config_class: Any, name: str) -> Any:
    (field,) = (field for field in dataclasses.fields(config_class) if field.name == name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _decode(config_class: Any, raw: Any, path: str = "") -> Any:
    """Return a value of a config, or all of it. Raises ConfigError."""
    import draccus

    if _has_parts(config_class):
        values = {}
        for field, hint in get_type_hints(config_class).items():
            if field in raw:
                values[field] = _decode(_section_class(config_class, field, hint, raw), raw[field], f"{path}{field}.")
        return config_class(**values)
    try:
        return draccus.decode(config_class, raw)
    except Exception as error:  # draccus raises its own, TypeError and ValueError, by kind of mistake
        cause: BaseException = error
        while not isinstance(cause, UserError) and (cause.__cause__ or cause.__context__):
            cause = cause.__cause__ or cause.__context__ or cause
        if isinstance(cause, UserError):  # a config's own words say most
            raise ConfigError(str(cause)) from error
        named, words = _KEY.match(one_line(error)), _KEY.sub("", one_line(error))
        key = path + named[1] if named else path.rstrip(".")
        raise ConfigError(f"{key}: {words}") from error


def _check_keys(config_class: type, raw: Any, where: str, prefix: str) -> None:
    if not dataclasses.is_dataclass(config_class):
        return
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: {prefix.rstrip('.') or 'the config'} must be a section with keys, found {raw!r}")
    hints = get_type_hints(config_class)
    known = [field.name for field in dataclasses.fields(config_class)]
    for key, value in raw.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown key {prefix + str(key)!r}.{did_you_mean(str(key), known)}")
        hint = _section_class(config_class, key, hints[key], raw)
        if value is None and hint is not Any and type(None) not in get_args(hint):
            raise ConfigError(f"{where}: {prefix}{key} has no value")
        if isinstance(value, bool) and hint in (int, float):
            raise ConfigError(f"{where}: {prefix}{key} is {value}; expected a number")
        if value is not None and _is_list(hint) and not isinstance(value, list | tuple):
            raise ConfigError(f"{where}: {prefix}{key} is {value!r}; expected a list, {key}=[{value}]")
        named = _section_in(get_args(hint)[1]) if get_origin(hint) is dict else None
        if named and isinstance(value, dict):  # sections by name
            for name, item in value.items():
                _check_keys(named, item, where, prefix=f"{prefix}{key}.{name}.")
        elif (section := _section_in(hint)) and value is not None and not isinstance(value, list | tuple):
            _check_keys(section, value, where, prefix=f"{prefix}{key}.")


def _is_list(hint: Any) -> bool:
    """Return whether nothing but a list, or None, is meant."""
    either = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    meant = {get_origin(one) or one for one in either} - {type(None)}
    return bool(meant) and meant <= {tuple, list}


def _section_in(hint: Any) -> type | None:
    """Return the dataclass that a type hint allows, itself or beside None."""
    if get_origin(hint) is dict:
        return None
    hints = (hint, *get_args(hint))
    return next((found for found in hints if isinstance(found, type) and dataclasses.is_dataclass(found)), None)


def _plain(value: Any) -> Any:
    """Return members of enumerations as their values; draccus leaves those in optional sections unchanged."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
