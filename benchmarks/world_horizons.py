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

from benchmarks.world_probe import StateProbe, position_error, read_positions
from vla_rl.core.errors import UserError
from vla_rl.core.normalization import VectorStatistics
from vla_rl.core.types import Float32Array
from vla_rl.critics.calibration import auc
from vla_rl.data.cache import FrameCache
from world_model.imagined_env import SUCCESS_THRESHOLD
from world_model.protocol import Observations, WorldModel

_BATCH = 64
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


@torch.no_grad()
def probe_floor(
    world: WorldModel[Any], cache: FrameCache, probe: StateProbe, positions: Float32Array
) -> dict[str, float]:
    """Errors of the probe on held-out real frames and on their reconstructions, meters, mean over points."""
    real = np.concatenate([np.arange(e.start, e.start + e.length) for e in cache.episodes])
    drawn = np.random.default_rng(0).permutation(len(real))[:_FLOOR_FRAMES]
    moments = Observations(cache, real[drawn])
    rows = torch.arange(len(drawn)).split(_BATCH)
    rebuilt = torch.cat([world.decode(world.encode(moments.at(part))).cpu() for part in rows])
    points = range(positions.shape[1])
    true = positions[drawn]
    return {
        "real_m": float(position_error(read_positions(probe, moments.pictures(probe.cameras)), true, points).mean()),
        "reconstruction_m": float(position_error(read_positions(probe, rebuilt), true, points).mean()),
    }


def choose_windows(cache: FrameCache, positions: Float32Array, config: HorizonConfig) -> NDArray[np.int64]:
    """Moments from which the longest horizon fits and in which something moves: frames int64 [B].

    Raises:
        UserError: if there are none.
    """
    longest = config.horizons[-1]
    candidates = [np.empty(0, np.int64)]
    for each in cache.episodes:
        steps = np.arange(0, each.length - longest)
        track = positions[each.start : each.start + each.length]
        near = np.minimum(steps + config.moving_steps, each.length - 1)
        moved = np.linalg.norm(track[near] - track[steps], axis=-1).max(-1)
        candidates.append(each.start + steps[moved > config.moving_m])
    found = np.concatenate(candidates)
    if not len(found):
        raise UserError(f"no held-out episode moves and lasts {longest} steps; give shorter horizons or more episodes")
    return found[np.random.default_rng(0).permutation(len(found))[: config.windows]]


def horizon_curves(
    world: WorldModel[Any],
    cache: FrameCache,
    probe: StateProbe,
    positions: Float32Array,
    points: dict[str, Sequence[int]],
    config: HorizonConfig | None = None,
) -> dict[str, Any]:
    """Errors of imagined futures by horizon, meters.

    Args:
        world: predicts tick by tick; its states have the ``proprioception``.
        cache: held-out real episodes.
        probe: trained on other episodes.
        positions: true ones of the frames of ``cache``, float32 [N, K, 3].
        points: name -> points that are averaged, for example ``{"objects": [2, 3], "all": [0, 1, 2, 3]}``.
        config: the windows.

    Returns:
        ``horizons``, ``windows``, and lists for each name in ``points``: ``true`` (open loop, the actions sent),
        ``shuffled`` (those of another window) and ``persistence`` (the last real frame, as the world draws it). Also
        ``teacher_forced`` (one step ahead, every step from reality) and ``ratio`` (true / shuffled). ``state`` is the
        error of the imagined proprioception, root mean square over dimensions that move, in their standard deviations
        (at least the floor of `VectorStatistics`).
    """
    config = config or HorizonConfig()
    frames, horizons = choose_windows(cache, positions, config), np.array(config.horizons)
    actions = cache.action_sent[frames[:, None] + np.arange(config.horizons[-1])]
    later = frames[:, None] + horizons
    read = {}
    read["true"], state = _read(world, probe, Observations(cache, frames), actions, config.horizons)
    shuffled = actions[_derangement(len(frames))]
    read["shuffled"], _ = _read(world, probe, Observations(cache, frames), shuffled, config.horizons)
    still, _ = _read(world, probe, Observations(cache, frames), actions, (0,))
    read["persistence"] = np.repeat(still, len(horizons), 1)
    before = (later - 1).flatten()
    forced, _ = _read(world, probe, Observations(cache, before), cache.action_sent[before][:, None], (1,))
    read["teacher_forced"] = forced.reshape(*later.shape, -1, 3)
    true = positions[later]
    result: dict[str, Any] = {"horizons": list(config.horizons), "windows": len(frames)}
    for name, chosen in points.items():
        curves = {kind: position_error(found, true, chosen).mean(0).tolist() for kind, found in read.items()}
        curves["ratio"] = [own / wrong for own, wrong in zip(curves["true"], curves["shuffled"], strict=True)]
        result[name] = curves
    statistics = VectorStatistics.from_array(cache.state, "state")
    moves = ~statistics.constant
    wrong = (state - cache.state[later])[..., moves] / statistics.scale[moves]
    result["state"] = np.sqrt(np.square(wrong).mean((0, 2))).tolist()
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


def _read(
    world: WorldModel[Any],
    probe: StateProbe,
    observations: Observations,
    actions: NDArray[np.float32],
    horizons: Sequence[int],
) -> tuple[Float32Array, Float32Array]:
    """Return positions [B, H, K, 3] that the probe reads from imagined pictures, and proprioception, per horizon."""
    seen, state = [], []
    for rows in torch.arange(len(actions)).split(_BATCH):
        now, read, sensed = world.encode(observations.at(rows)), list[Float32Array](), list[Float32Array]()
        for step in range(horizons[-1] + 1):
            if step in horizons:
                read.append(read_positions(probe, world.decode(now).cpu()))
                sensed.append(now.proprioception.cpu().numpy())
            if step < horizons[-1]:
                now = world.predict(now, torch.from_numpy(actions[rows, step])[:, None]).state
        seen.append(np.stack(read, 1))
        state.append(np.stack(sensed, 1))
    return np.concatenate(seen), np.concatenate(state)


def _derangement(count: int) -> NDArray[np.int64]:
    """Another window for each, int64 [count]."""
    order = np.random.default_rng([0, 1]).permutation(count)
    partner = np.empty(count, np.int64)
    partner[order] = np.roll(order, 1)
    return partner


def _mean(values: NDArray[np.bool_]) -> float | None:
    return float(values.mean()) if len(values) else None
