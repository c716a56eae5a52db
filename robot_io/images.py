"""Pictures of a simulation, drawn on access."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import override

from vla_rl.core.errors import UserError
from vla_rl.core.types import Uint8Array


class LazyImages(Mapping[str, Uint8Array]):
    """The pictures of one moment of a simulation, drawn when the first of them is asked for.

    ``draw`` returns those of all cameras at the present moment, uint8 [H, W, 3]. ``drawn``: the pictures have been
    read.
    """

    def __init__(self, cameras: Sequence[str], draw: Callable[[], Mapping[str, Uint8Array]]) -> None:
        self._cameras, self._draw = cameras, draw
        self._images: Mapping[str, Uint8Array] | None = None
        self._over = False

    @property
    def drawn(self) -> bool:
        """Whether there are pictures yet."""
        return self._images is not None

    def end(self) -> None:
        """End the moment: pictures that were not drawn are lost."""
        self._over = True

    def draw(self) -> Mapping[str, Uint8Array]:
        """Return the pictures; UserError if the moment is over and they were not read."""
        if self._images is None:
            if self._over:
                raise UserError(
                    "the pictures of a past moment were not drawn. Read them before the next command, or set "
                    "draws_always"
                )
            self._images = self._draw()
        return self._images

    @override
    def __getitem__(self, camera: str) -> Uint8Array:
        return self.draw()[camera]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._cameras)

    @override
    def __len__(self) -> int:
        return len(self._cameras)
