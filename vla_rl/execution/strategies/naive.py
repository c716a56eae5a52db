"""naive: swap to the new chunk on arrival, at the index of the tick. Its seams jump; the measure of the others."""

from typing import ClassVar

from vla_rl.execution.strategies.base import ChunkStrategy


class Naive(ChunkStrategy):
    """The shared behavior. A residual moves a chunk as it enters."""

    preference: ClassVar[int] = 1
    refines = True
