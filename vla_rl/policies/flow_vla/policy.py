"""`FlowVLAPolicy`: the model behind the loop's `Policy` protocol. Numpy in, numpy out; one instance belongs to one
thread.
"""

import numpy as np
import torch
from torch import Tensor

from vla_rl.core.errors import UserError
from vla_rl.core.flow import flow_noise, guidance_weights
from vla_rl.core.types import ActionChunk, Float32Array, Observation, filled_up
from vla_rl.policies.flow_vla.model import FlowVLA, Indicator, Prefix
from vla_rl.policies.guidance import sample_guided


class FlowVLAPolicy:
    """Plans chunks with a `FlowVLA`.

    Args:
        model: put into eval mode; its weights may be replaced in place between calls.
        device: where the model runs.
        version: of the weights.
        steps: Euler steps, default from the model's config.
    """

    def __init__(self, model: FlowVLA, device: str = "cpu", version: int = 0, steps: int | None = None) -> None:
        self.model = model.to(device).eval()
        self.device = device
        self.version = version
        self.steps = steps or model.config.sampling_steps
        spec, statistics = model.spec, model.statistics
        self._action_size = spec.action_sizes
        self._mean_state = np.asarray(statistics.state.mean, np.float32)
        self._mean_action = np.asarray(statistics.action.mean, np.float32)
        self._text: dict[str, Tensor] = {}
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Start an episode: the sampling noise of each tick follows from the seed."""
        self._seed = seed
        self._chunk_id = 0

    @torch.no_grad()
    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan a chunk that starts at the observation's tick.

        Args:
            observation: the newest observation.
            committed: float32 [d, A]; the chunk begins with exactly these actions.

        Raises:
            UserError: for a missing camera, a wrong shape, or a longer committed prefix than a chunk.
        """
        prefix, unconditional, noise = self._prepare(observation)
        fixed = None if committed is None or len(committed) == 0 else self._actions(committed)
        return self._chunk(observation, self.model.sample(prefix, noise, fixed, self.steps, unconditional))

    @torch.no_grad()
    def infer_guided(
        self, observation: Observation, previous: Float32Array, delay_ticks: int, exact_gradient: bool = True
    ) -> ActionChunk:
        """Plan a chunk that goes on from an earlier one: real-time chunking, see `vla_rl.policies.guidance`.

        Args:
            observation: the newest observation.
            previous: float32 [K, A], what is scheduled from the observation's tick on; K = H - s.
            delay_ticks: d, how many of them will be executed before this chunk is used: held firmly; the others fade.
            exact_gradient: True for the true vector-Jacobian product, False for the identity in its place.

        Raises:
            UserError: as `infer`, or unless 0 <= d <= K <= H.
        """
        model = self.model
        prefix, unconditional, noise = self._prepare(observation)
        scheduled = self._actions(previous)
        target = torch.zeros_like(noise)
        target[:, : len(previous)] = model.action_normalizer.normalize(scheduled)
        weights = torch.from_numpy(guidance_weights(model.config.horizon, delay_ticks, len(previous))).to(self.device)

        def velocity(actions: Tensor, tau: float) -> Tensor:
            return model.guided_velocity(actions, actions.new_full(actions.shape[:2], tau), prefix, unconditional)

        actions = sample_guided(velocity, noise, target, weights, self.steps, exact_gradient=exact_gradient)
        return self._chunk(observation, model.to_raw_actions(actions))

    def _prepare(self, observation: Observation) -> tuple[Prefix, Prefix | None, Tensor]:
        """The prefix, the one for classifier-free guidance, and the noise of this tick."""
        model, spec = self.model, self.model.spec
        spec.check(observation)
        images = {name: self._tensor(observation.images[name]) for name in spec.cameras}
        state = self._tensor(filled_up(observation.state, self._mean_state))
        text = self._tokens(observation.task)
        noise = self._tensor(flow_noise(self._seed, observation.tick, model.config.horizon, spec.action_dim))
        if not model.config.indicator:
            return model.encode(images, state, text), None, noise
        prefix = model.encode(images, state, text, torch.tensor([int(Indicator.POSITIVE)], device=self.device))
        unconditional = model.encode(images, state, text) if model.config.guidance_scale != 1.0 else None
        return prefix, unconditional, noise

    def _chunk(self, observation: Observation, actions: Tensor) -> ActionChunk:
        own = actions[0, :, : self._action_size[observation.state.size]].cpu().numpy()
        chunk = ActionChunk(own, observation.tick, self._chunk_id, self.version)
        self._chunk_id += 1
        return chunk

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)[None]

    def _tokens(self, task: str) -> Tensor:
        if task not in self._text:
            self._text[task] = self.model.tokenize([task]).to(self.device)
        return self._text[task]

    def _actions(self, actions: Float32Array) -> Tensor:
        horizon = self.model.config.horizon
        sizes = sorted(set(self._action_size.values()))
        if actions.ndim != 2 or actions.shape[1] not in sizes or len(actions) > horizon:
            size = " or ".join(map(str, sizes))
            raise UserError(f"given actions are {list(actions.shape)}, expected [at most {horizon}, {size}]")
        return self._tensor(filled_up(actions.astype(np.float32, copy=False), self._mean_action))
