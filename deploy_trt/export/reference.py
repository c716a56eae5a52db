"""Torch modules behind the runtime's backend: the same sampling loop over what the graphs were made from."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from deploy_trt.export.graph import GraphSpec
from deploy_trt.runtime.backend import Backend, Value
from deploy_trt.runtime.weights import Array


class ModuleBackend(Backend):
    """Runs the modules of graphs."""

    def __init__(self, specs: Sequence[GraphSpec]) -> None:
        self.name = "torch"
        self._specs = {spec.name: spec for spec in specs}

    def put(self, array: Array) -> Value:
        return torch.from_numpy(np.array(array))

    def get(self, value: Value) -> Array:
        array: Array = value.numpy()
        return array

    @torch.no_grad()
    def run(self, graph: str, feeds: Mapping[str, Value]) -> dict[str, Value]:
        spec = self._specs[graph]
        outputs = spec.module(*(feeds[name] for name in spec.inputs))
        return dict(zip(spec.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
