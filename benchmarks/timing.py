"""What benchmarks of policies share: the time of a chunk, and weights that are no longer those of a fresh network."""

import time
from typing import Any

from vla_rl.core.protocols import Policy
from vla_rl.core.types import Observation

BLOCK_CHUNKS = 20


def block_ms(policy: Policy, observation: Observation) -> float:
    """Milliseconds a chunk, mean over a block. Blocks of what is compared take turns: a busy machine slows all."""
    started_s = time.perf_counter()
    for _ in range(BLOCK_CHUNKS):
        policy.infer(observation)
    return 1e3 * (time.perf_counter() - started_s) / BLOCK_CHUNKS


def perturb(model: Any, seed: int) -> None:
    """As a round of learning does, every weight changes a little."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * parameter.std().nan_to_num() * torch.randn(parameter.shape, generator=generator))
