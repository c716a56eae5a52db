"""Tests of the baselines use the tiny episodes of the tests of algorithms."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "algorithms"))

from tests.algorithms.conftest import make_cache  # noqa: F401


@pytest.fixture
def fast_critics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Critics that learn in a few hundred steps what tests ask of them."""
    for module in ("vla_rl.algorithms.hierarchical", "vla_rl_baselines.recap"):
        monkeypatch.setattr(f"{module}.CRITIC_LEARNING_RATE", 1e-2)
