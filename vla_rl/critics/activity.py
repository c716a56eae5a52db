"""Plasticity: the fraction of a network's hidden units that are active (FAU, arXiv 2310.07418)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class ActivityMeter:
    """Counts the outputs of rectifiers that are above 0."""

    def __init__(self) -> None:
        self._active, self._seen = 0, 0

    def count(self, output: Tensor) -> None:
        self._active += int((output > 0).sum())
        self._seen += output.numel()

    @property
    def fraction(self) -> float:
        """Active outputs over all, averaged over units and samples; 1 before anything was seen."""
        return self._active / self._seen if self._seen else 1.0


@contextmanager
def active_units(network: nn.Module) -> Iterator[ActivityMeter]:
    """Watch the rectifiers of a network while it runs inside the block.

    Every `torch.nn.ReLU` counts, so a network is measured if its hidden units are rectified by modules.
    """
    meter = ActivityMeter()
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output: meter.count(output.detach()))
        for module in network.modules()
        if isinstance(module, nn.ReLU)
    ]
    try:
        with torch.no_grad():
            yield meter
    finally:
        for hook in hooks:
            hook.remove()
