"""What a policy with an edit tried of every chunk that it played, told from its episodes.

An episode says of which chunk an action is and when that was planned. Everything else follows from seeds: the frozen
policy's own chunk from the noise of that tick, and the offset that exploration added. Nothing more is stored.
Whether an episode was played by the edit as it is now is compared with the recorded actions, not believed.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_rl.algorithms.round_data import RoundData
from vla_rl.core.flow_sampling import flow_noise
from vla_rl.core.types import Episode, Source
from vla_rl.data.cache import CachedEpisode
from vla_rl.policies.acting import exploration_noise
from vla_rl.policies.editing import Edit
from vla_rl.policies.features import flat_features
from vla_rl.policies.trainable import TrainablePolicy

# How far recorded actions may be from what they are said to be, in normalised action units: a forward pass over another
# batch differs in its last bits.
_EXACT = 1e-3


class PlayedChunks(NamedTuple):
    """The n chunks of an episode of which at least one action was executed.

    Attributes:
        step: int64 [n], at which each was planned.
        first: int64 [n], the index in it of the first action that was executed.
        features: [n, F], of `flat_features`.
        tick: float [n], ticks since the episode began.
        base: [n, H, A], what the edit moves: the frozen policy's own chunk, raw units.
        noise: [n, A], standard normal, what the offset that was tried is made of; 0 in dimensions that are not moved.
        executed: [n, A], the recorded action, raw units; 0 in dimensions that the robot lacks.
    """

    step: np.ndarray
    first: np.ndarray
    features: Tensor
    tick: Tensor
    base: Tensor
    noise: Tensor
    executed: Tensor


@torch.no_grad()
def played_chunks(episode: CachedEpisode, data: RoundData, model: TrainablePolicy, edit: Edit) -> PlayedChunks | None:
    """The chunks of an episode; None if no policy played it, or nothing is known of its seed or its chunks."""
    if episode.seed is None or "chunk_id" not in episode.extras or episode.policy_version < 0:
        return None
    record = data.cache.store.read(episode.episode_id)
    own = np.flatnonzero(record.source == Source.POLICY)
    _, first = np.unique(record.extras["chunk_id"][own], return_index=True)
    executed = own[first]
    index = record.extras["chunk_index"][executed].astype(np.int64)
    step = executed - _ticks_since_planned(record, executed, index)
    if not len(own) or step.min() < 0 or record.extras["chunk_index"][own].max() >= model.horizon:
        return None
    seed, size = episode.seed, model.spec.action_dim
    inputs, model = data.inputs(episode.start + step), model.eval()
    seen = model.features(*inputs)
    noise = np.stack([flow_noise(seed, int(tick), model.horizon, size) for tick in step])
    base = model.draw_several(*inputs, data.tensor(noise)[:, None], seen=seen)[:, 0]
    tried = np.concatenate([exploration_noise(seed, int(tick), size) for tick in step])
    dims = episode.action_dim  # a smaller robot has no more
    moves = edit.moved * (torch.arange(size, device=data.device) < dims)
    recorded = torch.zeros_like(base[:, 0])
    recorded[:, :dims] = data.tensor(record.action_policy[executed])
    return PlayedChunks(
        step,
        index,
        flat_features(*seen),
        data.tensor(step.astype(np.float32)),
        base,
        data.tensor(tried) * moves,
        recorded,
    )


def _ticks_since_planned(record: Episode, executed: np.ndarray, index: np.ndarray) -> np.ndarray:
    """How long before each executed action, int64 [n], its chunk was planned: as many ticks as its index says, and as
    many more as the robot had to wait before the chunk began, which is in the action's age.
    """
    age_ms = record.extras.get("action_age_ms")
    return index if age_ms is None else np.rint(age_ms[executed] * record.control_hz / 1000).astype(np.int64)


@torch.no_grad()
def spread_of(played: PlayedChunks, mean: Tensor, edit: Edit) -> float:
    """The standard deviation of the offsets that were tried around an edit's means [n, A]; 0 if none were, or if the
    episode was not played like that: by another edit, or by a strategy that changes chunks after they were planned.
    """
    moves = played.noise != 0
    own = played.base[torch.arange(len(played.base)), played.first]
    offset = (played.executed - own) * edit.action_normalizer.inverse_scale * moves - mean * moves
    spread = float((offset * played.noise).sum() / played.noise.square().sum().clamp(min=1e-12))
    rest = offset - spread * played.noise
    return spread if spread > _EXACT and float(rest.abs().max()) < _EXACT else 0.0
