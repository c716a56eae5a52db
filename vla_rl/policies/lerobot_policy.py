"""A flow policy of lerobot (SmolVLA, pi0, pi05...) behind the loop's `Policy` protocol, with real-time chunking. Torch.

lerobot's sampler asks an object at every step for the velocity that it integrates. Ours stands there. So guidance is
the true vector-Jacobian product (or the identity, under its own name), with weights from the executor's measured delay.
lerobot itself is never imported here: the caller brings the policy and its processors. One instance belongs to one
thread.
"""

import copy
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vla_rl.core.errors import UserError
from vla_rl.core.flow_sampling import flow_noise, guidance_weights
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.policies.guidance import from_noise_time, guided_velocity

Processor = Callable[[Any], Any]
BETA = 5.0  # the largest strength of guidance, as in the paper


class LeRobotFlowPolicy:
    """Plans chunks with a flow policy of lerobot, between its processors of ``make_pre_post_processors``.

    Raises:
        UserError: For a policy that does not sample with lerobot's ``euler_integrate``.
    """

    def __init__(self, policy: Any, preprocess: Processor, postprocess: Processor, version: int = 0) -> None:
        if not can_be_guided(policy):
            raise UserError(
                f"{type(policy).__name__} has no place for guidance; lerobot's flow policies have (smolvla, pi0, pi05)"
            )
        self.policy = policy.eval()
        self.version = version
        self._preprocess, self._postprocess = preprocess, postprocess
        self._guidance = _Guidance()
        policy.config.rtc_config = self._guidance  # lerobot reads its field ``enabled``
        policy.rtc_processor = policy.model.rtc_processor = self._guidance
        self.reset(0)

    def twin(self) -> Self:
        """Return a policy with shared weights for another episode at the same time."""
        twin = copy.copy(self)
        twin.reset(0)
        return twin

    def reset(self, seed: int) -> None:
        """Start an episode: the sampling noise of each tick follows from the seed."""
        self._seed = seed
        self._chunk_id = 0
        self.policy.reset()

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan a chunk from the observation's tick; UserError for a committed prefix, which training had not."""
        if committed is not None and len(committed):
            raise UserError(
                f"{type(self.policy).__name__} was not trained to go on from committed actions; use the execution "
                "strategy 'rtc' or 'naive'"
            )
        return self._sample(observation, self._preprocess(_batch(observation)))

    def infer_guided(
        self, observation: Observation, previous: Float32Array, delay_ticks: int, exact_gradient: bool = True
    ) -> ActionChunk:
        """Plan a chunk that goes on from an earlier one. See `vla_rl.execution.strategies.GuidedPolicy`."""
        scheduled = torch.from_numpy(np.ascontiguousarray(previous))[None]
        batch = self._preprocess({**_batch(observation), "action": scheduled})
        guidance = self._guidance
        guidance.target = batch.pop("action")  # [1, K, A], normalized
        guidance.delay_ticks, guidance.exact_gradient, guidance.enabled = delay_ticks, exact_gradient, True
        try:
            return self._sample(observation, batch)
        finally:
            guidance.enabled = False

    def _sample(self, observation: Observation, batch: dict[str, Any]) -> ActionChunk:
        config = self.policy.config
        noise = torch.from_numpy(flow_noise(self._seed, observation.tick, config.chunk_size, config.max_action_dim))
        actions = self.policy.predict_action_chunk(batch, noise=noise[None].to(batch["observation.state"].device))
        raw = self._postprocess(actions)[0].float().cpu().numpy()
        chunk = ActionChunk(raw, observation.tick, self._chunk_id, self.version)
        self._chunk_id += 1
        return chunk


def can_be_guided(policy: Any) -> bool:
    """Return whether a lerobot policy samples in a way that leaves a place for guidance."""
    return hasattr(getattr(policy, "model", None), "rtc_processor") and hasattr(policy.config, "rtc_config")


class _Guidance:
    """Stands where lerobot's sampler expects its own real-time chunking, and asks for velocities.

    The target [1, K, A] is what is scheduled, normalized.
    """

    def __init__(self) -> None:
        self.enabled = False
        self.target = torch.empty(1, 0, 0)
        self.delay_ticks = 0
        self.exact_gradient = True

    def is_debug_enabled(self) -> bool:
        """lerobot's sampler asks; there is nothing to trace."""
        return False

    def denoise_step(
        self, x_t: Tensor, time: float, original_denoise_step_partial: Callable[[Tensor], Tensor], **_: object
    ) -> Tensor:
        """Return the guided velocity, [B, H, A], in lerobot's time, which runs from 1 (noise) to 0 (actions)."""
        length, dims = self.target.shape[1:]
        weights = torch.from_numpy(guidance_weights(x_t.shape[1], self.delay_ticks, length)).to(x_t.device)
        # Dimensions that pad the action up to the network's are 0 in training, so that is what they are pulled to.
        target = torch.zeros_like(x_t)
        target[:, :length, :dims] = self.target

        forward = from_noise_time(lambda actions, _time: original_denoise_step_partial(actions))
        return -guided_velocity(forward, x_t, 1.0 - time, target, weights, BETA, self.exact_gradient)


def _batch(observation: Observation) -> dict[str, Any]:
    """Return an observation under lerobot's keys, images float [3, H, W] in [0, 1]."""
    images = {
        f"observation.images.{camera}": torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1) / 255.0
        for camera, image in observation.images.items()
    }
    return {**images, "observation.state": torch.from_numpy(observation.state), "task": observation.task}
