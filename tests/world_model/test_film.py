"""Films of predictions: rows below each other, and red frames where the model is uncertain."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from toy_episodes import toy_cache
from toy_world import SPEC, TICKS, tiny_world

from vla_rl.training.branch_film import as_sent, clip, predicted
from world_model.feature_world import Trust
from world_model.protocol import Observations


def test_a_picture_has_a_red_frame_where_the_model_is_uncertain(tmp_path: Path) -> None:
    cache = toy_cache(tmp_path)
    world = tiny_world(cache, tmp_path / "world")
    begin, sent = Observations(cache, np.array([0])), cache.action_sent[np.arange(TICKS + 1)][:, None]

    def row(familiar: float) -> torch.Tensor:
        world_of = replace(world, trust=Trust(1.0, 0.0, familiar))
        return predicted(world_of, begin, as_sent(sent), len(sent), familiar=1.0)

    sure, unsure = row(1e9), row(1e-9)
    assert sure.shape == (TICKS + 2, 2, 16, 16, 3)
    red = torch.tensor([255, 0, 0], dtype=torch.uint8)
    assert (unsure[1:, :, 0] == red).all()
    assert (unsure[1:, :, :, -1] == red).all()
    assert torch.equal(unsure[0], sure[0]), "the first picture is of the real moment"
    assert torch.equal(unsure[:, :, 1:-1, 1:-1], sure[:, :, 1:-1, 1:-1])
    state = world.predict(world.encode(begin), torch.from_numpy(sent[:2, 0])[None]).state
    assert torch.equal(sure[2], world.decode(state)[0])


def test_rows_are_below_each_other_and_cameras_side_by_side(tmp_path: Path) -> None:
    cache = toy_cache(tmp_path)
    pictures = Observations(cache, np.array([0, 1])).pictures(SPEC.cameras)
    film = clip([pictures, 255 - pictures])
    assert film.shape == (2, 32, 32, 3)
    np.testing.assert_array_equal(film[1, :16, 16:], cache.images["top"][1])
    np.testing.assert_array_equal(film[1, 16:, :16], 255 - cache.images["front"][1])
