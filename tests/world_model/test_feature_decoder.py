"""Pictures drawn from features."""

import pytest
import torch

from world_model.feature_decoder import FeatureDecoder, fit_decoder


def squares(place: torch.Tensor) -> torch.Tensor:
    """A bright column where each feature says, in two cameras of 16 pixels, mirrored in the second."""
    across = torch.arange(16)
    lit = ((across - place[:, None] * 12).abs() < 3)[:, None, :, None].expand(-1, 16, -1, 3)
    first = torch.where(lit, 200, 30).to(torch.uint8)
    return torch.stack([first, first.flip(2)], 1)


@pytest.mark.slow
def test_a_picture_shows_what_the_features_say() -> None:
    generator = torch.Generator().manual_seed(0)
    place = torch.rand(400, generator=generator)
    features = torch.stack([place, torch.ones(400)], 1)  # the second never changes
    shown = squares(place)
    torch.manual_seed(0)
    decoder = fit_decoder(features, lambda chosen: shown[chosen], 40, generator)
    fresh = torch.tensor([[0.15, 1.0], [0.85, 1.0]])
    drawn = decoder.pictures(fresh)
    assert drawn.shape == (2, 2, 16, 16, 3)
    assert drawn.dtype == torch.uint8
    true = squares(fresh[:, 0]).float()
    error = (drawn.float() - true).abs().mean()
    assert error < 0.3 * (drawn.flip(0).float() - true).abs().mean(), "other features, other pictures"


def test_pictures_of_any_size_are_drawn() -> None:
    decoder = FeatureDecoder(3, 2, (20, 13))
    pictures = torch.zeros(4, 2, 20, 13, 3, dtype=torch.uint8)
    assert decoder.pictures(torch.zeros(4, 3)).shape == pictures.shape
    assert float(decoder.loss(torch.zeros(4, 3), pictures).detach()) > 0
