"""The actor's part of every algorithm: the policy's loss weighted, AdamW, and an average of the weights that acts."""

import copy
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vla_rl.algorithms.config import ActorConfig
from vla_rl.algorithms.data_parallel import AddUp, Share, Team, team_of
from vla_rl.algorithms.seeds import torch_generator
from vla_rl.core.errors import UserError
from vla_rl.policies.trainable import PolicyBatch, TrainablePolicy

_WEIGHT_DECAY = 1e-4
_GRADIENT_NORM = 1.0  # longer gradients are shortened to it
_FINAL_FRACTION = 0.1  # of the learning rate, at the end of the cosine and after it


def weighted_loss(per_sample: Tensor, weight: Tensor) -> Tensor:
    """mean_i w_i L_i of [B] and [B], the actor's loss of arXiv 2606.17043. No gradient flows through the weights."""
    return (weight.detach() * per_sample).mean()


class ActorStep:
    """The gradient step of one process: a model and its optimiser.

    Args:
        config: the optimisation.
        seed: of noise and flow times.
        model: trained in place.
    """

    def __init__(self, config: ActorConfig, seed: int, model: TrainablePolicy) -> None:
        self.model, self._seed = model, seed
        self._optimizer = make_optimizer(model, config.learning_rate, _WEIGHT_DECAY)
        self._autocast = autocast(config, next(model.parameters()).device)

    def step(
        self, share: Share, step: int, learning_rate: float, rank: int = 0, add_up: AddUp | None = None
    ) -> dict[str, float]:
        """One gradient step.

        Args:
            share: of the batch.
            step: of the run; keys the randomness.
            learning_rate: of the step.
            rank: of this process; each has its own randomness.
            add_up: adds gradients and logs of all processes; None: there is this one alone.

        Raises:
            UserError: unless the policy's loss and the algorithm's weights are one number a sample: others would be
                spread over the batch, so that every sample had the mean weight.
        """
        self.model.train()
        generator = torch_generator(self._seed, f"actor noise {rank}" if rank else "actor noise", step)
        with self._autocast:
            per_sample, logs = self.model.loss(share.batch, generator)
        size = len(share.batch.state)
        for who, numbers in (("the loss of the policy", per_sample), ("the weights of the algorithm", share.weight)):
            if numbers.shape != (size,):
                raise UserError(
                    f"{who} for {size} samples: found the shape {list(numbers.shape)}, expected [{size}], a number each"
                )
        loss = weighted_loss(per_sample.float(), share.weight)
        told = [float(loss.detach()), *logs.values()]

        def add_gradients() -> None:
            if add_up is not None:
                told[:] = add_up(self.model, [share.fraction * number for number in told])

        norm = gradient_step(
            self._optimizer, share.fraction * loss, self.model, _GRADIENT_NORM, learning_rate, add_gradients
        )
        return {"actor_loss": told[0], "actor_gradient_norm": norm, "learning_rate": learning_rate} | {
            f"actor_{name}": value for name, value in zip(logs, told[1:], strict=True)
        }

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        load_optimizer(self._optimizer, state["optimizer"])


class ActorLearner:
    """Trains a policy on weighted batches, in one process or in several (`ActorConfig.processes`).

    Args:
        model: trained in place.
        config: the optimisation.
        seed: of noise and flow times.
    """

    def __init__(self, model: TrainablePolicy, config: ActorConfig, seed: int) -> None:
        self.model, self.config, self._seed = model, config, seed
        self.average = copy.deepcopy(model).eval().requires_grad_(False)
        self._own = ActorStep(config, seed, model)
        self._updates = self._schedule_start = 0
        self._team: Team | None = None
        """The processes that hold what this one holds."""

    def begin_round(self) -> None:
        """A new round begins; see `ActorConfig.schedule_every_round`."""
        if self.config.schedule_every_round:
            self._schedule_start = self._updates

    def update(self, batch: PolicyBatch, weight: Tensor, step: int) -> dict[str, float]:
        """One gradient step on a batch of B samples with weights [B].

        Args:
            batch: raw units.
            weight: float [B].
            step: of the run; keys the randomness.

        Raises:
            ConfigError: for more processes than the machine has GPUs, on a GPU.
            UserError: if one of the other processes has ended.
        """
        learning_rate = scheduled_learning_rate(self.config, self._updates - self._schedule_start)
        if self.config.processes == 1:
            logs = self._own.step(Share(batch, weight, 1.0), step, learning_rate)
        else:
            logs = self._shared_step(batch, weight, step, learning_rate)
        self._updates += 1
        self._follow()
        return logs

    def _shared_step(self, batch: PolicyBatch, weight: Tensor, step: int, learning_rate: float) -> dict[str, float]:
        team = team_of(self.config.processes, next(self.model.parameters()).device)
        try:
            if team is not self._team or team.serves is not self:
                make = functools.partial(ActorStep, self.config, self._seed)
                team.give(self, self.model, make, self._own.state_dict())
                self._team = team
            share = team.hand_out(batch, weight, step, learning_rate)
            return self._own.step(share, step, learning_rate, add_up=team.add_up)
        except BaseException:
            team.close()  # the others may be waiting in the midst of the step
            raise

    def adopt(self, other: TrainablePolicy) -> None:
        """Take the weights of another policy, for the trained weights and their average."""
        for own in (self.model, self.average):
            own.load_state_dict(other.state_dict())
        self._team = None

    def policy(self) -> TrainablePolicy:
        """The model that should act: averaged weights, in eval mode."""
        return self.average

    def state_dict(self) -> dict[str, Any]:
        return {
            **self._own.state_dict(),
            "average": self.average.state_dict(),
            "updates": self._updates,
            "schedule_start": self._schedule_start,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._own.load_state_dict(state)
        self.average.load_state_dict(state["average"])
        self._updates = int(state["updates"])
        self._schedule_start = int(state["schedule_start"])
        self._team = None

    @torch.no_grad()
    def _follow(self) -> None:
        # Shorter at first, so that the average forgets where it started.
        decay = min(self.config.ema_decay, self._updates / (self._updates + 10.0))
        follow(self.average, self.model, 1.0 - decay)


def autocast(config: ActorConfig, device: torch.device, cached: bool = True) -> torch.autocast:
    """The context of what is computed in `ActorConfig.precision`.

    Args:
        config: of the actor.
        device: that computes.
        cached: weights are converted once for the whole context; they must not change in it.
    """
    half = config.precision == "bfloat16" or (config.precision == "auto" and computes_bfloat16(device))
    return torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=cached)


def computes_bfloat16(device: torch.device) -> bool:
    """Whether a device has instructions for bfloat16; without them it is slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    has = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))


def make_optimizer(module: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices and kernels, and leaves biases, norms and scalars alone."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate, fused=True)


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load an optimiser's state as `state_dict` gave it, or as a checkpoint kept it.

    A checkpoint holds plain contiguous tensors. The moments get back the memory layout of their weights: the fused
    AdamW walks through both in memory order and goes wrong, silently, where channels_last weights have contiguous
    moments.
    """
    optimizer.load_state_dict(dict(state))
    for parameter, moments in optimizer.state.items():
        for name, moment in moments.items():
            if moment.shape == parameter.shape:
                moments[name] = torch.empty_like(parameter).copy_(moment)


def gradient_step(
    optimizer: torch.optim.Optimizer,
    loss: Tensor,
    module: nn.Module,
    max_norm: float,
    learning_rate: float,
    after_backward: Callable[[], None] | None = None,
) -> float:
    """Backward, then what is to be done with the gradient, shorten it to ``max_norm``, step. Returns the norm before it
    was shortened.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if after_backward is not None:
        after_backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), max_norm, foreach=True)
    optimizer.step()
    return float(norm)


def scheduled_learning_rate(config: ActorConfig, update: int) -> float:
    """The learning rate of an update: linear rise, then constant or cosine. See `ActorConfig`."""
    rise = min(1.0, (update + 1) / max(config.warmup_steps, 1))
    if not config.decay_steps:
        return config.learning_rate * rise
    progress = min(1.0, update / config.decay_steps)
    fall = _FINAL_FRACTION + (1.0 - _FINAL_FRACTION) * 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.learning_rate * min(rise, fall)


@torch.no_grad()
def follow(follower: nn.Module, leader: nn.Module, rate: float) -> None:
    """Move every weight of a copy by ``rate`` of the way towards its original; running statistics are taken over."""
    torch._foreach_lerp_(list(follower.parameters()), list(leader.parameters()), rate)
    for ours, theirs in zip(follower.buffers(), leader.buffers(), strict=True):
        ours.copy_(theirs)
