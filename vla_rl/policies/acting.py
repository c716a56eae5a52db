"""A trainable policy behind the loop's `Policy` protocol. Numpy in, numpy out; one instance belongs to one thread."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from vla_rl.core.errors import UserError
from vla_rl.core.flow_sampling import flow_noise
from vla_rl.core.policy_spec import padded_with_mean
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.policies.base import Inputs, flat_features
from vla_rl.policies.best_of_n import BestOfN
from vla_rl.policies.checkpoint import save_policy

if TYPE_CHECKING:
    from vla_rl.policies.trainable import TrainablePolicy

_EXPLORATION_SEED = 0x51ED270B  # so that an offset is not the noise of the draw


def exploration_noise(seed: int, tick: int, action_dim: int) -> Float32Array:
    """Sample the standard normal offset noise of the chunk planned at a tick, float32 [1, A]. It is a function of
    (seed, tick), so an algorithm can recover the offset from an episode.
    """
    return flow_noise(seed ^ _EXPLORATION_SEED, tick, 1, action_dim)


class Draw(NamedTuple):
    """What one chunk is drawn from.

    Attributes:
        inputs: The observation, [1, ...].
        tick: [1], its own.
        noise: [1, rows, A].
        committed: [1, d, A] or nothing.
        selects: Whether the selector has its part.
    """

    inputs: Inputs
    tick: Tensor
    noise: Tensor
    committed: Tensor | None
    selects: bool = True


_KEPT_SENTENCES = 100


class ActingPolicy:
    """Plans chunks with a `TrainablePolicy`, in eval mode, whose weights may be replaced in place between calls.

    Attributes:
        folder: It was loaded from there; None: it was made here.
        selector: Chooses among several draws; None: the first one is executed.
        noise_seed: Of the noise of chunks and offsets, where it is another than the episode's; None: the episode's.
        exploration: Standard deviation of an offset of each chunk, one and the same for all of its actions, in
            units of `Statistics.offset_scale`; 0: none.
    """

    def __init__(self, model: "TrainablePolicy", device: str = "cpu", version: int = 0) -> None:
        self.model = model.to(device).eval()
        self.device = device
        self.version = version
        self.folder: Path | None = None
        self.selector: BestOfN | None = None
        self.exploration = 0.0
        self.noise_seed: int | None = None
        self._action_size = model.spec.action_sizes
        self._mean_state = np.asarray(model.statistics.state.mean, np.float32)
        self._mean_action = np.asarray(model.statistics.action.mean, np.float32)
        self._text: dict[str, Tensor] = {}
        self._ask: Callable[[Draw], Tensor] | None = None
        self.reset(0)

    def save(self, folder: Path | str, meta: dict[str, Any] | None = None) -> None:
        """Write the policy's folder, with plain ``meta`` data: what chooses for it, then the weights.

        A policy in it is replaced.
        """
        save_policy(Path(folder), self.model, self.selector, {"policy_version": self.version, **(meta or {})})

    def twin(self) -> Self:
        """Return a policy with shared weights for another episode at the same time."""
        twin = copy.copy(self)
        twin.reset(0)
        return twin

    def asking(self, ask: Callable[[Draw], Tensor], noise_seed: int | None = None) -> Self:
        """Return the policy for one of several attempts that run in turns: it requests its samples (`draw_all`)."""
        twin = self.twin()
        twin._ask, twin.noise_seed = ask, noise_seed
        twin.reset(0)
        return twin

    @torch.no_grad()
    def draw_all(self, draws: Sequence[Draw]) -> list[Tensor]:
        """Return the chunk of each, [1, H, A], of one forward pass for all that have as much committed."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for index, draw in enumerate(draws):
            shapes = (draw.selects, 0 if draw.committed is None else draw.committed.shape[1], *draw.inputs[2].shape)
            alike.setdefault(shapes, []).append(index)
        drawn: list[Tensor] = [draws[0].noise] * len(draws)
        for indices in alike.values():
            some = [draws[index] for index in indices]
            images, states, texts = zip(*(draw.inputs for draw in some), strict=True)
            inputs = {name: torch.cat([image[name] for image in images]) for name in images[0]}
            fixed = [draw.committed for draw in some if draw.committed is not None]
            chunks = self._drawn(
                (inputs, torch.cat(states), torch.cat(texts)),
                torch.cat([draw.tick for draw in some]),
                torch.cat([draw.noise for draw in some]),
                torch.cat(fixed) if fixed else None,
                some[0].selects,
            )
            for row, index in enumerate(indices):
                drawn[index] = chunks[row : row + 1]
        return drawn

    def reset(self, seed: int) -> None:
        """Start an episode: the sampling noise of each tick follows from the seed."""
        self._seed = seed if self.noise_seed is None else self.noise_seed
        self._chunk_id = 0

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan a chunk that starts at the observation's tick, with exactly the committed actions, float32 [d, A].

        Raises:
            UserError: for a missing camera, a wrong shape, or a longer committed prefix than a chunk.
        """
        inputs = self._inputs(observation)
        fixed = None if committed is None or len(committed) == 0 else self._actions(committed)
        draw = Draw(inputs, self._tick(observation), self._noise(observation.tick), fixed)
        actions = self.draw_all([draw])[0] if self._ask is None else self._ask(draw)
        if self.exploration:
            actions = actions + self._offset(observation.tick)
        if fixed is not None:  # also of a policy that was not trained to go on from them
            actions[:, : fixed.shape[1]] = fixed[:, : actions.shape[1]]
        return self._chunk(observation, actions)

    @property
    def refines(self) -> bool:
        """Whether its residual may move a chunk as it enters (`vla_rl.core.protocols.RefiningPolicy`)."""
        return self.selector is not None and self.selector.refines

    def plan(self, observation: Observation) -> ActionChunk:
        """Plan a chunk that is not refined yet."""
        noise = self._noise(observation.tick)[:, : self.model.horizon]
        draw = Draw(self._inputs(observation), self._tick(observation), noise, None, selects=False)
        return self._chunk(observation, self.draw_all([draw])[0] if self._ask is None else self._ask(draw))

    @torch.no_grad()
    def refine(self, chunk: ActionChunk, observation: Observation, index: int) -> ActionChunk:
        """Move a chunk of `plan` by the residual, at what is seen now. A practicing policy explores from there."""
        assert self.selector is not None
        features = flat_features(*self.model.features(*self._inputs(observation)))
        actions = self.selector.refined(features, self._tick(observation), self._actions(chunk.actions), index)
        if self.exploration:
            actions = actions + self._offset(chunk.start_tick)
        return replace(chunk, actions=self._own(observation, actions))

    def _drawn(self, inputs: Inputs, tick: Tensor, noise: Tensor, committed: Tensor | None, selects: bool) -> Tensor:
        if self.selector is not None and selects:
            return self.selector.draw(self.model, inputs, tick, noise, committed)
        return self._draw(inputs, noise, committed)

    def _draw(self, inputs: Inputs, noise: Tensor, committed: Tensor | None) -> Tensor:
        return self.model.draw(*inputs, noise, committed)

    @property
    def n_obs_steps(self) -> int:
        """Number of observations, of consecutive ticks, that the policy reads."""
        return self.model.n_obs_steps

    def _inputs(self, observation: Observation) -> Inputs:
        expected, several = self.model.n_obs_steps, (*observation.past, observation)
        if expected == 1:
            return self._input(observation)
        if len(several) != expected:
            raise UserError(f"the policy reads {expected} observations, found are {len(several)}; give `past`")
        images, states, texts = zip(*map(self._input, several), strict=True)
        return (
            {name: torch.stack([image[name] for image in images], 1) for name in images[0]},
            torch.stack(states, 1),
            texts[-1],
        )

    def _input(self, observation: Observation) -> Inputs:
        self.model.spec.check(observation)
        images = {name: self._tensor(observation.images[name]) for name in self.model.spec.cameras}
        return (
            images,
            self._tensor(padded_with_mean(observation.state, self._mean_state)),
            self._tokens(observation.task),
        )

    def _offset(self, tick: int) -> Tensor:
        """Return the offset of this tick's chunk, [1, 1, A], raw units: none in discrete dimensions."""
        noise = exploration_noise(self._seed, tick, self.model.spec.action_dim)
        return self._tensor(np.float32(self.exploration) * noise * self.model.statistics.offset_scale())

    def _tick(self, observation: Observation) -> Tensor:
        return torch.tensor([float(observation.tick)], device=self.device)

    def _noise(self, tick: int) -> Tensor:
        """[1, rows, A], of this tick: H, or as many as a choice takes, of which the first H are the same."""
        horizon = self.model.horizon
        rows = horizon if self.selector is None else self.selector.noise_rows(horizon)
        return self._tensor(flow_noise(self._seed, tick, rows, self.model.spec.action_dim))

    def _chunk(self, observation: Observation, actions: Tensor) -> ActionChunk:
        chunk = ActionChunk(self._own(observation, actions), observation.tick, self._chunk_id, self.version)
        self._chunk_id += 1
        return chunk

    def _own(self, observation: Observation, actions: Tensor) -> Float32Array:
        """Actions [1, H, A] -> [H, A of this robot]."""
        own: Float32Array = actions[0, :, : self._action_size[observation.state.size]].float().cpu().numpy()
        return own

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)[None]

    def _tokens(self, task: str) -> Tensor:
        if task not in self._text:
            if len(self._text) >= _KEPT_SENTENCES:  # a server's clients may send a new one each time
                self._text.clear()
            self._text[task] = self.model.tokenize([task]).to(self.device)
        return self._text[task]

    def _actions(self, actions: Float32Array) -> Tensor:
        """Given actions, [d, A of this robot] -> [1, d, A]."""
        return self._tensor(self.model.spec.given(actions, self.model.horizon, self._mean_action))
