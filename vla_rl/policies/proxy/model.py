"""A frozen base policy and its proxy, as one policy.

The base policy plans the chunks that the robot executes. It is any policy that answers observations with chunks: a
folder, a policy on a server, a class of another package. The proxy is a small `FlowVLA` that imitates these chunks. It
gives what learning needs and a base policy lacks: features of observations, and its chunks in imagined states.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vla_rl.core.errors import ConfigError
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec, spec_difference
from vla_rl.core.validation import check_ranges
from vla_rl.policies.base import Inputs, PolicyBatch, PolicyConfig
from vla_rl.policies.flow_vla.config import FlowVLAConfig
from vla_rl.policies.flow_vla.model import FlowVLA
from vla_rl.policies.named import is_name
from vla_rl.policies.proxy.base import BaseChunks, keys_of, open_base
from vla_rl.policies.sentences import Sentences
from vla_rl.policies.trainable import HasSpec, Summarized, TrainablePolicy, summary_for

_PIXELS = 64  # the proxy sees larger pictures reduced to about this side
_CHUNKS = "base_chunks"  # folder of a run


@dataclass(frozen=True)
class ProxyConfig(PolicyConfig):
    """A base policy and the size of its proxy.

    Attributes:
        kind: names this policy.
        base: Base policy: its folder, ``openpi://HOST:PORT`` or ``module:Name``.
        draws: Number of chunks that the base policy plans for one observation. 1: the one of zero noise, for a policy
            that is deterministic or slow.
        asks_per_round: Largest number of stored observations per round that the base policy is shown for the
            proxy, beside those from which it planned while practicing. null: all.
        net: The proxy.
    """

    kind: str = "proxy"
    base: str = ""
    draws: int = 1
    asks_per_round: int | None = None
    net: FlowVLAConfig = field(default_factory=FlowVLAConfig)

    def __post_init__(self) -> None:
        if not self.base:
            raise ConfigError(
                "policy.base is empty; name the policy to improve: FOLDER, openpi://HOST:PORT, module:Name"
            )
        check_ranges(self, "policy", draws=">= 1")
        if self.asks_per_round is not None:
            check_ranges(self, "policy", asks_per_round=">= 0")
        if not is_name(self.base):
            object.__setattr__(self, "base", str(Path(self.base).absolute()))  # a run is resumed from anywhere


class ProxiedPolicy(TrainablePolicy):
    """A frozen base policy whose features and imagined chunks come from a proxy. Only the proxy has weights here.

    Args:
        config: Base policy and proxy.
        spec: Interface of the robot. It equals the base policy's interface, except for the name of the task.
        statistics: Statistics of the training data.

    Attributes:
        base: The base policy.
        net: The proxy.
        chunks: What the base policy has planned; None: nothing is kept.
        asks: Whether the base policy is asked for chunks that are not known. Otherwise, the proxy plans them.

    Raises:
        UserError: If there is no such base policy, or it is for another robot.
    """

    config_class = ProxyConfig
    config: ProxyConfig

    def __init__(self, config: ProxyConfig, spec: PolicySpec, statistics: Statistics) -> None:
        super().__init__(config, spec, statistics)
        self.base = open_base(config.base)
        if differs := spec_difference(self.base.spec, spec, but=("env_id",)):
            raise ConfigError(
                f"policy.base={config.base} has the {differs.name} {differs.found}, the task has {differs.expected}; "
                "choose a policy of this robot"
            )
        if self.base.horizon < 2:
            raise ConfigError(
                f"policy.base={config.base} plans one action at a time; practice judges chunks of two or more. Let it "
                "plan several"
            )
        self.chunks: BaseChunks | None = None
        self.asks = True
        self._sentences = Sentences()
        side = min(config.net.expert.actions_per_token, self.base.horizon)
        length = min(config.net.horizon, self.base.horizon) // side * side
        height, width = spec.image_size
        self._pool = max(1, min(height, width) // _PIXELS)
        seen = replace(spec, image_size=(height // self._pool, width // self._pool))
        expert = replace(config.net.expert, actions_per_token=side)
        self.net = FlowVLA(replace(config.net, horizon=length, expert=expert), seen, statistics)

    @classmethod
    def from_data(cls, config: ProxyConfig, data: Summarized, robot: HasSpec | None = None, seed: int = 0) -> Self:
        """Put a new proxy before a base policy.

        Args:
            config: Base policy and proxy.
            data: Episodes of the task. Their states and actions set the scale.
            robot: Environment or robot with the policy's interface; None: that of the data.
            seed: Seed of the proxy's weights.

        Returns:
            Policy that plans what the base policy plans.

        Raises:
            UserError: If there is no such base policy, or it is for another robot.

        Example:
            >>> from vla_rl.policies.proxy import ProxiedPolicy, ProxyConfig
            >>> policy.save("policies/old")
            >>> proxied = ProxiedPolicy.from_data(ProxyConfig(base="policies/old"), demos)
            >>> proxied.horizon
            16
        """
        spec, statistics = summary_for(data, robot)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls.build(config, spec, statistics)

    @classmethod
    def load(cls, folder: Path) -> tuple[Self, dict[str, Any]]:
        """Load a saved policy. Policies of one run share the chunks of its base policy."""
        model, meta = super().load(folder)
        policies = folder.resolve().parent
        run = policies.parent
        if policies.name == "policies" and (run / "episodes").is_dir():
            model.chunks = BaseChunks((model.horizon, model.spec.action_dim), run / _CHUNKS, model.base.key)
        return model, meta

    @classmethod
    def planned(cls, config: ProxyConfig, spec: PolicySpec) -> int:
        """Return the length of the base policy's chunks."""
        del spec
        return open_base(config.base).horizon

    @classmethod
    def provides(cls, config: ProxyConfig, spec: PolicySpec) -> frozenset[str]:
        """Return the capabilities: those of the proxy's features, none of the base policy's own."""
        del config, spec
        return frozenset({"features", "acts_from_features", "several_draws", "offsets", "base"})

    @property
    def horizon(self) -> int:
        """H of the base policy. The proxy may plan fewer actions."""
        return self.base.horizon

    @property
    def n_obs_steps(self) -> int:
        """Number of observations that the base policy reads. The proxy reads the last one."""
        return self.base.n_obs_steps

    @property
    def encoder(self) -> FlowVLA:
        """The proxy. It needs no base policy."""
        return self.net

    @property
    def max_words(self) -> int:
        """Longest sentence, in words, that the proxy reads."""
        return self.net.max_words

    @property
    def vocabulary(self) -> int:
        """Number of the proxy's word ids."""
        return self.net.vocabulary

    def tokenize(self, sentences: Sequence[str]) -> Tensor:
        """Task sentences -> int64 [B, L], as the proxy reads them. The base policy gets them unchanged.

        Raises:
            UserError: For two sentences that the base policy distinguishes and the proxy does not.
        """
        tokens = self.net.tokenize(sentences)
        remedy = "raise policy.net.text.max_words, or reword one of them"
        self._sentences.keep(tokens, sentences, self.base.reads_alike, remedy)
        return tokens

    def sentences(self, text: Tensor) -> list[str]:
        """Return the sentences that `tokenize` gave as text, int64 [B, L]."""
        return self._sentences.of(text)

    def loss(self, batch: PolicyBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Flow-matching loss of the proxy on the first actions of the batch's chunks."""
        length, (images, state) = self.net.horizon, self.newest(batch.images, batch.state)
        actions, valid = batch.actions[:, :length], batch.valid[:, :length]
        return self.net.loss(replace(batch, images=images, state=state, actions=actions, valid=valid), generator)

    def features(self, images: dict[str, Tensor], state: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """The proxy's tokens of observations."""
        return self.net.features(*self.newest(images, state), text)

    def draw_from(self, tokens: Tensor, mask: Tensor, noise: Tensor) -> Tensor:
        """Sample the proxy's chunks, which may be shorter than those of the base policy."""
        noise = noise[:, : self.net.horizon]
        return self.net.draw_from(tokens, mask, torch.zeros_like(noise) if self.config.draws == 1 else noise)

    def draw(
        self, images: dict[str, Tensor], state: Tensor, text: Tensor, noise: Tensor, committed: Tensor | None = None
    ) -> Tensor:
        """Ask the base policy for one chunk per observation."""
        return self.draw_several(images, state, text, noise[:, None], committed)[:, 0]

    @torch.no_grad()
    def draw_several(
        self,
        images: dict[str, Tensor],
        state: Tensor,
        text: Tensor,
        noise: Tensor,
        committed: Tensor | None = None,
        seen: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Ask the base policy for at most ``draws`` chunks per observation; further ones repeat them."""
        del committed, seen  # the caller puts committed actions in front; the base policy reads no features
        asked = torch.zeros_like(noise[:, :1]) if self.config.draws == 1 else noise[:, : self.config.draws]
        return self.ask((images, state, text), asked)[
            :, torch.arange(noise.shape[1], device=noise.device) % asked.shape[1]
        ]

    def ask(self, inputs: Inputs, noise: Tensor) -> Tensor:
        """Return the base policy's chunks of the given noise, [B, N, H, A]."""
        return self._asked(inputs, noise) if self.chunks is None else self._known(inputs, noise, self.chunks)

    def _asked(self, inputs: Inputs, noise: Tensor) -> Tensor:
        return self.base.chunks(inputs, self.sentences(inputs[2]), noise)

    def _known(self, inputs: Inputs, noise: Tensor, chunks: BaseChunks) -> Tensor:
        """As `_asked`, but chunks that are known are not asked for again."""
        keys = keys_of(inputs, self.sentences(inputs[2]), noise)
        rows = [[chunks.get(key) for key in own] for own in keys]
        missing = [row for row, own in enumerate(rows) if any(chunk is None for chunk in own)]
        if missing:
            images, state, text = inputs
            some = {camera: image[missing] for camera, image in images.items()}, state[missing], text[missing]
            planned = (self._asked if self.asks else self._imitated)(some, noise[missing]).cpu().numpy()
            if self.asks:
                chunks.add([key for row in missing for key in keys[row]], planned.reshape(-1, *planned.shape[2:]))
            for row, own in zip(missing, planned, strict=True):
                rows[row] = list(own)
        return torch.from_numpy(np.array(rows, np.float32)).to(noise.device)

    def _imitated(self, inputs: Inputs, noise: Tensor) -> Tensor:
        """Chunks of the proxy, [B, N, H, A]. Behind what it plans, the robot holds still: targets stay, steps are 0."""
        count = noise.shape[1]
        tokens, mask = (part.repeat_interleave(count, 0) for part in self.features(*inputs))
        planned = self.draw_from(tokens, mask, noise.flatten(0, 1))
        rest = planned[:, -1:].repeat(1, self.horizon - planned.shape[1], 1)
        rest[..., list(self.spec.delta_dims)] = 0
        return torch.cat([planned, rest], 1).unflatten(0, (-1, count))

    def newest(self, images: dict[str, Tensor], state: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the observations that the proxy reads: the last of several, pictures reduced."""
        if state.ndim == 3:
            images, state = {camera: image[:, -1] for camera, image in images.items()}, state[:, -1]
        return reduced(images, self._pool), state


def reduced(images: dict[str, Tensor], times: int) -> dict[str, Tensor]:
    """Return pictures [B, H, W, 3] with both sides divided by ``times``. A remainder at the edges is left out."""
    if times == 1:
        return images
    return {
        camera: F.avg_pool2d(image.movedim(-1, 1).float(), times).movedim(1, -1) for camera, image in images.items()
    }
