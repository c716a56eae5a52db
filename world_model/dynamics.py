"""The dynamics: latents, proprioception and actions of the past -> the next latents, proprioception and outcome.

Frame t holds what was sensed at a tick and the action sent at it; its hidden tokens predict frame t + 1. All frames can
be computed at once (training), or one by one with a bounded memory (imagination); both give the same.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vla_rl.policies.layers import limited
from world_model.config import WorldModelConfig, WorldSpec
from world_model.heads import FlowHead, Outcome, OutcomeHeads, outcome_loss
from world_model.transformer import BlockCausalTransformer, FrameLayout, Memory

_START_MASS = 0.3  # share of the flow times in training that are exactly 0, where sampling begins


@dataclass(frozen=True)
class WorldBatch:
    """B windows of T steps. Latents are the autoencoder's, state and action in raw units.

    Attributes:
        latents: [B, T + 1, N, D], one more than the steps: the last one is only predicted.
        state: [B, T + 1, S].
        action: [B, T, A].
        previous_latents: [B, N, D], of the frame before the window.
        previous_state: [B, S].
        has_previous: bool [B], False where the window begins an episode.
        inside: bool [B, T], False behind the end of an episode.
        has_next: bool [B, T], whether the next observation is known; it is not after the last action of an episode.
        success: float [B, T], 1 where the action ended the task in success; the reward is the same.
        termination: float [B, T], 1 where the action ended the task.
    """

    latents: Tensor
    state: Tensor
    action: Tensor
    previous_latents: Tensor
    previous_state: Tensor
    has_previous: Tensor
    inside: Tensor
    has_next: Tensor
    success: Tensor
    termination: Tensor


class Context(NamedTuple):
    """What the transformer reads of T frames.

    Attributes:
        latents, latent_motion: [B, T, N, D], and the change since the frame before.
        state, state_motion: [B, T, S], raw units.
        action: [B, T, A], raw units.
    """

    latents: Tensor
    latent_motion: Tensor
    state: Tensor
    state_motion: Tensor
    action: Tensor


class NextFrames(NamedTuple):
    """One imagined step. ``latents`` [B, T, N, D], ``state`` [B, T, S] in raw units, and the outcome of the action."""

    latents: Tensor
    state: Tensor
    outcome: Outcome


class Dynamics(nn.Module):
    """The latent dynamics of the video model, on rows and columns (``grid``) of tokens [D] a frame."""

    state_mean: Tensor
    state_std: Tensor
    state_change_std: Tensor
    action_mean: Tensor
    action_std: Tensor
    latent_change_std: Tensor
    servos: Tensor

    def __init__(self, config: WorldModelConfig, spec: WorldSpec, grid: tuple[int, int], token_dim: int) -> None:
        super().__init__()
        self.config = config.dynamics
        self.in_bfloat16 = config.training.bfloat16
        width, mechanisms = self.config.width, self.config
        extra = 0 if mechanisms.joined_tokens else 2
        layout = FrameLayout(extra, grid, mechanisms.memory_pool)
        self.transformer = BlockCausalTransformer(mechanisms, layout)
        self.width, self.state_dim = width, spec.state_dim
        self.latent_token = nn.Linear(2 * token_dim, width)
        self.place = nn.Parameter(0.02 * torch.randn(layout.tokens, width))
        poses = 2 + 4 * mechanisms.state_frequencies  # the state and where servos would take it, and their waves
        self.state_token = nn.Linear((1 + poses) * spec.state_dim, width)
        self.action_token = nn.Linear(spec.action_dim, width)
        self.condition = nn.Sequential(
            nn.Linear(spec.action_dim + (1 + poses) * spec.state_dim, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.flow = FlowHead(mechanisms, token_dim)
        self.heads = OutcomeHeads(config.heads, width, extra, spec.state_dim)
        for name in ("state_mean", "state_std", "state_change_std"):
            self.register_buffer(name, torch.ones(spec.state_dim) * (not name.endswith("mean")))
        for name in ("action_mean", "action_std"):
            self.register_buffer(name, torch.ones(spec.action_dim) * (not name.endswith("mean")))
        self.register_buffer("latent_change_std", torch.ones(token_dim))
        # Least squares: state, its motion, action and 1 -> the change of the state, all normalized.
        self.register_buffer("servos", torch.zeros(2 * spec.state_dim + spec.action_dim + 1, spec.state_dim))

    def hidden(self, context: Context) -> tuple[Tensor, Tensor]:
        """Return hidden tokens [B, T, F, width] and conditions [B, T, width + S]. Conditions modulate the layers and
        hold the linear servos' change of the state, in standard deviations.
        """
        condition = self._condition(context)
        return self.transformer(self._tokens(context), condition[..., : self.width]), condition

    def loss(self, batch: WorldBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Flow matching of the next latents, with the joint heads; and what to log.

        Flow times, noise and corruption are drawn.
        """
        with self._precision(batch.latents.device):
            latents, state = self._corrupt(batch, generator)
            if torch.rand((), generator=generator) < self.config.self_context:
                latents, state = self._imagine_context(batch, latents, state, generator)
            context = self.context(batch, latents, state)
            hidden, condition = self.hidden(context)
            has_next, inside = batch.has_next.float(), batch.inside.float()
            flow, logs = self.flow_loss(hidden, condition, latents, batch.latents[:, 1:], has_next, generator)
            change = (batch.state[:, 1:] - state) / self.state_change_std - condition[..., self.width :]
            labels = (batch.success, batch.success, batch.termination)
            outcome, outcome_logs = outcome_loss(self.heads(hidden), labels, change, inside, has_next)
            return flow + outcome, logs | outcome_logs

    def flow_loss(
        self,
        hidden: Tensor,
        condition: Tensor,
        latents: Tensor,
        later: Tensor,
        has_next: Tensor,
        generator: torch.Generator,
    ) -> tuple[Tensor, dict[str, float]]:
        """Squared error of the predicted clean end of the flow; tokens that move weigh more.

        Args:
            hidden, condition: From `hidden`.
            latents, later: [B, T, N, D], the context's present latents, and the true next ones.
            has_next: float [B, T].
            generator: Of flow times and noise.
        """
        clean = (later - latents) / self.latent_change_std
        time = torch.rand(has_next.shape, generator=generator)
        time = torch.where(torch.rand(has_next.shape, generator=generator) < _START_MASS, 0.0, time)
        noise = torch.randn(clean.shape, generator=generator).to(clean.device)
        time = time.to(clean.device)
        noisy = torch.lerp(noise, clean, time[..., None, None])
        end = self.flow(noisy, time, self._picture_tokens(hidden), condition[..., : self.width])
        error = (end - clean).square().mean(-1)  # [B, T, N]
        weight = self._moving_weight(later, latents, has_next)
        loss = (weight * error).sum() / weight.sum().clamp(min=1e-6)
        return loss, {"flow_loss": float(loss.detach())}

    def predict(self, hidden: Tensor, condition: Tensor, latents: Tensor, state: Tensor) -> NextFrames:
        """Return the next frame of each of T frames, given `hidden` and condition.

        Latents are [B, T, N, D], states [B, T, S] in raw units.
        """
        modulating, servos = condition.split([self.width, self.state_dim], -1)
        end = self.flow.sample(self._picture_tokens(hidden), modulating, self.config.flow_steps)
        outcome = self.heads(hidden)
        later = state + (servos + outcome.state_change) * self.state_change_std
        return NextFrames(latents + end * self.latent_change_std, later, outcome)

    def context(self, batch: WorldBatch, latents: Tensor, state: Tensor) -> Context:
        """What is read of a batch whose context, [B, T, N, D] and [B, T, S], may be corrupted or imagined."""
        exists = batch.has_previous[:, None].float()
        first_motion = (latents[:, 0] - batch.previous_latents) * exists[..., None]
        first_state_motion = (state[:, 0] - batch.previous_state) * exists
        return Context(
            latents,
            torch.cat([first_motion[:, None], latents.diff(dim=1)], 1),
            state,
            torch.cat([first_state_motion[:, None], state.diff(dim=1)], 1),
            batch.action,
        )

    def begin(self, latents: Tensor, state: Tensor) -> Memory:
        """Return a memory of nothing for B streams, whose frames will be like these, [B, N, D] and [B, S]."""
        return self.transformer.new_memory(latents, state)

    def push(self, memory: Memory, latents: Tensor, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Add a frame, [B, N, D], [B, S] and [B, A], to all streams: hidden tokens [B, 1, F, width] and condition."""
        begun = (memory.age > 0).float()[:, None]
        last_latents, last_state = memory.last
        context = Context(
            latents[:, None],
            ((latents - last_latents) * begun[..., None])[:, None],
            state[:, None],
            ((state - last_state) * begun)[:, None],
            action[:, None],
        )
        condition = self._condition(context)
        hidden = self.transformer.push(memory, self._tokens(context), condition[..., : self.width])
        memory.last = (latents, state)
        return hidden, condition

    def step(self, memory: Memory, latents: Tensor, state: Tensor, action: Tensor) -> NextFrames:
        """Act in all streams: the next frame of each. Arguments as `push`."""
        hidden, condition = self.push(memory, latents, state, action)
        predicted = self.predict(hidden, condition, latents[:, None], state[:, None])
        outcome = Outcome(*(part[:, 0] for part in predicted.outcome))
        return NextFrames(predicted.latents[:, 0], predicted.state[:, 0], outcome)

    def _picture_tokens(self, hidden: Tensor) -> Tensor:
        """Those of the hidden tokens [B, T, F, width] that stand for the picture, [B, T, N, width]."""
        return hidden[:, :, self.transformer.layout.extra :]

    def _precision(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.in_bfloat16 and _is_fast_in_bfloat16(device))

    def _moving_weight(self, later: Tensor, latents: Tensor, has_next: Tensor) -> Tensor:
        """Weights of tokens [B, T, N], 0 where there is no next frame."""
        change = (later - latents).detach().square().mean(-1)
        mean = (change * has_next[..., None]).sum() / (has_next.sum() * change.shape[-1]).clamp(min=1)
        moving = (change / mean.clamp(min=1e-8)).clamp(max=5.0)
        return (1 + moving) * has_next[..., None]

    def _condition(self, context: Context) -> Tensor:
        """[B, T, width + S], see `hidden`."""
        _, motion, action = self._normalised(context)
        seen = torch.cat([action, motion, self._poses(context)], -1)
        return torch.cat([self.condition(seen), self._linear_change(context)], -1)

    def _poses(self, context: Context) -> Tensor:
        """Return the state, the change that linear servos would make, and the waves of where both are, [B, T, P]."""
        state, change = self._normalised(context)[0], self._linear_change(context)
        if not self.config.state_frequencies:
            return torch.cat([state, change], -1)
        there = torch.stack([state, state + change * self.state_change_std / self.state_std], -1)
        frequency = 2.0 ** torch.arange(-1, self.config.state_frequencies - 1, device=state.device)
        angle = (there[..., None] * frequency).flatten(2)
        return torch.cat([state, change, angle.sin(), angle.cos()], -1)

    def _linear_change(self, context: Context) -> Tensor:
        """What linear servos would make of the action: the change of the state [B, T, S] in standard deviations."""
        state, motion, action = self._normalised(context)
        known = torch.cat([state, motion, action, torch.ones_like(action[..., :1])], -1)
        with torch.autocast(known.device.type, enabled=False):
            return known @ self.servos

    def _normalised(self, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """State and its motion [B, T, S], and action [B, T, A], in standard deviations."""
        state = limited((context.state - self.state_mean) / self.state_std, self.state_std)
        action = limited((context.action - self.action_mean) / self.action_std, self.action_std)
        return state, limited(context.state_motion / self.state_change_std, self.state_change_std), action

    def _tokens(self, context: Context) -> Tensor:
        """[B, T, F, width]."""
        _, motion, action = self._normalised(context)
        pose = self.state_token(torch.cat([self._poses(context), motion], -1))[:, :, None]
        command = self.action_token(action)[:, :, None]
        latent_motion = context.latent_motion / self.latent_change_std
        picture = self.latent_token(torch.cat([context.latents, latent_motion], -1))
        if self.config.joined_tokens:
            return picture + pose + command + self.place
        return torch.cat([pose, command, picture], 2) + self.place

    def _corrupt(self, batch: WorldBatch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Noise on the context: latents [B, T, N, D] and state [B, T, S]."""
        latents, state = batch.latents[:, :-1], batch.state[:, :-1]
        level = torch.rand(len(latents), 1, 1, 1, generator=generator) * self.config.context_noise
        latent_noise = level * torch.randn(latents.shape, generator=generator)
        state_noise = self.config.state_noise * torch.randn(state.shape, generator=generator)
        return latents + latent_noise.to(latents.device), state + state_noise.to(state.device) * self.state_std

    @torch.no_grad()
    def _imagine_context(
        self, batch: WorldBatch, latents: Tensor, state: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Replace the context by the model's own imagination, open loop from a random frame of each window on, the
        third at the earliest. The model meets the errors of imagination at their real size.
        """
        frames = latents.shape[1]
        first = torch.randint(2, max(frames, 2) + 1, (len(latents),), generator=generator).to(latents.device)
        memory = self.begin(latents[:, 0], state[:, 0])
        context = [(latents[:, 0], state[:, 0])]
        for index in range(1, frames):
            predicted = self.step(memory, *context[-1], batch.action[:, index - 1])
            imagined = index >= first
            context.append(
                (
                    torch.where(imagined[:, None, None], predicted.latents, latents[:, index]),
                    torch.where(imagined[:, None], predicted.state, state[:, index]),
                )
            )
        columns = zip(*context, strict=True)
        own_latents, own_state = (torch.stack(column, 1) for column in columns)
        return own_latents, own_state


def _is_fast_in_bfloat16(device: torch.device) -> bool:
    """Processors without instructions for it emulate it, which is slower than full precision."""
    known = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return device.type != "cpu" or any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
