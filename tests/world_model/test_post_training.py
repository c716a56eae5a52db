"""The negative-aware objective has the right gradient, and post-training moves the model towards its better draws."""

from pathlib import Path

import pytest
import torch
from tiny_world_model import make_model
from torch import nn
from toy_episodes import toy_cache

from world_model.post_training import LowRank, PostTrainer, PostTrainingConfig, nft_loss, optimalities
from world_model.windows import LatentEpisodes


def test_at_the_old_weights_the_gradient_is_a_sum_of_signed_residuals() -> None:
    """At theta = old: grad = A_max (2 / dims) sum (2 r - 1) (x - x0) / w, averaged over samples."""
    torch.manual_seed(0)
    config = PostTrainingConfig(beta=0.7, reference_weight=0.3)
    predicted = torch.randn(5, 4, 6, requires_grad=True)
    clean, optimality = torch.randn(5, 4, 6), torch.rand(5)
    old = predicted.detach().clone()
    nft_loss(predicted, old, old, clean, optimality, config).backward()
    residual = old - clean
    scale = residual.abs().mean((1, 2), keepdim=True)
    signed = (2 * optimality - 1)[:, None, None] * residual / scale
    expected = config.advantage_max * 2 * signed / residual[0].numel() / len(clean)
    torch.testing.assert_close(predicted.grad, expected)


def test_optimality_is_relative_to_the_group() -> None:
    config = PostTrainingConfig(advantage_max=2.0)
    found = optimalities(torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0], [-1e6, 0.0, 1.0]]), config)
    assert found[0, 0] < 0.5 < found[0, 2]
    assert found[0, 1] == pytest.approx(0.5)
    assert found[1].tolist() == [0.5] * 3  # equal scores teach nothing
    ulp = torch.nextafter(torch.tensor(5.1), torch.tensor(9.0)) - 5.1
    rounded = optimalities(torch.tensor([[5.1, 5.1, 5.1 + ulp]]), config)
    assert (rounded - 0.5).abs().max() < 0.02  # nor do those that differ by rounding
    assert ((found >= 0) & (found <= 1)).all()


def test_a_group_shares_its_history_and_differs_in_the_clip(tmp_path: Path) -> None:
    """Although the model acts by the mode of its flow."""
    model = make_model(sampling_noise=0.0)
    torch.nn.init.normal_(model.dynamics.flow.output.weight)
    data = LatentEpisodes(toy_cache(tmp_path), model.autoencoder)
    config = PostTrainingConfig(groups=2, samples=3, history_max=4, clip=2)
    trainer = PostTrainer(model, data, config)
    batch, first = trainer._windows(0, torch.Generator().manual_seed(4))
    latents, _, _, scores = trainer._futures(batch, first, torch.Generator().manual_seed(0))
    others = trainer._futures(batch, first, torch.Generator().manual_seed(1))[0]
    for group in range(2):
        rows = slice(3 * group, 3 * group + 3)
        begin = int(first[rows][0])
        spread = latents[rows].std(0).amax((1, 2))  # of each frame
        assert (spread[: begin + 1] < 1e-4).all()
        # The history is the model's own, by the mode; only the clip is drawn.
        torch.testing.assert_close(others[rows][:, : begin + 1], latents[rows][:, : begin + 1], atol=1e-4, rtol=0)
        assert not torch.allclose(others[rows][:, begin + 1], latents[rows][:, begin + 1], atol=1e-2)
        assert spread[begin + 1] > 1e-2
        assert scores[rows].std() > 1e-6
    assert model.dynamics.config.sampling_noise == 0.0


def test_a_low_rank_correction_begins_at_zero_and_merges_exactly() -> None:
    torch.manual_seed(1)
    linear, x = nn.Linear(6, 5), torch.randn(3, 6)
    before = linear(x)
    corrected = LowRank(linear, 2)
    torch.testing.assert_close(corrected(x), before)
    nn.init.normal_(corrected.up.weight)
    torch.testing.assert_close(corrected.merged()(x), corrected(x) * 0 + before + corrected.up(corrected.down(x)))


def test_post_training_trains_only_its_own_part_and_leaves_a_plain_model(tmp_path: Path) -> None:
    model = make_model()
    data = LatentEpisodes(toy_cache(tmp_path), model.autoencoder)
    names = list(model.state_dict())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = PostTrainingConfig(groups=2, samples=4, history_max=3, clip=2, learning_rate=1e-2)
    trainer = PostTrainer(model, data, config)
    logs = [trainer.update(step) for step in range(3)]
    trainer.finish()
    assert all(abs(log["nft_loss"]) < 1e6 for log in logs)
    after = model.state_dict()
    assert list(after) == names
    changed = {name for name in names if not torch.equal(before[name], after[name])}
    assert changed
    allowed = ("dynamics.flow.", "project.weight", "output.weight")
    assert all(any(part in name for part in allowed) for name in changed)
    assert all(parameter.requires_grad for parameter in model.dynamics.parameters())
