"""`FlowVLAPolicy`: the built-in policy as it acts, with real-time chunking."""

import torch
from torch import Tensor

from vla_rl.core.flow_sampling import guidance_weights
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.policies.acting import ActingPolicy
from vla_rl.policies.base import Inputs, flat_features
from vla_rl.policies.best_of_n import best_candidate
from vla_rl.policies.flow_vla.model import FlowVLA
from vla_rl.policies.guidance import sample_guided


class FlowVLAPolicy(ActingPolicy):
    """Plans chunks with a `FlowVLA`.

    Args:
        model, device, version: see `ActingPolicy`.
        steps: Euler steps, default from the model's config.

    Example:
        >>> FlowVLAPolicy(policy, version=1).infer(env.observe()).policy_version
        1
    """

    model: FlowVLA

    def __init__(self, model: FlowVLA, device: str = "cpu", version: int = 0, steps: int | None = None) -> None:
        super().__init__(model, device, version)
        self.steps = steps or model.config.sampling_steps

    @torch.no_grad()
    def infer_guided(
        self, observation: Observation, previous: Float32Array, delay_ticks: int, exact_gradient: bool = True
    ) -> ActionChunk:
        """Plan a chunk that goes on from an earlier one: real-time chunking, see `vla_rl.policies.guidance`.

        Arguments as of `vla_rl.execution.strategies.rtc.GuidedPolicy`.

        Raises:
            UserError: as `infer`, or unless 0 <= d <= K <= H.
        """
        model, selector = self.model, self.selector
        tick, noise, inputs = self._tick(observation), self._noise(observation.tick), self._inputs(observation)
        seen = model.features(*inputs)
        features = flat_features(*seen)
        starts = noise if selector is None else selector.starts(noise)[0]
        prefix, unconditional = model.acting_prefixes(*seen)
        prefix = prefix.repeat(len(starts))
        unconditional = None if unconditional is None else unconditional.repeat(len(starts))
        target = torch.zeros_like(starts)
        target[:, : len(previous)] = model.action_normalizer.normalize(self._actions(previous))
        weights = torch.from_numpy(guidance_weights(model.horizon, delay_ticks, len(previous))).to(self.device)

        def velocity(actions: Tensor, tau: float) -> Tensor:
            return model.guided_velocity(actions, actions.new_full(actions.shape[:2], tau), prefix, unconditional)

        actions = sample_guided(velocity, starts, target, weights, self.steps, exact_gradient=exact_gradient)
        raw = model.to_raw_actions(actions)
        if selector is not None:  # what is held to the old plan is not moved
            raw = best_candidate(*selector.judged(model, features, tick, noise, raw[None], 1.0 - weights, delay_ticks))
        return self._chunk(observation, raw)

    def _draw(self, inputs: Inputs, noise: Tensor, committed: Tensor | None) -> Tensor:
        prefix, unconditional = self.model.acting_prefixes(*self.model.features(*inputs))
        return self.model.sample(prefix, noise, committed, self.steps, unconditional)
