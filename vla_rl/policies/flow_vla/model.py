"""The built-in VLA: images, task sentence and state become prefix tokens; a flow-matching expert turns noise into a
chunk of actions.

Flow time tau runs from 0 (noise) to 1 (clean data): A_tau = tau A + (1 - tau) noise, velocity v = A - noise. Each
action token has its own flow time, so that a committed prefix of the chunk can be given as clean tokens. Two graphs:
`encode` once per observation, `velocity` once per integration step. There is no randomness here but in `loss`, where it
comes from the caller's generator.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from vla_rl.core.errors import UserError
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.protocols import Policy
from vla_rl.policies.base import Indicator, PolicyBatch
from vla_rl.policies.encoders import VOCABULARY, FiLM, TextEncoder, VisionEncoder
from vla_rl.policies.flow_vla.config import FlowVLAConfig, preset
from vla_rl.policies.flow_vla.expert import ActionExpert, Prefix
from vla_rl.policies.flow_vla.flow import difficulty_weights, draw_flow
from vla_rl.policies.layers import Normalizer
from vla_rl.policies.trainable import HasSpec, Summarized, TrainablePolicy, summary_for

ROLLOUT_STEPS = 5  # of the rollout that difficulty weighting compares with the data
_BACKBONE = "backbone"  # its description, in the policy's folder; its weights are among the policy's
_INDICATOR_DROPOUT = 0.3  # probability that training drops the indicator


class FlowVLA(TrainablePolicy):
    """Map images, task sentence and state to action chunks by flow matching. `from_data` is the usual way to make one.

    Inputs and outputs are in the robot's units; only `velocity` is in normalized action units.

    Args:
        config: Architecture and training options.
        spec: Interface of the robot.
        statistics: Statistics of the training data.
        pretrained: Whether to read the weights of a pretrained backbone. False if a checkpoint provides all weights.
    """

    config_class = FlowVLAConfig
    config: FlowVLAConfig
    discrete: Tensor
    lower_level: Tensor
    upper_level: Tensor

    def __init__(
        self, config: FlowVLAConfig, spec: PolicySpec, statistics: Statistics, pretrained: bool = True
    ) -> None:
        super().__init__(config, spec, statistics)
        width = config.expert.width
        self.state_normalizer = Normalizer(statistics.state)
        self.action_normalizer = Normalizer(statistics.action, statistics.discrete_dims)
        dims = torch.arange(spec.action_dim)
        self.register_buffer("discrete", torch.isin(dims, torch.tensor(statistics.discrete_dims)), persistent=False)
        self.register_buffer("lower_level", torch.tensor(statistics.action.low), persistent=False)
        self.register_buffer("upper_level", torch.tensor(statistics.action.high), persistent=False)
        if config.backbone.folder:
            from vla_rl.policies.flow_vla.backbone import VisionLanguageBackbone

            self.backbone = VisionLanguageBackbone(
                config.backbone, spec.cameras, config.text.max_words, width, pretrained
            )
        else:
            self.vision = VisionEncoder(config.vision, spec.cameras, spec.image_size, width)
            self.text = TextEncoder(config.text.max_words, width)
            if config.text.film:
                self.film = FiLM(width)
        self.state_token = nn.Linear(spec.state_dim, width)
        if config.indicator:
            self.indicator_token = nn.Embedding(len(Indicator), width)
        if config.expert.window:
            self.sink = nn.Parameter(0.02 * torch.randn(width))
        self.prefix_norm = nn.LayerNorm(width)
        self.expert = ActionExpert(config.expert, spec.action_dim, config.horizon)

    @classmethod
    def from_data(cls, data: Summarized, size: str = "cpu", robot: HasSpec | None = None, seed: int = 0) -> Self:
        """Make an untrained policy with the interface and the normalization statistics of some episodes.

        Args:
            data: Episodes, such as a `vla_rl.data.store.EpisodeStore`.
            size: Name of a file in ``configs/policy``: ``cpu``, ``small`` or ``base``.
            robot: Environment or robot with the policy's interface. It is needed if actions are steps instead of
                targets, which episodes do not record.
            seed: Seed of the initial weights.

        Returns:
            Policy on the CPU.

        Raises:
            UserError: If the size is unknown, the episodes cannot share a policy, or the robot is another one.

        Example:
            >>> policy = FlowVLA.from_data(load_episodes("datasets/dot"))
            >>> policy.horizon, policy.spec.cameras
            (16, ('picture',))
        """
        spec, statistics = summary_for(data, robot)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls.build(preset(size), spec, statistics)

    @classmethod
    def build(cls, config: FlowVLAConfig, spec: PolicySpec, statistics: Statistics, pretrained: bool = True) -> Self:
        """Make a policy with new weights; the pretrained part is the backbone."""
        return cls(config, spec, statistics, pretrained)

    @property
    def max_words(self) -> int:
        """Longest sentence, in words."""
        return self.config.text.max_words

    @property
    def vocabulary(self) -> int:
        """Number of word ids."""
        return self.backbone.vocabulary if self.config.backbone.folder else VOCABULARY

    def tokenize(self, sentences: Sequence[str]) -> Tensor:
        """Task sentences -> int64 [B, L]."""
        if self.config.backbone.folder:
            return self.backbone.tokenize(sentences)
        return super().tokenize(sentences)

    @classmethod
    def provides(cls, config: FlowVLAConfig, spec: PolicySpec) -> frozenset[str]:
        """Return the capabilities of a policy of this configuration."""
        words = {"features", "acts_from_features", "guidance", "gradient", "flow_graphs"}
        return super().provides(config, spec) | words

    def features(
        self, images: dict[str, Tensor], state: Tensor, text: Tensor, indicator: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The tokens of the prefix, see `TrainablePolicy.features`; ``indicator`` as of `encode`."""
        return self.tokens_of(images, self.state_normalizer.network_input(state), text, indicator)

    def encode(self, images: dict[str, Tensor], state: Tensor, text: Tensor, indicator: Tensor | None = None) -> Prefix:
        """The prefix graph, once per observation.

        Args:
            images: camera -> uint8 [B, H, W, 3], or float in [0, 255].
            state: float32 [B, S], raw units.
            text: int64 [B, L], from `tokenize`.
            indicator: int64 [B], values of `Indicator`; None: NONE. Ignored by a model without ``config.indicator``.
        """
        return self.expert.read_prefix(*self.features(images, state, text, indicator))

    def acting_prefixes(self, tokens: Tensor, mask: Tensor) -> tuple[Prefix, Prefix | None]:
        """What `sample` takes to act well: the prefix that asks for good actions, and the one without an indicator if
        there is classifier-free guidance. Tokens and mask are those of `features`: of no indicator.
        """
        if not self.config.indicator:
            return self.expert.read_prefix(tokens, mask), None
        positive = self.indicator_token.weight[int(Indicator.POSITIVE)]
        asked = tokens.clone()
        asked[:, -2 if self.config.expert.window else -1] = self.prefix_norm(positive)  # where `tokens_of` has it
        unconditional = self.expert.read_prefix(tokens, mask) if self.config.guidance_scale != 1.0 else None
        return self.expert.read_prefix(asked, mask), unconditional

    def velocity(self, noisy: Tensor, time: Tensor, prefix: Prefix, hidden: Tensor | None = None) -> Tensor:
        """Return the step graph's d(actions)/d(tau), [B, H, A], at noisy actions [B, H, A], normalized units. Flow
        times are [B, H], or [1, H] if all rows share them; 1 marks a committed action.
        """
        return self.expert.denoise(noisy, self.expert.modulate(time), time < 1, prefix, hidden)

    def loss(self, batch: PolicyBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Flow-matching loss of each sample, unweighted, and logs.

        The generator draws noise, flow times and prefix lengths.

        Returns:
            [B], the squared velocity error averaged over draws and over valid dimensions of unconditioned steps (0 if
            there are none), and logs.
        """
        config = self.config
        indicator = self._drop_indicator(batch, generator)
        tokens, mask = self.features(batch.images, batch.state, batch.text, indicator)
        draws = config.flow_samples
        prefix = self.expert.read_prefix(tokens, mask).repeat(draws)
        draw = draw_flow(config, len(batch.state), self.spec.action_dim, generator)
        noise, time, committed, hidden = (part.to(batch.state.device) for part in draw)
        # Steps without a loss stay visible as plausible actions. Blanked out, they would show the others how soon the
        # data ends. Nothing shows this at inference, and the policy would dither just before the goal.
        actions = self.action_normalizer.normalize(batch.actions).repeat_interleave(draws, 0)
        noisy = torch.lerp(noise, actions, time[..., None])
        velocity = self.velocity(noisy, time, prefix, hidden if config.prefix_law == "xiaomi" else None)
        error = (velocity - (actions - noise)).square()  # [K B, H, A]
        valid = batch.valid.expand_as(batch.actions)
        counted = valid.repeat_interleave(draws, 0) & ~committed[..., None]
        if config.prefix_law == "xiaomi":
            with torch.no_grad():
                rollout = self._integrate(
                    torch.where(committed[..., None], actions, noise), committed, prefix, ROLLOUT_STEPS
                )
            error = error * difficulty_weights(rollout, actions, counted.any(-1))[..., None]
        per_sample = (error * counted).unflatten(0, (-1, draws)).sum((1, 2, 3))
        per_sample = per_sample / counted.unflatten(0, (-1, draws)).sum((1, 2, 3)).clamp(min=1)
        logs = {"flow_loss": per_sample.detach().mean().item()}
        return per_sample, logs

    def guided_velocity(self, noisy: Tensor, time: Tensor, prefix: Prefix, unconditional: Prefix | None) -> Tensor:
        """Velocity with classifier-free guidance, v_none + scale (v - v_none); plain without ``unconditional``."""
        velocity = self.velocity(noisy, time, prefix)
        if unconditional is None:
            return velocity
        return torch.lerp(self.velocity(noisy, time, unconditional), velocity, self.config.guidance_scale)

    def sample(
        self,
        prefix: Prefix,
        noise: Tensor,
        committed: Tensor | None = None,
        steps: int | None = None,
        unconditional: Prefix | None = None,
    ) -> Tensor:
        """Integrate the flow from noise [B, H, A], standard normal, to a chunk [B, H, A], raw units.

        Args:
            prefix: From `encode`.
            committed: [B, d, A], raw units: the first d actions, which will be executed anyway. Returned unchanged.
            steps: Euler steps, default ``config.sampling_steps``.
            unconditional: The prefix with the indicator NONE, for classifier-free guidance.
        """
        steps = steps or self.config.sampling_steps
        length = 0 if committed is None else committed.shape[1]
        start, fixed = noise, torch.arange(noise.shape[1], device=noise.device)[None] < length
        if committed is not None:
            start = torch.cat([self.action_normalizer.network_input(committed), noise[:, length:]], 1)
        raw = self.to_raw_actions(self._integrate(start, fixed, prefix, steps, unconditional))
        return raw if committed is None else torch.cat([committed, raw[:, length:]], 1)

    def draw(
        self, images: dict[str, Tensor], state: Tensor, text: Tensor, noise: Tensor, committed: Tensor | None = None
    ) -> Tensor:
        """Sample chunks for observations, as `TrainablePolicy.draw` defines it."""
        prefix, unconditional = self.acting_prefixes(*self.features(images, state, text))
        return self.sample(prefix, noise, committed, unconditional=unconditional)

    def draw_several(
        self,
        images: dict[str, Tensor],
        state: Tensor,
        text: Tensor,
        noise: Tensor,
        committed: Tensor | None = None,
        seen: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Sample several chunks for each observation, which is encoded once."""
        count = noise.shape[1]
        prefix, unconditional = self.acting_prefixes(*(seen or self.features(images, state, text)))
        chunks = self.sample(
            prefix.repeat(count),
            noise.flatten(0, 1),
            None if committed is None else committed.repeat_interleave(count, 0),
            unconditional=None if unconditional is None else unconditional.repeat(count),
        )
        return chunks.unflatten(0, (-1, count))

    def draw_from(self, tokens: Tensor, mask: Tensor, noise: Tensor) -> Tensor:
        """Sample chunks from features alone. The velocity is evaluated half as often as in `draw`."""
        prefix, unconditional = self.acting_prefixes(tokens, mask)
        return self.to_raw_actions(self._extrapolated(noise, prefix, unconditional))

    def acting(self, device: str = "cpu", version: int = 0) -> Policy:
        """Return the policy that acts. It can be guided towards the scheduled actions."""
        from vla_rl.policies.flow_vla.policy import FlowVLAPolicy

        return FlowVLAPolicy(self, device, version)

    def save(self, folder: Path | str, meta: dict[str, Any] | None = None) -> None:
        """Write the policy, and the description of its backbone."""
        if self.config.backbone.folder:
            self.backbone.save_description(Path(folder) / _BACKBONE)
        super().save(folder, meta)

    @classmethod
    def config_in(cls, folder: Path, config: FlowVLAConfig) -> FlowVLAConfig:
        """Return the configuration with the backbone of a policy's folder."""
        if not config.backbone.folder:
            return config
        return replace(config, backbone=replace(config.backbone, folder=str(folder / _BACKBONE)))

    def _integrate(
        self, start: Tensor, fixed: Tensor, prefix: Prefix, steps: int, unconditional: Prefix | None = None
    ) -> Tensor:
        """Take Euler steps from ``start`` [B, H, A], normalized units. Actions that are ``fixed`` do not change:
        bool [B, H], or [1, H] if all rows share it.
        """
        actions = start
        for step in range(steps):
            time = torch.where(fixed, 1.0, step / steps)
            velocity = self.guided_velocity(actions, time, prefix, unconditional)
            actions = actions + torch.where(fixed[..., None], 0.0, velocity) / steps
        return actions

    def _extrapolated(self, start: Tensor, prefix: Prefix, unconditional: Prefix | None) -> Tensor:
        """Integrate from ``start`` [B, H, A] by the Adams-Bashforth method of two steps, normalized units (Hairer,
        Norsett and Wanner, Solving Ordinary Differential Equations I, III.5):

            a_k+1 = a_k + h_k (v_k + (v_k - v_k-1) h_k / (2 h_k-1)),   tau_k = 1 - (1 - k / K)^1.5

        Steps are shorter near the data, where the flow turns most. On a trained policy it is as exact as `draw`.
        """
        count = (self.config.sampling_steps + 1) // 2
        times = [1 - (1 - step / count) ** 1.5 for step in range(count + 1)]
        actions, velocity, length = start, None, 1.0
        for time, following in itertools.pairwise(times):
            before, step = velocity, following - time
            at = actions.new_full((1, start.shape[1]), time)
            velocity = self.guided_velocity(actions, at, prefix, unconditional)
            change = 0.0 if before is None else (velocity - before) * (step / (2 * length))
            actions, length = actions + step * (velocity + change), step
        return actions

    def to_raw_actions(self, actions: Tensor) -> Tensor:
        """Sampled actions [B, H, A] from normalized to raw units; discrete dimensions to the nearer of two levels."""
        raw = self.action_normalizer.denormalize(actions)
        return torch.where(self.discrete, torch.where(actions > 0, self.upper_level, self.lower_level), raw)

    def tokens_of(
        self, images: dict[str, Tensor], state: Tensor, text: Tensor, indicator: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """`features` of a normalized state."""
        own = [self.state_token(state)[:, None]]
        if self.config.indicator:
            values = torch.zeros(len(state), dtype=torch.int64, device=state.device) if indicator is None else indicator
            own.append(self.indicator_token(values)[:, None])
        if self.config.expert.window:
            own.append(self.sink.expand(len(state), 1, -1))
        mask = torch.ones(len(state), len(own), dtype=torch.bool, device=state.device)
        if self.config.backbone.folder:
            seen, seen_mask = self.backbone(images, text)
        else:
            seen = self.text(text)
            if images:  # a policy without cameras has the sentence and the state
                pictures = self.vision(images)
                pictures = self.film(pictures, text) if self.config.text.film else pictures
                seen = torch.cat([pictures, seen], 1)
            seen_mask = mask.new_ones(seen.shape[:2])
        return self.prefix_norm(torch.cat([seen, *own], 1)), torch.cat([seen_mask, mask], 1)

    def _drop_indicator(self, batch: PolicyBatch, generator: torch.Generator) -> Tensor | None:
        if batch.indicator is None or not self.config.indicator:
            return None
        keep = torch.rand(len(batch.indicator), generator=generator) >= _INDICATOR_DROPOUT
        return torch.where(keep.to(batch.indicator.device), batch.indicator, int(Indicator.NONE))


def need_flow_vla(model: TrainablePolicy, purpose: str) -> FlowVLA:
    """Return the model, for ``what`` only the built-in policy can do; UserError for a policy of another kind."""
    if not isinstance(model, FlowVLA):
        raise UserError(f"{purpose} needs a policy of kind 'flow_vla', this one is of kind {model.config.kind!r}")
    return model
