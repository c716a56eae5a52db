"""Short trainings, in a few minutes, without checkpoints."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vla_rl.core.progress import track


def fit(
    module: nn.Module, loss: Callable[[], Tensor], name: str, steps: int, learning_rate: float, weight_decay: float
) -> None:
    """Train a module in place by AdamW. The learning rate falls to 0 by a cosine."""
    optimizer = torch.optim.AdamW(module.parameters(), learning_rate, weight_decay=weight_decay, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in track(range(steps), name, "step"):
        value = loss()
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
        schedule.step()
    module.eval()
