"""A mailbox with one slot between two processes: the latest message wins, and neither side ever waits for the other.

One process writes, one reads. Messages are fixed sets of numpy arrays in shared memory; nothing is pickled. Two copies
of the message take turns. The writer fills the unpublished one, then counts the sequence number up. The reader copies
the published one and checks that the number has not changed meanwhile. A writer that is killed half-way leaves the last
message as it was.
"""

import threading
from collections.abc import Mapping
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Fields = Mapping[str, tuple[tuple[int, ...], DTypeLike]]
Arrays = dict[str, NDArray[Any]]

_ALIGNMENT = 64  # one cache line, so that the sequence number shares none with a message
_ATTEMPTS = 3


class Mailbox:
    """A mailbox in shared memory with one writer and one reader.

    Args:
        fields: name -> (shape, dtype) of the message's arrays; the same on both sides.
        name: of an existing mailbox to attach to; None makes a new one, which this side removes on `close`.

    Attributes:
        draft: the arrays of the next message, for the writer to fill before `publish`. Their content is undefined.
    """

    def __init__(self, fields: Fields, name: str | None = None) -> None:
        self._fields = dict(fields)
        self._offsets, size = _lay_out(self._fields)
        self._owner = name is None
        self._memory = SharedMemory(name, create=self._owner, size=_ALIGNMENT + 2 * size)
        buffer: NDArray[np.uint8] = np.ndarray(_ALIGNMENT + 2 * size, np.uint8, self._memory.buf)
        self._sequence = buffer[:8].view(np.uint64)
        self._slots = [buffer[_ALIGNMENT + index * size :][:size] for index in range(2)]
        self._copy = np.zeros(size, np.uint8)
        self._drafts = [self._arrays(slot) for slot in self._slots]
        self._message = self._arrays(self._copy)
        self._seen = int(self._sequence[0])
        self._barrier = threading.Lock()
        self.draft = self._drafts[(self._seen + 1) & 1]

    @property
    def name(self) -> str:
        """What the other side needs to attach."""
        return self._memory.name

    def publish(self) -> None:
        """Make the draft the newest message."""
        sequence = int(self._sequence[0]) + 1
        self._order_memory()
        self._sequence[0] = sequence
        self._order_memory()
        self.draft = self._drafts[(sequence + 1) & 1]

    def take(self) -> Arrays | None:
        """Return the newest message if it was not taken before; its arrays are valid until the next call.

        Also None when the writer was faster than the copy several times in a row; the next call will do.
        """
        for _ in range(_ATTEMPTS):
            sequence = int(self._sequence[0])
            if sequence == self._seen:
                return None
            self._order_memory()
            np.copyto(self._copy, self._slots[sequence & 1])
            self._order_memory()
            if int(self._sequence[0]) == sequence:
                self._seen = sequence
                return self._message
        return None

    def close(self) -> None:
        """Detach; the side that made the mailbox removes it."""
        del self._sequence, self._slots, self._drafts, self.draft  # views keep the memory mapped
        self._memory.close()
        if self._owner:
            self._memory.unlink()

    def _arrays(self, slot: NDArray[np.uint8]) -> Arrays:
        arrays: Arrays = {}
        for field, (shape, dtype) in self._fields.items():
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            arrays[field] = slot[self._offsets[field] :][:size].view(dtype).reshape(shape)
        return arrays

    def _order_memory(self) -> None:
        # Taking a lock is a full memory barrier; processors with weak ordering (ARM) need one here.
        with self._barrier:
            pass


def _lay_out(fields: Fields) -> tuple[dict[str, int], int]:
    offsets, size = {}, 0
    for field, (shape, dtype) in fields.items():
        offsets[field] = size
        size += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
    return offsets, size
