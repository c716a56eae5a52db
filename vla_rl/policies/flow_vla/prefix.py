"""What the expert reads of an observation, computed once for all Euler steps of its chunks."""

from typing import NamedTuple

from torch import Tensor


class Prefix(NamedTuple):
    """What the step graph needs of an observation. A flat structure of tensors, exportable.

    Attributes:
        keys, values: One [B, heads, N, size] per expert layer.
        modulation: [B, layers, 4 width].
        mask: bool [B, N], True where there is a token.
    """

    keys: list[Tensor]
    values: list[Tensor]
    modulation: Tensor
    mask: Tensor

    def repeat(self, times: int) -> "Prefix":
        """Each observation ``times`` times in a row, for several draws per observation."""
        keys = [key.repeat_interleave(times, 0) for key in self.keys]
        values = [value.repeat_interleave(times, 0) for value in self.values]
        return Prefix(keys, values, self.modulation.repeat_interleave(times, 0), self.mask.repeat_interleave(times, 0))
