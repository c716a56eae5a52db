"""naive: swap to the new chunk when it arrives, at the index of the tick. Its seams jump; the measure for the others."""

from vla_rl.execution.strategies.base import ChunkStrategy


class Naive(ChunkStrategy):
    """Exactly the shared behaviour."""
