"""A rank of torchrun: `vla-rl finetune`, which first takes gradient steps of a policy without noise.

Arguments: a folder for the weights that the rank ends with, then those of the verb.
"""

import os
import sys
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from vla_rl.algorithms.actor import ActorConfig, ActorLearner
from vla_rl.cli.main import main
from vla_rl.policies.base import PolicyBatch
from vla_rl.training import finetune


class Means(nn.Module):
    """Learns two actions, the second from rows of text 1 alone, and leaves a third parameter without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.never = (nn.Parameter(torch.zeros(2)) for _ in range(3))

    def loss(self, batch: PolicyBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        asked = batch.text[:, 0] == 1
        distance = (batch.actions[:, 0] - self.first).square().sum(-1)
        if asked.any():
            distance = distance + asked * (batch.actions[:, 0] - self.second).square().sum(-1)
        return 0.5 * distance, {}


def means() -> dict[str, Tensor]:
    """Return the weights of `Means` after three steps on batches of five rows."""
    learner = ActorLearner(Means(), ActorConfig(batch_size=5, learning_rate=0.1), seed=0)
    for step in range(3):
        actions = torch.randn(5, 1, 2, generator=torch.Generator().manual_seed(step))
        text, valid = torch.tensor([[0], [1], [0], [1], [0]]), torch.ones(1, 1, 1, dtype=torch.bool)
        learner.update(PolicyBatch({}, torch.zeros(5, 2), text, actions, valid), torch.linspace(0.5, 2.0, 5), step)
    return dict(learner.model.state_dict())


def run(out: Path, arguments: list[str]) -> int:
    found: dict[str, Any] = {}
    make = finetune.make_learner

    def make_learner(*given: Any) -> Any:
        """Called inside the process group of the verb."""
        found["means"], found["learner"] = means(), make(*given)
        return found["learner"]

    finetune.make_learner = make_learner
    code = main(arguments)
    weights = {f"means.{name}": tensor for name, tensor in found["means"].items()}
    weights |= {name: tensor.contiguous() for name, tensor in found["learner"].policy().state_dict().items()}
    safetensors.torch.save_file(weights, out / f"{os.environ['RANK']}.safetensors")
    return code


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
