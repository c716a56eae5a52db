"""An auxiliary loss for a policy's encoder: from its tokens and the actions that were sent, foretell a world model's
latents some steps later. Failed episodes, whose actions nobody should imitate, teach the encoder this way too.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vla_rl.algorithms.actor import load_optimizer, make_optimizer
from vla_rl.algorithms.config import NextLatentConfig
from vla_rl.algorithms.round_data import RoundData
from vla_rl.algorithms.seeds import derived_seed, torch_generator
from vla_rl.core.errors import ConfigError
from vla_rl.core.types import Float32Array
from vla_rl.critics.backbones import example_features
from vla_rl.policies.normalization import Normalizer
from vla_rl.policies.trainable import TrainablePolicy


class NextLatentHead(nn.Module):
    """Tokens of a policy's prefix and a chunk of actions -> change of a frame's latents.

    Args:
        config: see `NextLatentConfig`.
        width: of the policy's tokens.
        action_dim: A.
        latents: L, numbers of a frame's latents.
    """

    def __init__(self, config: NextLatentConfig, width: int, action_dim: int, latents: int) -> None:
        super().__init__()
        size = 2 * width + config.ahead * action_dim
        self.network = nn.Sequential(nn.Linear(size, config.hidden), nn.SiLU(), nn.Linear(config.hidden, latents))

    def loss(self, tokens: Tensor, mask: Tensor, actions: Tensor, now: Tensor, later: Tensor, inside: Tensor) -> Tensor:
        """Squared error of the change of latents, averaged over samples whose target exists.

        Args:
            tokens: [B, N, width], of the policy, with a graph.
            mask: bool [B, N], True where there is a token.
            actions: [B, ahead, A], normalised, those that were really sent.
            now, later: [B, L], latents of the observation and ``ahead`` steps later.
            inside: bool [B], False where the episode ended before.
        """
        present = mask[..., None]
        mean = (tokens * present).sum(1) / present.sum(1).clamp(min=1)
        highest = tokens.masked_fill(~present, -torch.inf).amax(1)
        guess = self.network(torch.cat([mean, highest, actions.flatten(1)], -1))
        error = (guess - (later - now)).square().mean(-1)
        return (error * inside).sum() / inside.sum().clamp(min=1)


class NextLatentLoss:
    """The loss on batches of all real frames of a round, with the head and its optimiser.

    Args:
        config: see `NextLatentConfig`.
        model: the policy, whose encoder learns.
        seed: of batches and of the head.
    """

    def __init__(self, config: NextLatentConfig, model: TrainablePolicy, seed: int) -> None:
        self.config, self._model, self._seed = config, model, seed
        self._width = example_features(model)[0].shape[-1]
        statistics = model.statistics
        actions = Normalizer(statistics.action, model.normalization[1], statistics.discrete_dims)
        self._actions = actions.to(next(model.parameters()).device)
        self._head: NextLatentHead | None = None
        self._latents: Tensor | None = None

    def begin_round(self, latents: Float32Array | None) -> None:
        """Take the latents of every frame in the cache, float32 [N, L], NaN for frames that are not to be learnt from;
        None: there is no world model yet, and no loss.
        """
        self._latents = None if latents is None else torch.from_numpy(latents)
        if latents is not None:
            self._frames = np.flatnonzero(np.isfinite(latents).all(1))
            self._ensure_head(latents.shape[1])

    def loss(self, data: RoundData, batch_size: int, shift: int, step: int) -> Tensor | None:
        """The weighted loss of one batch, with a graph through the policy's encoder; None where there is none.

        Args:
            data: of the round.
            batch_size: frames, drawn uniformly from all real ones.
            shift: pixels of the random-shift augmentation.
            step: of the run; keys the randomness.
        """
        if self._latents is None or self._head is None or not len(self._frames):
            return None
        random = np.random.default_rng(derived_seed(self._seed, "next latent batch", step))
        frames = self._frames[random.integers(len(self._frames), size=batch_size)]
        later, _, ended = data.transition(frames, self.config.ahead)
        actions = self._actions.normalize(data.sent(frames, self.config.ahead))
        generator = torch_generator(self._seed, "next latent shift", step)
        tokens, mask = self._model.features(*data.inputs(frames, shift, generator))
        now, then = (self._latents[torch.from_numpy(own)].to(data.device) for own in (frames, later))
        return self.config.weight * self._head.loss(tokens, mask, actions, now, then, ~ended)

    def step(self) -> None:
        """One gradient step of the head, from the gradients of the last loss."""
        if self._head is not None and self._latents is not None:
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        if self._head is None:
            return {}
        return {"head": self._head.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            head = self._ensure_head(len(state["head"]["network.2.bias"]))
            head.load_state_dict(state["head"])
            load_optimizer(self._optimizer, state["optimizer"])

    def _ensure_head(self, latents: int) -> NextLatentHead:
        """The head, made when the size of the latents is known."""
        if self._head is None:
            actions = self._model.spec.action_dim
            device = next(self._model.parameters()).device
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derived_seed(self._seed, "next latent weights"))
                self._head = NextLatentHead(self.config, self._width, actions, latents).to(device)
            self._optimizer = make_optimizer(self._head, self.config.learning_rate, 0.0)
        if self._head.network[-1].out_features != latents:
            raise ConfigError(
                f"the world model's frames have {latents} latents, those learnt from so far had "
                f"{self._head.network[-1].out_features}; a run cannot change its world model's sizes"
            )
        return self._head
