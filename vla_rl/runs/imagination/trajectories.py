"""Imagined episodes from policy-guided diffusion: short trajectories, denoised at once and pushed towards the policy.

The score of a policy that only draws has no closed form. Ours takes the policy at a state as a normal distribution
around the action that it draws there, with the standard deviation of the actions in the data:

    grad_a log pi(a | s) = (a_pi(s) - a) / sigma^2,   in standard deviations (a_pi(s) - a) / sigma
"""

from collections.abc import Container, Iterator, Mapping
from itertools import batched

import numpy as np
import torch
from torch import Tensor

from vla_rl.core.flow import flow_noise
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.policies.trainable import TrainablePolicy
from world_model.model import WorldModel
from world_model.starts import StartBank
from world_model.trajectory_diffusion import Trajectories, TrajectoryDiffusion
from world_model.windows import LatentEpisodes

_AT_ONCE = 16


class TrajectorySource:
    """Makes imagined episodes that begin at moments of real ones.

    Args:
        generator: trained.
        model: the world model whose latents it generates.
        data: real episodes as its latents.
        bank: draws the starts.
        policy: that trajectories are pushed towards.
        version: of the policy.
    """

    def __init__(
        self,
        generator: TrajectoryDiffusion,
        model: WorldModel,
        data: LatentEpisodes,
        bank: StartBank,
        policy: TrainablePolicy,
        version: int,
    ) -> None:
        self.generator, self.model, self.data, self.bank = generator.eval(), model, data, bank
        self.policy, self.version = policy.eval(), version
        self._text = policy.tokenize([model.spec.task])

    def episodes(self, seeds: Mapping[str, int], missing: Container[str]) -> Iterator[Episode]:
        """One episode for each id and seed that is missing. It ends at the first success; one without a success has
        no outcome, since it was cut.

        Those that are generated together do not depend on which of them are missing: sums of a batch of another size
        differ in their last bits.
        """
        for some in batched(seeds.items(), _AT_ONCE):
            if not any(episode_id in missing for episode_id, _ in some):
                continue
            found = self.generate(np.array([seed for _, seed in some], np.int64))
            for row, (episode_id, seed) in enumerate(some):
                if episode_id in missing:
                    yield self._episode(episode_id, seed, Trajectories(*(part[row] for part in found)))

    @torch.no_grad()
    def generate(self, seeds: np.ndarray) -> Trajectories:
        """Guided trajectories of the seeds' starts, [B, T, ...]."""
        starts = [self.bank.choose(int(seed)) for seed in seeds]
        frames = torch.tensor([int(self.data.start[start.episode]) + start.step for start in starts])
        size = self.generator.config.frames, sum(self.generator.sizes)
        noise = torch.from_numpy(np.stack([flow_noise(int(seed), 0, *size) for seed in seeds]))
        draws = self._policy_noise(seeds)
        std = self.model.dynamics.action_std

        def score(point: Trajectories) -> Tensor:
            return (self._policy_actions(point, draws) - point.action) / std

        return self.generator.sample(noise, score, (self.data.latents[frames], self.data.state[frames]))

    def _policy_noise(self, seeds: np.ndarray) -> Tensor:
        """[B T, H, A], the same at every denoise step, so that the policy pushes one way."""
        size = self.policy.horizon, self.policy.spec.action_dim
        ticks = range(1, self.generator.config.frames + 1)  # 0 is the trajectory's own
        return torch.from_numpy(np.stack([flow_noise(int(seed), tick, *size) for seed in seeds for tick in ticks]))

    def _policy_actions(self, point: Trajectories, noise: Tensor) -> Tensor:
        """What the policy does in every frame, [B, T, A]."""
        count = len(noise)
        pictures = self._decode(point.latents.flatten(0, 1))
        images = {camera: torch.from_numpy(picture) for camera, picture in pictures.items()}
        chunks = self.policy.draw(images, point.state.flatten(0, 1), self._text.expand(count, -1), noise)
        return chunks[:, 0].view_as(point.action)

    @torch.no_grad()
    def _decode(self, latents: Tensor) -> dict[str, np.ndarray]:
        """Latents [T, N, D] -> camera -> uint8 [T, H, W, 3]."""
        frames = self.model.autoencoder.decode(latents).numpy()
        return {camera: np.ascontiguousarray(frames[:, index]) for index, camera in enumerate(self.model.spec.cameras)}

    def _episode(self, episode_id: str, seed: int, found: Trajectories) -> Episode:
        spec, images = self.model.spec, self._decode(found.latents)
        won = np.flatnonzero(found.success.numpy() >= self.model.config.heads.success_threshold)
        steps = int(won[0]) + 1 if len(won) else len(found.success)
        action = np.clip(found.action.numpy()[:steps], spec.action_low, spec.action_high).astype(np.float32)
        return Episode(
            episode_id=episode_id,
            images={camera: picture[:steps] for camera, picture in images.items()},
            state=found.state.numpy()[:steps],
            action_policy=action,
            action_sent=action.copy(),
            source=np.full(steps, Source.POLICY, np.uint8),
            task=spec.task,
            success=True if len(won) else None,
            terminated=bool(len(won)),
            origin=Origin.IMAGINED,
            policy_version=self.version,
            seed=seed,
            control_hz=spec.control_hz,
            env_id=spec.env_id,
        )
