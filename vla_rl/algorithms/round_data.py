"""The cached frames and their credit, as a round found them; and batches of them as tensors."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.core.dimensions import missing_dimensions
from vla_rl.credit import ActorKind, CreditConfig, SegmentKind, assign_batch, imitated_dims
from vla_rl.data.cache import FrameCache
from vla_rl.policies.base import BasePolicy, Indicator, Inputs, PolicyBatch, random_shift

_SHIFT = 3  # pixels of the random-shift augmentation, for critics too
RolloutUse = Literal["none", "successes", "all"]
Frames = NDArray[np.int64]


class RoundData:
    """Read access for actor and critics. Frame numbers are those of the cache and hold until it is refreshed.

    Args:
        cache: the episodes.
        credit: the rule.
        model: the policy, for its tokenizer, horizon and device.

    Attributes:
        credit: `StepCredit` of all frames.
        longest: length of the longest episode, at least 1.
    """

    def __init__(self, cache: FrameCache, credit: CreditConfig, model: BasePolicy) -> None:
        self.cache, self._model = cache, model
        episodes = cache.episodes
        lengths = [episode.length for episode in episodes]
        self.credit = assign_batch(
            cache.source,
            lengths,
            [episode.success for episode in episodes],
            [episode.origin for episode in episodes],
            credit,
            self._motion() if credit.idle_steps else None,
        )
        self.longest = max(lengths, default=1)
        self._imitated = imitated_dims(self.credit, model.spec.action_dim, credit)
        self._missing_state = missing_dimensions([episode.state_dim for episode in episodes], cache.state.shape[1])
        self._missing_action = missing_dimensions([episode.action_dim for episode in episodes], cache.action.shape[1])
        self._text = model.tokenize(cache.tasks) if cache.tasks else torch.zeros(0, 1, dtype=torch.int64)

    def _motion(self) -> NDArray[np.float32]:
        """The commanded motion of each step, float32 [N]: the largest change of a target or size of a step, in standard
        deviations of the dimension. The first step of an episode moves.
        """
        scale = np.maximum(self._model.statistics.action.scale, 1e-6).astype(np.float32)
        action, steps = self.cache.action, list(self._model.spec.delta_dims)
        change = np.diff(action, axis=0, prepend=np.float32("inf"))
        change[:, steps] = action[:, steps]
        change[[episode.start for episode in self.cache.episodes]] = np.inf
        return np.abs(change / scale).max(axis=1, initial=0.0)

    @property
    def by_people(self) -> NDArray[np.bool_]:
        """The frames of demonstrations and interventions, bool [N]."""
        return np.isin(self.credit.segment, (SegmentKind.INTERVENTION, SegmentKind.DEMONSTRATION))

    @property
    def device(self) -> torch.device:
        return next(self._model.parameters()).device

    def of_kind(self, kind: ActorKind) -> NDArray[np.bool_]:
        """The frames that the actor may use as this kind, bool [N]."""
        chosen: NDArray[np.bool_] = self.credit.actor_kind == kind
        return chosen

    def actor_groups(self, interventions: bool = True, rollouts: RolloutUse = "all") -> dict[str, Frames]:
        """The frames that an actor may draw, under the names that `MixtureConfig` has for their groups."""
        played = self.of_kind(ActorKind.ROLLOUT) & (rollouts != "none")
        if rollouts == "successes":
            played &= self.credit.actor_outcome
        rescued = self.of_kind(ActorKind.INTERVENTION) & interventions
        return {
            "demonstrations": np.flatnonzero(self.of_kind(ActorKind.DEMONSTRATION)),
            "interventions": np.flatnonzero(rescued),
            "rollouts": np.flatnonzero(played),
        }

    def inputs(self, frames: Frames, generator: torch.Generator | None = None) -> Inputs:
        """Return what the policy reads at the frames, as `newest`. If it reads several observations, they have a second
        dimension, the oldest first, and the pictures of a sample have one shift.
        """
        count = self._model.n_obs_steps
        if count == 1:
            return self.newest(frames, generator)
        each, begun = [], None if generator is None else generator.get_state()
        for row in self._back(frames, count - 1).T:
            if generator is not None and begun is not None:
                generator.set_state(begun)
            each.append(self.newest(row, generator))
        images = {camera: torch.stack([one[0][camera] for one in each], 1) for camera in each[0][0]}
        return images, torch.stack([one[1] for one in each], 1), each[-1][2]

    def _back(self, frames: Frames, count: int) -> Frames:
        """Return the ``count`` frames before each frame, then the frame, int64 [B, count + 1]. The first one of an
        episode stands for those before it.
        """
        first = np.asarray(frames) - self.cache.position[frames]
        return np.maximum(np.asarray(frames)[:, None] - np.arange(count, -1, -1), first[:, None])

    def newest(self, frames: Frames, generator: torch.Generator | None = None) -> Inputs:
        """Return the observations of the frames, on the model's device; with a generator, pictures are shifted at
        random.
        """
        batch = self.cache.observations(frames)
        images = {camera: torch.from_numpy(np.ascontiguousarray(image)) for camera, image in batch.images.items()}
        if generator is not None:
            images = random_shift(images, _SHIFT, generator)
        text = self._text[torch.from_numpy(np.asarray(batch.task_index, dtype=np.int64))]
        device, state = self.device, self._states(frames, batch.state)
        return {camera: image.to(device) for camera, image in images.items()}, state, text.to(device)

    def policy_batch(
        self, frames: Frames, generator: torch.Generator | None = None, indicator: Tensor | None = None
    ) -> PolicyBatch:
        """Return a batch of the actor. Chunks end where the credit of their first step ends, or hold still after a
        success. So no part of a chunk near the goal is without a target.

        Args:
            frames: int64 [B].
            generator: of the random shifts, and of how far state and actions are ahead of the images (VLASH).
            indicator: int64 [B]; default: everything that is imitated is worth imitating (positive).
        """
        begin = self._begin(frames, generator)
        actions, inside = self.cache.chunks(begin, self._model.horizon)
        steps = begin[:, None] + np.arange(actions.shape[1])
        stop = self.credit.chunk_stop[begin][:, None]
        valid = (steps < stop) | (~inside & self.credit.terminal_success[stop - 1])
        actions = self._filled(self._still_behind(actions, inside), frames)
        counted = valid[..., None] & self._imitated[np.minimum(steps, stop - 1)]  # [B, H, A]
        if indicator is None and self._model.indicator:
            indicator = torch.full((len(frames),), int(Indicator.POSITIVE), device=self.device)
        images, state, text = self.inputs(frames, generator)
        earlier = None
        if (past := self._model.n_obs_steps - 1) > 0:
            before = self._back(frames, past)[:, :-1]
            earlier = self.tensor(self._filled(self.cache.action[before], frames))
        else:
            state = self._states(begin, self.cache.state[begin])
        return PolicyBatch(images, state, text, self.tensor(actions), self.tensor(counted), indicator, earlier)

    def _begin(self, frames: Frames, generator: torch.Generator | None) -> Frames:
        """Return the frames of the chunks' first actions, int64 [B]. They follow the images by up to
        ``future_state_max`` steps, within the credit of the frame (VLASH, arXiv 2512.01031). The images' own without
        that option.
        """
        frames, longest = np.asarray(frames), self._model.future_state_max
        if longest == 0 or generator is None:
            return frames
        ahead = torch.randint(0, longest + 1, (len(frames),), generator=generator).numpy()
        return np.minimum(frames + ahead, np.maximum(self.credit.chunk_stop[frames] - 1, frames))

    def _states(self, frames: Frames, state: NDArray[np.float32]) -> Tensor:
        """States of frames, [B, S], on the model's device. Dimensions that a smaller robot does not have are at their
        mean, which is 0 once normalized.
        """
        if self._model.spec.sizes:
            mean = np.asarray(self._model.statistics.state.mean, np.float32)
            state = np.where(self._missing_state[self.cache.episode_index[frames]], mean, state)
        return self.tensor(state)

    def sent_chunks(self, frames: Frames, horizon: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the executed chunks, float32 [B, H, A] and bool [B, H] (`FrameCache.chunks`), standing still behind
        the end. Dimensions that a smaller robot does not have are at their mean.
        """
        actions, inside = self.cache.chunks(frames, horizon, sent=True)
        return self._filled(self._still_behind(actions, inside), frames), inside

    def _still_behind(self, actions: NDArray[np.float32], inside: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return chunks [B, H, A] that stand still behind the end of their episode. The cache repeats the last action
        there: this holds a target, while a step must become 0. In place.
        """
        actions[..., list(self._model.spec.delta_dims)] *= inside[..., None]
        return actions

    def _filled(self, actions: NDArray[np.float32], frames: Frames) -> NDArray[np.float32]:
        """Actions of frames, [B, H, A], as `_states`."""
        if not self._model.spec.sizes:
            return actions
        mean = np.asarray(self._model.statistics.action.mean, np.float32)
        return np.where(self._missing_action[self.cache.episode_index[frames]][:, None], mean, actions)

    def transition(self, frames: Frames, steps: int) -> tuple[Frames, Tensor, Tensor]:
        """Return the frames ``steps`` later, int64 [B].

        Also the steps really taken, float [B], and bool [B]: the episode ended before.
        """
        later, inside = self.cache.later(frames, steps)
        return later, self.tensor((later - frames).astype(np.float32)), self.tensor(~inside)

    def task_index(self, frames: Frames) -> NDArray[np.int64]:
        """Index of each frame's task in ``cache.tasks``, int64 [B]."""
        return self.cache.task_index(frames)

    def steps_left(self, frames: Frames) -> NDArray[np.int64]:
        """Steps from each frame to the last one of its episode, int64 [B]; 0 on the last."""
        last, _ = self.cache.later(frames, self.cache.total_frames)
        return last - np.asarray(frames)

    def discounted_return(self, frames: Frames, discount: float) -> NDArray[np.float32]:
        """discount^(steps to success) for the frames of successes, 0 for others, float32 [B]."""
        power = np.power(discount, self.steps_left(frames).astype(np.float32), dtype=np.float32)
        return np.where(self.credit.actor_outcome[frames], power, np.float32(0))

    def tensor(self, array: NDArray[np.generic]) -> Tensor:
        """On the model's device."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
