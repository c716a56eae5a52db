"""YAML files of settings: those that come with the package, found by name, and what their text says, within bounds."""

import re
from pathlib import Path
from typing import Any

import yaml

from vla_rl.core.errors import ConfigError, UserError, did_you_mean, one_line
from vla_rl.core.json_files import LARGEST_TEXT, check_tree, read_bytes

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
if not CONFIGS.exists():  # a source checkout; wheels carry the folder inside the package
    CONFIGS = CONFIGS.parents[1] / "configs"

OF_FINETUNE = ("finetune", "offline")
"""The configs that are not of a run with practice, but of ``vla-rl finetune``; the first is its default."""


def config_names() -> list[str]:
    """Return the names of the configs of runs, sorted."""
    return sorted(file.stem for file in CONFIGS.glob("*.yaml") if file.stem not in OF_FINETUNE)


def config_file(name: str) -> Path:
    """Return a config by path, or by name from those of the package; UserError if there is neither."""
    if Path(name).suffix in (".yaml", ".yml"):
        return Path(name)
    known = [*config_names(), *OF_FINETUNE]
    if name not in known:
        raise UserError(f"there is no config {name!r}.{did_you_mean(name, known)}")
    return CONFIGS / f"{name}.yaml"


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, empty for an empty file; ConfigError if it cannot be read or is none."""
    try:
        raw = parse_yaml(read_bytes(file, LARGEST_TEXT))
    except OSError as error:
        raise ConfigError(f"cannot read the config {file}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{file} is not valid YAML: {one_line(error)}") from error
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} holds a {type(raw).__name__}; a config is a mapping of keys to values")
    return raw


_MOST_VALUES = 100_000  # of a config


class _Loader(yaml.SafeLoader):
    """Read YAML as people write it. ``on``, ``off``, ``yes`` and ``no`` are words, as in YAML 1.2. So are ``12:30``,
    ``010`` and dates; ``1e-3`` is a number. A key stands once.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.composer.ComposerError(
                    problem=f"{key.value!r} stands there twice", problem_mark=key.start_mark
                )
            seen.add(str(key.value))
        return node


class _Dumper(yaml.SafeDumper):
    """Puts quotation marks around the words that a reader of YAML 1.1 or `_Loader` would take for something else."""


_SCALARS = {  # without a quotation mark; all else is a word
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?(?:0|[1-9][0-9]*|0x[0-9a-fA-F]+)", "-+0123456789"),
    "float": (
        r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
_TAG = "tag:yaml.org,2002:"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.removeprefix(_TAG) not in {*_SCALARS, "timestamp"}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _name, (_pattern, _firsts) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), _firsts)


def parse_yaml(text: str | bytes) -> Any:
    """Return what a text says, as plain data.

    Raises:
        YAMLError: if it is no YAML, or a key stands twice in a mapping.
        ValueError: if it is nested too deeply, or holds too much.
    """
    try:
        raw = yaml.load(text, _Loader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_tree(raw, _MOST_VALUES)
    return raw


def to_yaml(raw: Any) -> str:
    """Plain data as a text that `parse_yaml` reads back."""
    text: str = yaml.dump(raw, Dumper=_Dumper, sort_keys=False)
    return text
