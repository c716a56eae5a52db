"""HABC's weights in lerobot's own trainer: ``--sample_weighting.type=habc``.

lerobot's factory of sample weighters knows two types and has no register, so the function itself is extended: ``habc``
is ours, everything else goes to lerobot's own, unchanged. Policies without a loss per sample (ACT, diffusion) get one
on their instance.
"""

import functools
import inspect
import io
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.utils import sample_weighting
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.core.files import write_atomic

WEIGHTS_FILE = "habc_weights.npy"


def save_weights(dataset: Path, weights: NDArray[np.float32]) -> Path:
    """Write the weight of every frame of a LeRobotDataset, float32 [N] in the order of its ``index``, into its folder.

    Raises:
        ValueError: for weights that are not finite, negative, or all 0.
    """
    weights = np.ascontiguousarray(weights, dtype=np.float32)
    if weights.ndim != 1 or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise ValueError("weights must be finite, at least 0, one for each frame, and not all 0")
    content = io.BytesIO()
    np.save(content, weights, allow_pickle=False)
    write_atomic(dataset / WEIGHTS_FILE, content.getvalue())
    return dataset / WEIGHTS_FILE


class HabcWeights(sample_weighting.SampleWeighter):
    """Weights of a batch by the ``index`` of its frames.

    Args:
        file: as `save_weights` wrote it.
        device: of the weights.

    Raises:
        ValueError: for a file that is missing or holds anything else.
    """

    def __init__(self, file: Path, device: torch.device) -> None:
        try:
            weights = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ValueError(f"{file} holds no weights ({error}); write them with vla-rl finetune --lerobot") from error
        if weights.ndim != 1 or weights.dtype != np.float32 or not np.isfinite(weights).all():
            raise ValueError(f"{file} holds {weights.dtype} {list(weights.shape)}; expected finite float32 [frames]")
        self._weights = torch.from_numpy(weights).to(device)

    def compute_batch_weights(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Weights [B], and what to log of them. Raises ValueError for a frame that has no weight."""
        index = batch["index"].to(self._weights.device)
        if int(index.max()) >= len(self._weights):
            raise ValueError(
                f"there are {len(self._weights)} weights, and frame {int(index.max())} was drawn: the dataset is not "
                "the one that the weights were made for"
            )
        weights = self._weights[index]
        return weights, {"mean_weight": float(weights.mean()), "zero_fraction": float((weights == 0).float().mean())}

    def get_stats(self) -> dict[str, Any]:
        """Of all frames."""
        return {"type": "habc", "frames": len(self._weights), "mean_weight": float(self._weights.mean())}


def register_weighting() -> None:
    """Teach lerobot's factory the type ``habc``. Doing it again changes nothing."""
    original = sample_weighting.make_sample_weighter
    if getattr(original, "knows_habc", False):
        return

    @functools.wraps(original)
    def make_sample_weighter(
        config: Any,
        policy: Any,
        device: torch.device,
        dataset_root: str | None = None,
        dataset_repo_id: str | None = None,
    ) -> Any:
        if config is None or config.type != "habc":
            return original(config, policy, device, dataset_root, dataset_repo_id)
        file = config.extra_params.get("path") or (Path(dataset_root) / WEIGHTS_FILE if dataset_root else None)
        if file is None:
            raise ValueError("habc weights need --dataset.root, or --sample_weighting.extra_params={path: FILE}")
        give_sample_losses(policy)
        return HabcWeights(Path(file), device)

    make_sample_weighter.knows_habc = True  # type: ignore[attr-defined]
    sample_weighting.make_sample_weighter = make_sample_weighter


def give_sample_losses(policy: Any) -> None:
    """Give a policy whose ``forward`` has no ``reduction`` one that has; others stay as they are."""
    from vla_rl.policies.lerobot_adapter.losses import weighted_forward

    if "reduction" not in inspect.signature(policy.forward).parameters:
        policy.forward = types.MethodType(weighted_forward, policy)
