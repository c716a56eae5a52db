"""Environments without pictures, for tests of physics and behavior."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

import sim


class BlindRenderer:
    """Draws one black picture, so that an episode costs physics alone."""

    def __init__(self, image_size: int) -> None:
        self._picture = np.zeros((image_size, image_size, 3), np.uint8)

    def render(self, data: Any, camera: str) -> np.ndarray:
        return self._picture

    def close(self) -> None:
        pass


@pytest.fixture
def blind_env() -> Callable[..., Any]:
    """Makes an environment, unwrapped, that sees nothing."""

    def make(name: str, **arguments: Any) -> Any:
        env: Any = gymnasium.make(name, **arguments).unwrapped
        env.renderer = BlindRenderer(env.image_size)
        return env

    return make


@pytest.fixture(params=sim.TASKS)
def task(request: pytest.FixtureRequest) -> str:
    """Id of each of our own tasks in turn."""
    return str(request.param)
