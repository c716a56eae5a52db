"""Descriptions changed by somebody who knows how they are sealed: only what they say is wrong."""

import json
from collections.abc import Mapping
from typing import Any

from vla_rl.core.json_files import SEAL, sealed


def resealed(content: Mapping[str, Any]) -> str:
    """A description with the digest that belongs to it, as JSON."""
    return json.dumps(sealed({key: value for key, value in content.items() if key != SEAL}))
