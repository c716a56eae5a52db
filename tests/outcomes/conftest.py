"""A tiny policy, and episodes whose success can be seen: the block is bright at the end."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "policies"))

from seen_success import played
from tiny_policy import make_model

from vla_rl.core.types import Origin
from vla_rl.data.store import EpisodeStore


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "policy"
    make_model().save(folder, {"policy_version": 0})
    return folder


@pytest.fixture
def fill() -> Callable[[EpisodeStore, int], None]:
    def add(store: EpisodeStore, count: int) -> None:
        for index in range(3):
            demonstration = {"origin": Origin.DEMO, "policy_version": -1}
            store.add(played(f"demo-{index:05d}", True, 1000 + index, **demonstration))
        for index in range(count):
            store.add(played(f"round001-{index:05d}", index % 2 == 0, index))

    return add
