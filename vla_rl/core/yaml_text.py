"""YAML as people write settings, read as plain data and within bounds."""

import re
from typing import Any

import yaml

from vla_rl.core.outside import check_tree

_MOST_VALUES = 100_000  # of a config


class _Loader(yaml.SafeLoader):
    """YAML as people write it: ``on``, ``off``, ``yes`` and ``no`` are words, as in YAML 1.2, and so are ``12:30``,
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
    """What a text says, as plain data.

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
