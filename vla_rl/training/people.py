"""Whose demonstrations and rescues help: figures for every person who is known by name."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.types import OPERATOR, Source
from vla_rl.data.cache import CachedEpisode, FrameCache
from vla_rl.data.store import EpisodeStore

_EVERY_STEPS = 4  # neighboring steps look alike: so few of them are shown to the critics

Trace = Callable[[FrameCache, NDArray[np.int64]], dict[str, NDArray[Any]]]


def quality_by_operator(cache: FrameCache, store: EpisodeStore, trace: Trace, chunk_ticks: int = 0) -> dict[str, float]:
    """Measure each person, under ``NAME/FIGURE``: ``demonstrations`` and their mean length (``steps``), ``takeovers``
    and their share of successes (``rescued``), and ``person_steps``. Critics add means over the person's steps:
    ``advantage_gate`` (1: as good as usual), ``efficiency_advantage`` (steps saved) and ``value_rise`` (rise of the
    value per chunk). Empty where no person is known by name.
    """
    episodes: dict[str, list[CachedEpisode]] = {}
    frames: dict[str, list[NDArray[np.int64]]] = {}
    for episode in cache.episodes:
        names = [name.removeprefix(OPERATOR) for name in episode.extras if name.startswith(OPERATOR)]
        for name in names:
            rows = np.arange(episode.start, episode.start + episode.length)
            if len(names) > 1:
                by_person = store.read(episode.episode_id).extras[OPERATOR + name].astype(bool)
            else:
                by_person = np.isin(cache.source[rows], (Source.HUMAN, Source.DEMO))
            if by_person.any():
                episodes.setdefault(name, []).append(episode)
                frames.setdefault(name, []).append(rows[by_person])
    found: dict[str, float] = {}
    for name in sorted(episodes):
        shown = [episode for episode in episodes[name] if episode.policy_version < 0]
        taken = [episode for episode in episodes[name] if episode.policy_version >= 0]
        steps = np.concatenate(frames[name])
        looked_at = steps[::_EVERY_STEPS]
        traced = trace(cache, looked_at)
        figures: dict[str, float] = {"demonstrations": len(shown), "takeovers": len(taken), "person_steps": len(steps)}
        if shown:
            figures["steps"] = float(np.mean([episode.length for episode in shown]))
        if taken:
            figures["rescued"] = float(np.mean([episode.success is True for episode in taken]))
        for column in ("advantage_gate", "efficiency_advantage"):
            if column in traced:
                figures[column] = float(np.mean(traced[column]))
        later, inside = cache.later(looked_at, chunk_ticks)
        along = inside & np.isin(later, steps)
        column = next((column for column in ("viability", "discounted_value") if column in traced), "")
        if chunk_ticks and column and along.any():
            figures["value_rise"] = float(np.mean(trace(cache, later[along])[column] - traced[column][along]))
        found |= {f"{name}/{figure}": value for figure, value in figures.items()}
    return found
