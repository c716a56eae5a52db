"""What a world model is worth: following of actions, horizons, rewards. Read by the state probe, never by PSNR.

Horizon curves and action following start from moments of held-out real episodes. Imagination gets the sent actions, or
those of another episode, to test whether it follows them. The probe reads the imagined pictures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.world_probe import StateProbe, position_error, read_positions
from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array
from vla_rl.critics.calibration import auc
from vla_rl.data.cache import FrameCache
from world_model.heads import SUCCESS_THRESHOLD
from world_model.model import WorldModel
from world_model.open_loop import Imagined, imagine
from world_model.windows import LatentEpisodes, pictures

_BATCH = 64
_DECODE = 64
_FLOOR_FRAMES = 512


@dataclass(frozen=True)
class HorizonConfig:
    """The evaluation of futures.

    Attributes:
        horizons: steps ahead, ascending.
        windows: futures that are imagined.
        moving_m: a window counts if a point moves this far within ``moving_steps``; a still scene proves nothing.
        moving_steps: see ``moving_m``.
    """

    horizons: tuple[int, ...] = (1, 2, 5, 10, 20, 40)
    windows: int = 192
    moving_m: float = 0.02
    moving_steps: int = 10


def probe_floor(model: WorldModel, cache: FrameCache, probe: StateProbe, positions: Float32Array) -> dict[str, float]:
    """Errors of the probe on held-out real frames and on their reconstructions, meters, per point and together."""
    real = np.concatenate([np.arange(e.start, e.start + e.length) for e in cache.episodes])
    drawn = np.random.default_rng(0).permutation(len(real))[:_FLOOR_FRAMES]
    images = pictures(cache, real[drawn], model.spec.cameras)
    with torch.no_grad():
        rebuilt = torch.cat(
            [model.autoencoder.decode(model.autoencoder.encode(part)) for part in images.split(_DECODE)]
        )
    points = range(positions.shape[1])
    true = positions[drawn]
    return {
        "real_m": float(position_error(read_positions(probe, images), true, points).mean()),
        "reconstruction_m": float(position_error(read_positions(probe, rebuilt), true, points).mean()),
    }


def choose_windows(
    data: LatentEpisodes, positions: Float32Array, config: HorizonConfig
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Moments from which the longest horizon fits and in which something moves: episodes and steps, int64 [B].

    Raises:
        UserError: if there are none.
    """
    longest = config.horizons[-1]
    candidates = []
    for index in range(len(data.episodes)):
        start, length = int(data.start[index]), int(data.length[index])
        steps = np.arange(0, length - longest)
        if len(steps) == 0:
            continue
        track = positions[start : start + length]
        near = np.minimum(steps + config.moving_steps, length - 1)
        moved = np.linalg.norm(track[near] - track[steps], axis=-1).max(-1)
        candidates += [(index, step) for step in steps[moved > config.moving_m]]
    if not candidates:
        raise UserError(f"no held-out episode moves and lasts {longest} steps; give shorter horizons or more episodes")
    order = np.random.default_rng(0).permutation(len(candidates))[: config.windows]
    chosen = np.array(candidates, dtype=np.int64)[order]
    return chosen[:, 0], chosen[:, 1]


def horizon_curves(
    model: WorldModel,
    data: LatentEpisodes,
    probe: StateProbe,
    positions: Float32Array,
    points: dict[str, Sequence[int]],
    config: HorizonConfig | None = None,
) -> dict[str, Any]:
    """Errors of imagined futures by horizon, meters.

    Args:
        model: in eval mode.
        data: held-out real episodes.
        probe: trained on other episodes.
        positions: true ones of the frames of ``data``, float32 [N, K, 3].
        points: name -> points that are averaged, for example ``{"objects": [2, 3], "all": [0, 1, 2, 3]}``.
        config: the windows.

    Returns:
        ``horizons``, ``windows``, and lists for each name in ``points``: ``true`` (open loop, the actions sent),
        ``shuffled`` (those of another window) and ``persistence`` (the last real frame). Also ``teacher_forced`` (one
        step ahead, every step from reality) and ``ratio`` (true / shuffled). ``state`` is the error of the imagined
        proprioception, root mean square over dimensions, in their standard deviations.
    """
    config = config or HorizonConfig()
    episode, first = (torch.from_numpy(column) for column in choose_windows(data, positions, config))
    frame = data.start[episode] + first
    longest = config.horizons[-1]
    actions = data.action[frame[:, None] + torch.arange(longest)]
    other = torch.from_numpy(_derangement(len(frame)))
    ahead = [horizon - 1 for horizon in config.horizons]
    futures = {
        "true": _imagined(model, data, episode, first, actions),
        "shuffled": _imagined(model, data, episode, first, actions[other]),
    }
    read = {name: _read(model, probe, future.latents[:, ahead]) for name, future in futures.items()}
    still = data.latents[frame][:, None].expand(-1, len(ahead), -1, -1)
    read["persistence"] = _read(model, probe, still)
    before = first[:, None] + torch.tensor(ahead)  # the step before each horizon
    forced = _imagined(
        model,
        data,
        episode.repeat_interleave(len(ahead)),
        before.flatten(),
        data.action[(data.start[episode][:, None] + before).flatten()][:, None],
    )
    read["teacher_forced"] = _read(model, probe, forced.latents.unflatten(0, (-1, len(ahead)))[:, :, 0])
    later = frame[:, None] + torch.tensor(config.horizons)
    true = positions[later.numpy()]
    result: dict[str, Any] = {"horizons": list(config.horizons), "windows": len(frame)}
    for name, chosen in points.items():
        curves = {kind: position_error(found, true, chosen).mean(0).tolist() for kind, found in read.items()}
        curves["ratio"] = [own / wrong for own, wrong in zip(curves["true"], curves["shuffled"], strict=True)]
        result[name] = curves
    wrong = (futures["true"].state[:, ahead] - data.state[later]) / model.dynamics.state_std.cpu()
    result["state"] = wrong.square().mean((0, 2)).sqrt().tolist()
    return result


def judge_successes(score: NDArray[np.float64], truth: NDArray[np.bool_]) -> dict[str, Any]:
    """How far imagined successes can be trusted.

    Args:
        score: float [n], the highest success probability along each imagined episode.
        truth: bool [n], whether the same actions from the same start succeed in the simulator.

    Returns:
        ``episodes``, ``real_successes`` among them, ``auc``, ``false_success_rate`` (imagined successes among real
        failures), ``missed_success_rate`` and ``agreement``; a rate is None where there is nothing to divide by.
    """
    imagined = score >= SUCCESS_THRESHOLD
    area = auc(score, truth)
    return {
        "episodes": len(score),
        "real_successes": int(truth.sum()),
        "auc": None if np.isnan(area) else area,
        "false_success_rate": _mean(imagined[~truth]),
        "missed_success_rate": _mean(~imagined[truth]),
        "agreement": _mean(imagined == truth),
    }


def _imagined(model: WorldModel, data: LatentEpisodes, episode: Tensor, first: Tensor, actions: Tensor) -> Imagined:
    parts = [
        imagine(model, data, *rows)
        for rows in zip(episode.split(_BATCH), first.split(_BATCH), actions.split(_BATCH), strict=True)
    ]
    columns = zip(*((p.latents, p.state, p.success) for p in parts), strict=True)
    return Imagined(*(torch.cat(column) for column in columns))


@torch.no_grad()
def _read(model: WorldModel, probe: StateProbe, latents: Tensor) -> Float32Array:
    """Positions [B, H, K, 3] that the probe reads of latents [B, H, N, D]."""
    frames = latents.flatten(0, 1).split(_DECODE)
    images = torch.cat([model.autoencoder.decode(part.to(model.device)).cpu() for part in frames])
    return read_positions(probe, images).reshape(*latents.shape[:2], -1, 3)


def _derangement(count: int) -> NDArray[np.int64]:
    """Another window for each, int64 [count]."""
    order = np.random.default_rng([0, 1]).permutation(count)
    partner = np.empty(count, np.int64)
    partner[order] = np.roll(order, 1)
    return partner


def _mean(values: NDArray[np.bool_]) -> float | None:
    return float(values.mean()) if len(values) else None
