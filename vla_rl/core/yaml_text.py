"""YAML as people write settings, read as plain data and within bounds."""

import re
from typing import Any

import yaml

from vla_rl.core.outside import check_tree

_MOST_VALUES = 100_000  # of a config


class _Loader(yaml.SafeLoader):
    """YAML as people write it: ``on``, ``off``, ``yes`` and ``no`` are words, as in YAML 1.2. A key stands once."""

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


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")


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
