"""A flow-matching policy as a stochastic one with known log-probabilities, so that policy gradients apply to it.

Every Euler step of the flow gets a little Gaussian noise (ReinFlow, arXiv 2505.22094), so that the path from noise to
actions is a Markov chain with known transitions:

    A_{k+1} ~ N(A_k + v_theta(A_k, tau_k) / K, sigma^2)

The log-probability of a draw is that of its path, over Euler steps, executed actions and dimensions of a whole chunk,
so that the ratio of two policies does not depend on the size of a chunk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.core.errors import ConfigError
from vla_rl.core.flow import flow_noise
from vla_rl.policies.flow_vla.model import Prefix, need_flow_vla
from vla_rl.policies.trainable import Indicator, TrainablePolicy


@dataclass(frozen=True)
class NoisyFlowConfig:
    """Options of the noisy flow.

    Attributes:
        noise: sigma, in normalised action units.
        steps: K Euler steps; 0: the policy's own.
        execute_ticks: actions of a chunk that are executed, and count.
    """

    noise: float = 0.05
    steps: int = 0
    execute_ticks: int = 6

    def __post_init__(self) -> None:
        if not self.noise > 0:
            raise ConfigError(f"noisy flow: noise is {self.noise}; without noise a draw has no probability")


@dataclass(frozen=True)
class PathDraw:
    """B draws with their paths.

    Attributes:
        images: camera -> uint8 [B, H, W, 3].
        state: float32 [B, S].
        path: [K + 1, B, horizon, A], from noise to actions, normalised units.
    """

    images: dict[str, Tensor]
    state: Tensor
    path: Tensor


class NoisyFlowActor:
    """Draws chunks with a `FlowVLA` and says how likely they were. Implements
    `world_model.improvement.StochasticActor`.

    Args:
        model: trained in place.
        task: the task sentence.
        config: see `NoisyFlowConfig`.

    Raises:
        UserError: for a policy of another kind.
    """

    def __init__(self, model: TrainablePolicy, task: str, config: NoisyFlowConfig) -> None:
        model = need_flow_vla(model, "a policy gradient through noisy Euler steps")
        if config.execute_ticks > model.config.horizon:
            raise ConfigError(f"execute_ticks is {config.execute_ticks}, a chunk has {model.config.horizon} actions")
        self.model, self.config = model.eval(), config
        self._steps = config.steps or model.config.sampling_steps
        self._text = model.tokenize([task])

    @property
    def execute_ticks(self) -> int:
        return self.config.execute_ticks

    def parameters(self) -> Sequence[Tensor]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @torch.no_grad()
    def draw(
        self, images: Mapping[str, NDArray[np.uint8]], state: NDArray[np.float32], seeds: NDArray[np.int64], tick: int
    ) -> tuple[NDArray[np.float32], PathDraw]:
        """See `StochasticActor.draw`: a function of observation, seed and tick."""
        model, steps = self.model, self._steps
        cameras = {name: torch.from_numpy(np.array(images[name])) for name in model.spec.cameras}
        states = torch.from_numpy(np.array(state, np.float32))
        # One draw from the seed's own stream for the start of the flow and one for each step.
        shape = ((steps + 1) * model.config.horizon, model.spec.action_dim)
        noise = torch.from_numpy(np.stack([flow_noise(int(seed), tick, *shape) for seed in seeds]))
        noise = noise.unflatten(1, (steps + 1, -1)).transpose(0, 1)
        prefix = self._encode(cameras, states)
        point, path = noise[0], [noise[0]]
        for step in range(steps):
            point = self._mean(point, step, prefix) + self.config.noise * noise[step + 1]
            path.append(point)
        return model.to_raw_actions(point).numpy(), PathDraw(cameras, states, torch.stack(path))

    def log_probability(self, draws: Sequence[PathDraw], chosen: Sequence[Tensor], counted: Sequence[Tensor]) -> Tensor:
        """See `StochasticActor.log_probability`."""
        wanted = [(draw, rows) for draw, rows in zip(draws, chosen, strict=True) if len(rows)]
        if not wanted:
            return torch.zeros(0)
        images = {
            name: torch.cat([draw.images[name][rows] for draw, rows in wanted]) for name in self.model.spec.cameras
        }
        prefix = self._encode(images, torch.cat([draw.state[rows] for draw, rows in wanted]))
        path = torch.cat([draw.path[:, rows] for draw, rows in wanted], 1)
        ticks = self.config.execute_ticks
        counts = torch.arange(ticks) < torch.cat(list(counted))[:, None]  # [rows, ticks]
        error = torch.zeros(path.shape[1])
        for step in range(self._steps):
            off = (path[step + 1] - self._mean(path[step], step, prefix))[:, :ticks] / self.config.noise
            error = error + torch.where(counts[..., None], off.square(), 0.0).mean((1, 2))
        # The normalising constant is the same for all policies and cancels in their ratio.
        return -0.5 * error / self._steps

    def _encode(self, images: dict[str, Tensor], state: Tensor) -> Prefix:
        text = self._text.expand(len(state), -1)
        positive = torch.full((len(state),), int(Indicator.POSITIVE)) if self.model.config.indicator else None
        return self.model.encode(images, state, text, positive)

    def _mean(self, point: Tensor, step: int, prefix: Prefix) -> Tensor:
        time = point.new_full(point.shape[:2], step / self._steps)
        return point + self.model.velocity(point, time, prefix) / self._steps
