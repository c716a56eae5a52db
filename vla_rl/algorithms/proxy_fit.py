"""Step 1 for a policy behind a proxy: the proxy learns to imitate the chunks of its frozen base policy.

It learns from every stored observation, failures too, and from what the base policy plans there. Executed chunks are no
data, since they contain residuals and exploration. Each round begins where the round before ended. Half of a batch
comes from the newest policy's episodes. Learning stops as soon as the proxy is good enough on held-out episodes.

Imagined gain and the value's score do not show a bad proxy. The held-out error does, so it decides whether anything is
imagined.
"""

import logging
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.algorithms.actor import ActorLearner
from vla_rl.algorithms.round_data import Frames, RoundData
from vla_rl.algorithms.sampling import MixtureSampler, derived_seed, fold_of
from vla_rl.core.flow_sampling import flow_noise
from vla_rl.core.progress import track
from vla_rl.policies.base import PolicyBatch
from vla_rl.policies.named import is_name
from vla_rl.policies.proxy import ProxiedPolicy
from vla_rl.policies.proxy.base import BaseChunks, keys_of

logger = logging.getLogger(__name__)
GOOD, BAD = 0.04, 0.15  # unexplained share of the variance: learning stops; nothing is imagined
_CHECK_EVERY = 50  # gradient steps
_FOLDS = 15  # one episode in 15 is held out
_MEASURED = 512  # largest number of held-out frames
_AT_ONCE = 64  # frames per request
_TIMED = 16  # frames that are asked for to know what the others will cost


class ProxyFit:
    """Fits a proxy to its base policy.

    Args:
        model: Base policy and proxy.
        actor: Trains the proxy.
        batch_size: Frames per gradient step.
        ticks: C, number of actions whose error is measured.
        seed: Of batches and of the noise of the base policy's chunks.

    Attributes:
        unexplained: Share of the variance of the base policy's chunks that the proxy leaves unexplained in held-out
            episodes, in normalized units. It is infinite before the first fit.
        spread: The same share between two chunks of the base policy; 0 for a policy that plans one.
        logs: Both. ``base_asked`` observations were shown to the base policy in this round, which took ``base_s``
            seconds, and the chunks of ``base_known`` were known. The proxy's gradient steps took ``proxy_s`` seconds.
    """

    def __init__(self, model: ProxiedPolicy, actor: ActorLearner, batch_size: int, ticks: int, seed: int) -> None:
        self._model, self._actor, self._batch_size, self._ticks = model, actor, batch_size, ticks
        self._seed = derived_seed(seed, "proxy")
        self._sampler: MixtureSampler | None = None
        self.unexplained, self.spread, self.stopped = float("inf"), 0.0, False
        self.logs: dict[str, float] = {}
        model.asks = False  # learning never asks by accident
        self._chunks = model.chunks = model.chunks or BaseChunks((model.horizon, model.spec.action_dim))

    @property
    def fits(self) -> bool:
        """Whether imagined chunks are those of the base policy."""
        return self._avoidable() <= BAD

    def begin_round(self, data: RoundData, is_new: bool) -> None:
        """Take the episodes of a round. Nothing is asked before `prepare`."""
        self._data, self._sampler, self._is_prepared = data, None, False
        self.stopped &= not is_new
        self._chunks.refresh()

    def prepare(self) -> None:
        """Get the base policy's chunks at stored observations, once a round. Those that it planned while practicing are
        known.
        """
        if self._is_prepared:
            return
        self._is_prepared = True
        data, chunks = self._data, self._chunks
        every = np.arange(data.cache.total_frames)
        keys: list[list[bytes]] = []
        for part in np.array_split(every, max(1, len(every) // _AT_ONCE)):
            inputs = data.inputs(part)
            keys += keys_of(inputs, self._model.sentences(inputs[2]), self._noise(part))
        known = np.array([all(chunks.get(key) is not None for key in own) for own in keys], bool)
        asked, base = self._wanted(known), self._model.base
        self.logs = {"base_asked": float(len(asked)), "base_known": float(known.sum()), "proxy_s": 0.0}
        begun_s = base.seconds
        if len(asked):
            self._model.asks = True
            try:
                self._plan(asked[:_TIMED])
                each_s = (base.seconds - begun_s) / len(asked[:_TIMED])
                logger.info(
                    "the base policy %s is shown %d of %d stored observations, about %s h (policy.asks_per_round)",
                    *(base.source, len(asked), len(every), timedelta(seconds=round(each_s * len(asked)))),
                )
                rest = asked[_TIMED:]
                for part in track(np.array_split(rest, max(1, len(rest) // _AT_ONCE)), "base policy", "request"):
                    self._plan(part)
            finally:
                self._model.asks = False
            chunks.refresh()
        self.logs["base_s"] = base.seconds - begun_s
        found = [[chunks.get(key) for key in own] for own in keys]
        self._frames = np.array([frame for frame, own in enumerate(found) if all(c is not None for c in own)], np.int64)
        self._divide(np.array([found[frame] for frame in self._frames], np.float32))

    def update(self, step: int, done: int) -> dict[str, float]:
        """One gradient step, or none where the proxy is good enough.

        Args:
            step: Of the run; keys the randomness.
            done: Gradient steps of this round so far.
        """
        if self._sampler is None or self.stopped:
            return self.logs
        started_s = time.perf_counter()
        chosen = self._sampler.sample(step, self._batch_size)
        action = self._targets[torch.from_numpy(chosen), step % self._targets.shape[1]].to(self._data.device)
        inputs = self._data.inputs(self._frames[chosen])
        batch = PolicyBatch(*inputs, action, torch.ones_like(action, dtype=torch.bool))
        logs = self._actor.update(batch, torch.ones(len(chosen), device=self._data.device), step)
        if (done + 1) % _CHECK_EVERY == 0:
            self.measure()
            self.stopped = self._avoidable() <= GOOD
        self.logs["proxy_s"] += time.perf_counter() - started_s
        return logs | self.logs

    def end_round(self) -> None:
        """Measure the proxy that the round will use, and say how good it is."""
        if self._sampler is not None and not self.stopped:
            self.measure()
        logger.info(
            "the proxy leaves %.1f %% of the variance of the base policy's chunks unexplained (two chunks of the base "
            "policy: %.1f %%)",
            *(100 * self.unexplained, 100 * self.spread),
        )

    @torch.no_grad()
    def measure(self) -> None:
        """Compare proxy and base policy on held-out episodes."""
        held = self._held[:: max(1, len(self._held) // _MEASURED)]
        if not len(held):
            return
        model, planned = self._model.eval(), []
        normalize, target = model.net.action_normalizer.normalize, self._targets[torch.from_numpy(held)]
        for part in np.array_split(held, max(1, len(held) // _AT_ONCE)):
            tokens = model.features(*self._data.inputs(self._frames[part]))
            noise = torch.zeros(len(part), model.horizon, model.spec.action_dim, device=self._data.device)
            planned.append(model.draw_from(*tokens, noise)[:, : self._ticks])
        base = normalize(target[:, :, : self._ticks].to(self._data.device))
        variance = base[:, 0].var(0, correction=0).mean().clamp(min=1e-9)
        self.unexplained = float((normalize(torch.cat(planned)) - base[:, 0]).square().mean() / variance)
        self.spread = float((base[:, -1] - base[:, 0]).square().mean() / variance)
        self.logs |= {"proxy_unexplained": self.unexplained, "base_spread": self.spread}

    def state_dict(self) -> dict[str, Any]:
        """All that updates depend on beside weights, seed, step and data."""
        return {"unexplained": self.unexplained, "spread": self.spread, "stopped": self.stopped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.unexplained, self.spread = float(state["unexplained"]), float(state["spread"])
        self.stopped = bool(state["stopped"])

    def _avoidable(self) -> float:
        """Return the unexplained share without the randomness of a base policy whose noise is not ours: half of what
        two of its chunks differ by.
        """
        return self.unexplained - (0.5 * self.spread if is_name(self._model.base.source) else 0.0)

    def _divide(self, targets: NDArray[np.float32]) -> None:
        """Hold episodes out, and prefer new ones."""
        if not len(targets):
            logger.warning("the base policy has planned nothing that the proxy could learn from")
            return
        cache, self._targets = self._data.cache, torch.from_numpy(targets)
        fold = np.array([fold_of(episode.episode_id, _FOLDS) for episode in cache.episodes])
        of_frame = cache.episode_index[self._frames]
        held = fold[of_frame] == min(fold[of_frame])  # fold 0, if there are enough episodes
        self._held, every = np.flatnonzero(held), np.flatnonzero(~held)
        if not len(every):
            every = self._held
        new = np.intersect1d(every, np.flatnonzero(self._is_new()[self._frames]))
        self._sampler = MixtureSampler({"new": new, "every": every}, {"new": 1.0, "every": 1.0}, self._seed)

    def _wanted(self, known: NDArray[np.bool_]) -> Frames:
        """Return the frames to ask for: all that are not known, or evenly spaced ones of the newest episodes."""
        limit = self._model.config.asks_per_round
        if limit is None:
            return np.flatnonzero(~known)
        new = np.flatnonzero(self._is_new())
        chosen = new[:: max(1, -(-len(new) // max(limit, 1)))][:limit]
        return chosen[~known[chosen]]

    def _is_new(self) -> NDArray[np.bool_]:
        """Return which frames are of the newest policy's episodes, bool [N]."""
        version = np.array([episode.policy_version for episode in self._data.cache.episodes])
        return (version == version.max())[self._data.cache.episode_index]

    def _plan(self, frames: Frames) -> None:
        if len(frames):
            self._model.ask(self._data.inputs(frames), self._noise(frames))

    def _noise(self, frames: Frames) -> Tensor:
        """Noise of the chunks at frames, [B, N, H, A]: zero. With several draws a second one is normal, by episode
        and tick.
        """
        model, cache = self._model, self._data.cache
        noise = torch.zeros(len(frames), min(2, model.config.draws), model.horizon, model.spec.action_dim)
        if model.config.draws > 1:
            for row, frame in enumerate(frames):
                seed = derived_seed(self._seed % 2**31, cache.episodes[cache.episode_index[frame]].episode_id)
                tick = int(cache.position[frame])
                noise[row, 1] = torch.from_numpy(flow_noise(seed % 2**31, tick, model.horizon, model.spec.action_dim))
        return noise.to(self._data.device)
