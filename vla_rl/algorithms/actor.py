"""The actor's part of every algorithm: the policy's loss weighted, AdamW, and an average of the weights that acts."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from vla_rl.algorithms.sampling import torch_generator
from vla_rl.core.errors import UserError
from vla_rl.core.validation import check_ranges
from vla_rl.policies.base import BasePolicy, PolicyBatch

_WEIGHT_DECAY = 1e-4
_EMA_DECAY = 0.995  # of the average of the weights that acts; shorter at first
_GRADIENT_NORM = 1.0  # longer gradients are shortened to it
_FINAL_FRACTION = 0.1  # of the learning rate, at the end of the cosine and after it


@dataclass(frozen=True)
class ActorConfig:
    """The actor's optimization. None of it is stated in the paper but the batch size of 256.

    Attributes:
        batch_size: samples per gradient step.
        learning_rate: of AdamW, after the warm-up.
        warmup_steps: gradient steps over which the learning rate rises linearly.
        decay_steps: gradient steps after which a cosine has brought the learning rate down to a tenth; 0: constant.
        schedule_every_round: warm-up and cosine start anew in every round, so that each round ends with small steps.
        precision: Precision of the matrix products and convolutions of the policy's loss and its gradient, and of the
            models for imagination. Weights, optimizer and average are float32. ``auto`` is bfloat16 where the device
            computes in it (GPUs since Ampere; processors with avx512_bf16 or amx_bf16), else float32. It saves about a
            third of the time.
    """

    batch_size: int = 64
    learning_rate: float = 5e-4
    warmup_steps: int = 100
    decay_steps: int = 0
    schedule_every_round: bool = False
    precision: Literal["float32", "bfloat16", "auto"] = "float32"

    def __post_init__(self) -> None:
        check_ranges(self, "actor", batch_size=">= 1", learning_rate="> 0", warmup_steps=">= 0", decay_steps=">= 0")


def weighted_loss(per_sample: Tensor, weight: Tensor) -> Tensor:
    """mean_i w_i L_i of [B] and [B], the actor's loss of arXiv 2606.17043. No gradient flows through the weights."""
    return (weight.detach() * per_sample).mean()


class ActorLearner:
    """Trains a policy in place on weighted batches.

    In a process group of torch.distributed each process takes its rows of the batch, and DistributedDataParallel
    averages the gradients. The seed is that of noise and flow times.
    """

    def __init__(self, model: BasePolicy, config: ActorConfig, seed: int) -> None:
        self.model, self.config, self._seed = model, config, seed
        frozen = {id(parameter): parameter for parameter in model.parameters() if not parameter.requires_grad}
        self.average = copy.deepcopy(model, frozen).eval().requires_grad_(False)  # it shares frozen weights
        self._optimizer = make_optimizer(model, config.learning_rate, _WEIGHT_DECAY)
        self._autocast = autocast(config, next(model.parameters()).device)
        self._updates = self._schedule_start = 0
        self._loss: nn.Module = _Loss(model)

    def begin_round(self) -> None:
        """A new round begins; see `ActorConfig.schedule_every_round`."""
        if self.config.schedule_every_round:
            self._schedule_start = self._updates

    def update(self, batch: PolicyBatch, weight: Tensor, step: int) -> dict[str, float]:
        """One gradient step on a batch of B samples, raw units, with weights [B].

        Returns what to log of this process's rows.

        The step of the run keys the randomness.

        Raises:
            UserError: Unless the policy's loss and the algorithm's weights are one number a sample. Others would be
                spread over the batch, and every sample would have the mean weight.
        """
        rank, ranks, count = 0, 1, len(batch.state)
        if distributed.is_initialized():
            rank, ranks = distributed.get_rank(), distributed.get_world_size()
            batch = batch.map(lambda column: column[rank::ranks] if len(column) == count else column)
            weight = weight[rank::ranks]
            if not isinstance(self._loss, DistributedDataParallel):
                self._loss = DistributedDataParallel(self._loss, find_unused_parameters=True)
        self.model.train()
        generator = torch_generator(self._seed, f"actor noise {rank}" if rank else "actor noise", step)
        with self._autocast:
            per_sample, logs = self._loss(batch, generator)
        size = len(batch.state)
        for who, numbers in (("the loss of the policy", per_sample), ("the weights of the algorithm", weight)):
            if numbers.shape != (size,):
                raise UserError(
                    f"{who} for {size} samples: found the shape {list(numbers.shape)}, expected [{size}], a number each"
                )
        loss = weighted_loss(per_sample.float(), weight)
        part = ranks * size / count  # of the mean over processes
        learning_rate = scheduled_learning_rate(self.config, self._updates - self._schedule_start)
        norm = gradient_step(self._optimizer, part * loss, self.model, _GRADIENT_NORM, learning_rate)
        self._updates += 1
        decay = min(_EMA_DECAY, self._updates / (self._updates + 10.0))  # shorter at first: it forgets where it started
        polyak_update(self.average, self.model, 1.0 - decay)
        return {"actor_loss": float(loss.detach()), "actor_gradient_norm": norm, "learning_rate": learning_rate} | {
            f"actor_{name}": value for name, value in logs.items()
        }

    def adopt(self, other: BasePolicy) -> None:
        """Take the weights of another policy, for the trained weights and their average."""
        for own in (self.model, self.average):
            own.load_state_dict(other.state_dict())

    def policy(self) -> BasePolicy:
        """The model that should act: averaged weights, in eval mode."""
        return self.average

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "average": self.average.state_dict(),
            "updates": self._updates,
            "schedule_start": self._schedule_start,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        load_optimizer(self._optimizer, state["optimizer"])
        self.average.load_state_dict(state["average"])
        self._updates = int(state["updates"])
        self._schedule_start = int(state["schedule_start"])


class _Loss(nn.Module):
    """The loss of a policy as ``forward``, through which DistributedDataParallel averages gradients."""

    def __init__(self, model: BasePolicy) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: PolicyBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        return self.model.loss(batch, generator)


def autocast(config: ActorConfig, device: torch.device, cached: bool = True) -> torch.autocast:
    """The context of what is computed in `ActorConfig.precision` on a device.

    With ``cached`` weights are converted once for the whole context; they must not change in it.
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
    """Load an optimizer's state as `state_dict` gave it, or as a checkpoint kept it.

    A checkpoint holds plain contiguous tensors. The moments get back the memory layout of their weights. The fused
    AdamW walks through both in memory order, and is silently wrong where channels_last weights have contiguous moments.
    """
    optimizer.load_state_dict(dict(state))
    for parameter, moments in optimizer.state.items():
        for name, moment in moments.items():
            if moment.shape == parameter.shape:
                moments[name] = torch.empty_like(parameter).copy_(moment)


def gradient_step(
    optimizer: torch.optim.Optimizer, loss: Tensor, module: nn.Module, max_norm: float, learning_rate: float
) -> float:
    """Backward, shorten the gradient to ``max_norm``, step. Returns the norm before it was shortened."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
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
def polyak_update(follower: nn.Module, leader: nn.Module, rate: float) -> None:
    """Move every weight of a copy by ``rate`` of the way towards its original; running statistics are taken over."""
    every = zip(follower.parameters(), leader.parameters(), strict=True)
    pairs = [(ours, theirs) for ours, theirs in every if ours is not theirs]  # frozen weights are shared
    torch._foreach_lerp_([ours for ours, _ in pairs], [theirs for _, theirs in pairs], rate)
    for ours, theirs in zip(follower.buffers(), leader.buffers(), strict=True):
        ours.copy_(theirs)
