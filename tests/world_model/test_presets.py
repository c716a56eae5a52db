"""The presets are the same code at other sizes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_world_model import SPEC

from vla_rl.core.config import load_config
from vla_rl.core.errors import ConfigError
from world_model.config import AutoencoderConfig, DynamicsConfig, WorldModelConfig
from world_model.model import VideoModel

PRESETS = Path(__file__).parents[2] / "configs" / "world_model"


@pytest.mark.parametrize(("name", "pixels"), [("cpu-tiny", 64), ("gpu-small", 128), ("gpu-base", 256)])
def test_a_preset_loads_and_bounds_what_it_costs(name: str, pixels: int) -> None:
    config = load_config(WorldModelConfig, PRESETS / f"{name}.yaml")
    with torch.device("meta"):
        assert VideoModel(config, replace(SPEC, image_size=(pixels, pixels))).autoencoder.tokens > 0
    if name == "cpu-tiny":
        assert 0 < config.training.cpu_seconds <= 1200
        model = VideoModel(config, replace(SPEC, image_size=(pixels, pixels)))
        assert sum(weight.numel() for weight in model.parameters()) < 1.1e7


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="not a multiple of"):
        DynamicsConfig(width=100, heads=3)
    with pytest.raises(ConfigError, match="window is 0; expected >= 1"):
        DynamicsConfig(window=0)
    with pytest.raises(ConfigError, match="state_frequencies is -1"):
        DynamicsConfig(state_frequencies=-1)
    with pytest.raises(ConfigError, match="token_cells is -1"):
        AutoencoderConfig(token_cells=-1)
