"""The networks of the success detector: principal components of the features, five members, and two measures of
novelty. One is the distance to known windows, by the components. The other is what the components leave out (the
squared prediction error of process monitoring, Jackson and Mudholkar 1979): other light and colors show there.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor, nn

from vla_rl.core.types import Float32Array
from vla_rl.policies.layers import EnsembleHead

FOLDS = 5
_COMPONENTS = 64
_HIDDEN = (64,)
_STEPS = 300
_LEARNING_RATE, _WEIGHT_DECAY = 3e-3, 0.1  # of AdamW
_INPUT_NOISE = 0.3  # standard deviation, on whitened components
_LEAST_SCALE = 1e-2
_FAR = 0.99  # quantile of the distances between known windows of different episodes
_MARGIN = 1.25
_LEAST_DISTANCE = 0.1  # between windows, on whitened components
_LEAST_CHANGE = 1e-3  # of the usual norm of a window; less may be rounding


@dataclass(frozen=True, eq=False)
class Labeled:
    """Labeled windows.

    Attributes:
        rows: float32 [N, I].
        success: bool [N].
        is_end: bool [N], whether the window ends its episode.
        episode: int64 [N], number of the episode.
    """

    rows: Float32Array
    success: NDArray[np.bool_]
    is_end: NDArray[np.bool_]
    episode: NDArray[np.int64]


class JudgeNetwork(nn.Module):
    """Windows [B, I] -> probability of success of each member [B, M], and novelty [B]; above 1 a window is novel.

    Args:
        inputs: I.
        components: C, principal components that the members read.
        known: K, known windows that new ones are compared with.
    """

    mean: Tensor
    basis: Tensor
    known: Tensor
    limit: Tensor
    residual_limit: Tensor

    def __init__(self, inputs: int, components: int, known: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("basis", torch.zeros(inputs, components))
        self.register_buffer("known", torch.zeros(known, components))
        self.register_buffer("limit", torch.ones(()))
        self.register_buffer("residual_limit", torch.ones(()))
        self.head = EnsembleHead(FOLDS, components, _HIDDEN, 1, normalized=True)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Judge windows."""
        centered = rows - self.mean
        components = centered @ self.basis
        members = self.head(components)[..., 0].sigmoid().T
        far, left_out = self.distances(components).amin(1) / self.limit, _residual(centered, self.basis)
        return members, torch.maximum(far, left_out / self.residual_limit)

    def distances(self, components: Tensor) -> Tensor:
        """Return the distances [B, K] to the known windows."""
        squared = components.square().sum(1, keepdim=True) + self.known.square().sum(1)
        return (squared - 2 * components @ self.known.T).clamp(min=0).sqrt()

    def to_bytes(self) -> bytes:
        """Return the weights as safetensors."""
        return save({name: value.contiguous() for name, value in self.state_dict().items()})

    @classmethod
    def from_bytes(cls, content: bytes) -> "JudgeNetwork":
        """Return the networks that `to_bytes` wrote."""
        state = load(content)
        inputs, components = state["basis"].shape
        network = cls(inputs, components, len(state["known"]))
        network.load_state_dict(state)
        return network.eval()


def train(data: Labeled, outcomes: list[bool], seed: int) -> tuple[JudgeNetwork, dict[str, float]]:
    """Train from scratch. Member i never sees the i-th part of the episodes.

    Args:
        data: Labeled windows.
        outcomes: Outcome of each episode.
        seed: Seed of folds, initial weights and noise.

    Returns:
        Networks, and their errors on the episodes that each member left out: ``brier``, ``false_success`` (share of the
        ends called success that are failures) and ``false_failure``.
    """
    random = np.random.default_rng(seed)
    fold_of_episode = np.empty(len(outcomes), np.int64)
    for outcome in (True, False):  # both outcomes in every part, as far as there are enough
        chosen = random.permutation(np.flatnonzero(np.array(outcomes) == outcome))
        fold_of_episode[chosen] = np.arange(len(chosen)) % FOLDS
    fold = torch.from_numpy(fold_of_episode[data.episode])
    rows = torch.from_numpy(data.rows)
    mean = rows.mean(0)
    _, sizes, basis = torch.linalg.svd(rows - mean, full_matrices=False)
    count = min(_COMPONENTS, len(sizes))
    scale, least = sizes[:count] / len(rows) ** 0.5, _LEAST_CHANGE * rows.norm(dim=1).median()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = JudgeNetwork(rows.shape[1], count, len(rows))
        network.mean.copy_(mean)
        network.basis.copy_(basis[:count].T / (scale + _LEAST_SCALE * scale[0].clamp(min=least)))
        components = (rows - mean) @ network.basis
        network.known.copy_(components)
        _fit_members(network, data, components, fold)
    network.eval()
    with torch.no_grad():
        distance = _usual_distance(network, components, torch.from_numpy(data.episode))
        network.limit.copy_(_MARGIN * distance.clamp(min=_LEAST_DISTANCE))
        network.residual_limit.copy_(_MARGIN * _usual_residual(rows, fold > 0, count).clamp(min=least))
        left_out = network.head(components)[..., 0].sigmoid()[fold, torch.arange(len(rows))].numpy()
    return network, _errors(left_out[data.is_end], data.success[data.is_end])


def _fit_members(network: JudgeNetwork, data: Labeled, components: Tensor, fold: Tensor) -> None:
    success, is_end = data.success, data.is_end
    weight = np.zeros(len(success), np.float32)
    for group, share in ((success, 0.5), (~success & is_end, 0.25), (~success & ~is_end, 0.25)):
        weight[group] = share / max(int(group.sum()), 1)
    seen = (torch.arange(FOLDS)[:, None] != fold) * torch.from_numpy(weight)  # [M, N]
    label = torch.from_numpy(success.astype(np.float32)).expand(FOLDS, -1)
    optimizer = torch.optim.AdamW(network.head.parameters(), _LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    for _ in range(_STEPS):
        logits = network.head(components + _INPUT_NOISE * torch.randn_like(components))[..., 0]
        loss = F.binary_cross_entropy_with_logits(logits, label, reduction="none")
        loss = ((loss * seen).sum(1) / seen.sum(1)).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def _usual_distance(network: JudgeNetwork, components: Tensor, episode: Tensor) -> Tensor:
    """Return how far a known window is from the nearest one of another episode, at most, but for a few."""
    same = episode[:, None] == episode
    return network.distances(components).masked_fill(same, torch.inf).amin(1).quantile(_FAR)


def _residual(centered: Tensor, basis: Tensor) -> Tensor:
    """Return the norm [B] of what the directions of a basis leave out."""
    directions = basis / basis.norm(dim=0)
    left_out: Tensor = centered - centered @ directions @ directions.T  # a difference of squares would round
    return left_out.norm(dim=1)


def _usual_residual(rows: Tensor, kept: Tensor, count: int) -> Tensor:
    """Return the residual of windows of episodes that the components do not know, at most, but for a few."""
    mean = rows[kept].mean(0)
    basis = torch.linalg.svd(rows[kept] - mean, full_matrices=False)[2][:count].T
    return _residual(rows[~kept] - mean, basis).quantile(_FAR)


def _errors(probability: Float32Array, success: NDArray[np.bool_]) -> dict[str, float]:
    called = probability > 0.5
    return {
        "brier": float(np.square(probability - success).mean()),
        "false_success": float((~success[called]).mean()) if called.any() else 0.0,
        "false_failure": float(success[~called].mean()) if (~called).any() else 0.0,
    }
