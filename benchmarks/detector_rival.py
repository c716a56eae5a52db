"""lerobot's reward classifier, on the answers that our detector learns from.

Its class, its config, its normalization and its optimizer are lerobot's. It reads the pictures of one observation, and
is never unsure: a success is a probability above 0.5. The encoder has random weights, since nothing is downloaded.
lerobot freezes the encoder and the embeddings behind it, so one pass encodes all pictures, and the head learns on that.
As in HIL-SERL (Luo et al. 2025), there are two to three times as many negatives as positives.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.detector_fits import in_orders, share
from vla_rl.core.types import Observation

if TYPE_CHECKING:
    from torch import Tensor

_SIZE = 128  # pixels: lerobot's embedding expects a map of 4 x 4 from an encoder with a stride of 32
_STEPS, _BATCH = 1500, 64
_AT_ONCE = 32


def judged(base: Path, answers: int) -> list[dict[str, Any]]:
    """Return the false successes and failures among the other attempts, per order of the episodes."""
    import vla_rl as vla
    from vla_rl.outcomes.detector import observation_at

    episodes = list(vla.open_run(base).episodes)
    random = np.random.default_rng(0)
    ticks = [random.integers(0, len(each) // 2 if each.success else len(each)) for each in episodes]
    pictured = [observation_at(each, len(each)) for each in episodes]
    pictured += [observation_at(each, int(tick)) for each, tick in zip(episodes, ticks, strict=True)]
    classifier, pictures = _classifier(pictured)
    encoded = _encode(classifier, pictures).reshape(2, len(episodes), -1)  # [end or tick, E, H]
    played = [place for place, each in enumerate(episodes) if each.episode_id.startswith("round001")]
    demonstrations = [place for place in range(len(episodes)) if place not in played]
    success = np.array([each.success is not False for each in episodes])
    rows = []
    for order, mixed in in_orders(played):
        known, rest = [*demonstrations, *mixed[:answers]], mixed[answers:]
        labels = np.concatenate([success[known], np.zeros(len(known), bool)])
        head = _trained(classifier, encoded[:, known].flatten(0, 1), labels, order)
        called = (head(encoded[0, rest])[:, 0].sigmoid() > 0.5).numpy()
        wrong = {"false_success": share(~success[rest][called]), "false_failure": share(success[rest][~called])}
        rows.append({"answers": answers, "order": order, "called": int(called.sum()), **wrong})
    return rows


def _classifier(observations: Sequence[Observation]) -> "tuple[Any, dict[str, Tensor]]":
    """Return a new classifier of lerobot with a random ResNet-10, and the pictures as it wants them."""
    import torch
    import torch.nn.functional as F
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.rewards.classifier import Classifier, RewardClassifierConfig, make_classifier_processor
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    keys = [f"observation.images.{camera}" for camera in observations[0].images]
    pictures = {}
    for key in keys:
        stacked = np.stack([each.images[key.rpartition(".")[2]] for each in observations])
        pictures[key] = F.interpolate(torch.from_numpy(stacked).permute(0, 3, 1, 2) / 255, (_SIZE, _SIZE))
    with tempfile.TemporaryDirectory() as folder:
        sizes, depths = [64, 128, 256, 512], [1, 1, 1, 1]
        resnet10: dict[str, Any] = {
            "hidden_sizes": sizes,
            "depths": depths,
            "layer_type": "basic",
            "embedding_size": 64,
        }
        ResNetModel(ResNetConfig(**resnet10)).save_pretrained(folder)
        features = {key: PolicyFeature(FeatureType.VISUAL, (3, _SIZE, _SIZE)) for key in keys}
        config = RewardClassifierConfig(model_name=folder, num_cameras=len(keys), device="cpu", input_features=features)
        config.output_features = {}
        classifier = Classifier(config)
    axes = (0, 2, 3)
    stats = {
        key: {"mean": each.mean(axes)[:, None, None], "std": each.std(axes)[:, None, None]}
        for key, each in pictures.items()
    }
    prepare, _ = make_classifier_processor(config, stats)
    prepared = prepare(pictures)
    return classifier.eval(), {key: prepared[key] for key in keys}


def _encode(classifier: Any, pictures: "dict[str, Tensor]") -> "Tensor":
    import torch

    count = len(next(iter(pictures.values())))
    parts = []
    with torch.no_grad():
        for start in range(0, count, _AT_ONCE):
            batch = [each[start : start + _AT_ONCE] for each in pictures.values()]
            parts.append(classifier.predict(batch).hidden_states)
    return torch.cat(parts)


def _trained(classifier: Any, encoded: "Tensor", labels: NDArray[np.bool_], seed: int) -> Any:
    """Return a head of the classifier, trained from new weights by lerobot's optimizer."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(seed)
    classifier._build_classifier_head()
    head = classifier.classifier_head.train()
    optimizer = classifier.config.get_optimizer_preset().build(head.parameters())
    targets = torch.from_numpy(labels.astype(np.float32))
    for _ in range(_STEPS):
        some = torch.randint(0, len(encoded), (_BATCH,))
        loss = F.binary_cross_entropy_with_logits(head(encoded[some])[:, 0], targets[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head.eval().requires_grad_(False)
