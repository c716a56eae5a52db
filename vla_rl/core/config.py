"""Configuration: frozen dataclasses, read from YAML and from ``key.sub=value`` overrides through draccus, saved
resolved in every run folder.
"""

import copy
import dataclasses
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from vla_rl.core.errors import ConfigError, did_you_mean
from vla_rl.core.files import write_atomic


class _Loader(yaml.SafeLoader):
    """YAML as people write settings: ``on``, ``off``, ``yes`` and ``no`` are words, as in YAML 1.2."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")


def load_config[ConfigT](
    config_class: type[ConfigT],
    file: Path | None = None,
    overrides: Sequence[str] = (),
    base: Mapping[str, Any] | None = None,
) -> ConfigT:
    """Build a config from its defaults, then a base, then a YAML file, then overrides.

    Args:
        config_class: a frozen dataclass; nested dataclasses are sections.
        file: a YAML mapping; only the keys that differ from the defaults need to stand in it.
        overrides: ``section.key=value`` items; the value is read as YAML.
        base: plain data, such as sections of another config; the file replaces whole sections of it.

    Raises:
        ConfigError: for an unknown key (with the nearest known one), a value of the wrong type, or an unreadable file.
    """
    raw = {**copy.deepcopy(dict(base or {})), **(read_yaml(file) if file is not None else {})}
    for item in overrides:
        key, separator, value = item.partition("=")
        if not separator:
            raise ConfigError(f"override {item!r} has no '='; write it as section.key=value")
        _set_nested(raw, key.strip("-").split("."), _parse_value(key, value))
    return config_from_dict(config_class, raw, where=str(file) if file else "overrides")


def config_from_dict[ConfigT](config_class: type[ConfigT], raw: dict[str, Any], where: str = "config") -> ConfigT:
    """Decode a nested mapping into a config.

    Raises:
        ConfigError: for an unknown key, a missing one, or a value of the wrong type. ``where`` names the source in
            the message.
    """
    import draccus

    _check_keys(config_class, raw, where, prefix="")
    try:
        return draccus.decode(config_class, raw)
    except Exception as error:  # draccus raises its own, TypeError and ValueError, by kind of mistake
        cause: BaseException = error
        while not isinstance(cause, ConfigError) and (cause.__cause__ or cause.__context__):
            cause = cause.__cause__ or cause.__context__ or cause
        ours = cause if isinstance(cause, ConfigError) else error  # a config's own words say most
        raise ConfigError(f"{where}: {_first_line(ours)}") from error


def config_to_dict(config: Any) -> dict[str, Any]:
    """The resolved config as plain data (mappings, lists, scalars), ready for YAML or JSON."""
    import draccus

    encoded: dict[str, Any] = _plain(draccus.encode(config))
    return encoded


def save_config(config: Any, file: Path) -> None:
    """Write the resolved config as YAML, atomically."""
    write_atomic(file, yaml.safe_dump(config_to_dict(config), sort_keys=False).encode())


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file; empty for an empty file.

    Raises:
        ConfigError: if it cannot be read, or holds no mapping.
    """
    try:
        raw = yaml.load(file.read_text(), _Loader)
    except OSError as error:
        raise ConfigError(f"cannot read the config {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid YAML: {_first_line(error)}") from error
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} holds a {type(raw).__name__}; a config is a mapping of keys to values")
    return raw


def _parse_value(key: str, value: str) -> Any:
    try:
        parsed = yaml.load(value, _Loader)
        # YAML 1.1 reads 1e-4 (no dot) as a string; people write it so.
        return float(parsed) if isinstance(parsed, str) and _is_number(parsed) else parsed
    except yaml.YAMLError as error:
        raise ConfigError(f"the value of {key} is not valid YAML: {value!r}") from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.lower() not in {"nan", "inf", "-inf", "infinity"}


def _set_nested(raw: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        raw = raw.setdefault(part, {})
        if not isinstance(raw, dict):
            raise ConfigError(f"{'.'.join(path)}: {part!r} is a value, not a section")
    raw[path[-1]] = value


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
        hint = hints[key]
        if value is None and type(None) not in get_args(hint):
            raise ConfigError(f"{where}: {prefix}{key} has no value")
        if isinstance(value, bool) and hint in (int, float):
            raise ConfigError(f"{where}: {prefix}{key} is {value}; expected a number")
        section = next((part for part in (hint, *get_args(hint)) if dataclasses.is_dataclass(part)), None)
        if isinstance(section, type) and get_origin(hint) is dict and isinstance(value, dict):  # sections by name
            for name, item in value.items():
                _check_keys(section, item, where, prefix=f"{prefix}{key}.{name}.")
        elif isinstance(section, type) and value is not None and not isinstance(value, list | tuple):
            _check_keys(section, value, where, prefix=f"{prefix}{key}.")


def _plain(value: Any) -> Any:
    """Members of enumerations as their values; draccus leaves those in optional sections as they are."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
