"""The graph ``selection``: residual and critic of a policy, as `BestOfN.judged` runs them, for one observation.

Every candidate is seen with the same features. In torch each row has a copy of them. Here the first layer of a network
reads them once, which halves the time of a decision on a CPU.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deploy_trt.export.graph import GraphSpec
from vla_rl.policies.best_of_n import BestOfN, best_index
from vla_rl.policies.flow_vla import FlowVLA
from vla_rl.policies.layers import EnsembleHead


class SharedHead(nn.Module):
    """An `EnsembleHead` with LayerNorm, for rows [N, I] whose first ``shared`` numbers are the same in all rows."""

    def __init__(self, head: EnsembleHead, shared: int) -> None:
        super().__init__()
        self.layers, self.out, self.shared = head.layers, head.out, shared

    def forward(self, rows: Tensor) -> Tensor:
        first: Any = self.layers[0]
        rows = _shared_product(rows, first.weight, self.shared) + first.bias
        for layer in self.layers[1:]:
            rows = layer(torch.relu(F.layer_norm(rows, rows.shape[-1:])))
        logits: Tensor = self.out(torch.relu(F.layer_norm(rows, rows.shape[-1:])))
        return logits


class SharedLinear(nn.Module):
    """A `torch.nn.Linear`, rows [1, N, I] -> [N, O], whose first ``shared`` numbers are the same in all rows."""

    def __init__(self, layer: Any, shared: int) -> None:
        super().__init__()
        self.weight, self.bias, self.shared = layer.weight, layer.bias, shared

    def forward(self, rows: Tensor) -> Tensor:
        product: Tensor = _shared_product(rows[0], self.weight.T, self.shared) + self.bias
        return product


def _shared_product(rows: Tensor, matrix: Tensor, shared: int) -> Tensor:
    common, own = rows.split([shared, rows.shape[1] - shared], 1)
    return common[:1] @ matrix[..., :shared, :] + own @ matrix[..., shared:, :]


class SelectionGraph(nn.Module):
    """Candidates and what they are judged by -> the best one, its index, and the values of all."""

    def __init__(self, model: FlowVLA, selector: BestOfN) -> None:
        super().__init__()
        assert selector.critic is not None
        self.critic, self.residual = copy.deepcopy((selector.critic, selector.residual))
        shared = self.critic.mean.numel() - 2 * model.spec.action_dim  # the other numbers of a row are the candidate's
        self.critic.add_module("head", SharedHead(self.critic.head, shared))
        if self.residual is not None:
            self.residual.net[0] = SharedLinear(self.residual.net[0], shared)
            self.residual.net.append(nn.Unflatten(0, (1, -1)))
        self._unregistered = model, BestOfN(self.critic, selector.config, self.residual)

    def forward(
        self, features: Tensor, tick: Tensor, noise: Tensor, drawn: Tensor, free: Tensor, done: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        model, selector = self._unregistered
        candidates, values = selector.judged(model, features, tick, noise, drawn, free, done)
        chosen = best_index(candidates, values)
        return candidates[0].index_select(0, chosen), chosen, values


def selection_spec(model: FlowVLA, selector: BestOfN) -> GraphSpec:
    """Return the graph, with inputs as of `deploy_trt.runtime.program.Program.select`."""
    graph, count = SelectionGraph(model, selector), selector.config.num_samples
    horizon, size = model.horizon, model.spec.action_dim
    inputs = {
        "features": torch.randn(1, graph.critic.mean.numel() - 1 - 2 * size),
        "tick": torch.ones(1),
        "noise": torch.randn(1, selector.noise_rows(horizon), size),
        "drawn": torch.randn(1, 1 + count, horizon, size),
        "free": torch.ones(horizon),
        "done": torch.zeros(1, dtype=torch.int64),
    }
    return GraphSpec("selection", graph, inputs, ["actions", "chosen", "values"])
