"""Which readings are news. A repeated frame, a picture of one pixel and a NaN reading are not new.

The watchdogs of the gate look at capture times; this keeps the capture time of the last reading that was good and new.
"""

import numpy as np

from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array, Uint8Array

_SMALLEST = 2  # pixels each way, by default
_SAME_CUT = 0.02  # by how much the ratio of height and width may differ between two pictures of one camera
_WIDEST = 2.0  # how far a picture may be stretched to the policy's: more than that is no camera that it was trained on
_STRIDE = 7  # a pixel in 49 is enough: sensor noise changes nearly all of them from frame to frame


class StalenessFilter:
    """Keeps the last good reading of every stream, with its capture time.

    Args:
        detect_frozen: whether an image equal to the one before counts as old. For real cameras, whose noise never
            repeats; not for simulators, where a still scene does.
        size: [height, width] of the policy's pictures; a smaller one shows less than it was trained on.
    """

    def __init__(self, detect_frozen: bool, size: tuple[int, int] | None = None) -> None:
        self._detect_frozen = detect_frozen
        self._size = size
        self._first: dict[str, tuple[int, int]] = {}
        self._samples: dict[str, Uint8Array] = {}
        self._state: Float32Array | None = None
        self.captured_ns: dict[str, int] = {}

    def state(self, state: Float32Array, captured_ns: int) -> Float32Array:
        """Return the newest finite state, float32 [S]; ``captured_ns["state"]`` is its time.

        Without any finite state yet the state comes back unchanged, with capture time 0: old for every watchdog.
        """
        if np.isfinite(state).all():
            self._state = state
            self.captured_ns["state"] = captured_ns
        else:
            self.captured_ns.setdefault("state", 0)
        return state if self._state is None else self._state

    def image(self, camera: str, image: Uint8Array, captured_ns: int) -> Uint8Array:
        """Return the image; ``captured_ns[camera]`` is the time since which it has looked like this.

        Raises:
            UserError: for a picture that is smaller than the policy's, or cut in another way than the first one.
        """
        self._check_size(camera, *image.shape[:2])
        sample = image[::_STRIDE, ::_STRIDE]
        known = self._samples.get(camera)
        if not self._detect_frozen or known is None or not np.array_equal(known, sample):
            self._samples[camera] = sample.copy()
            self.captured_ns[camera] = captured_ns
        return image

    def _check_size(self, camera: str, height: int, width: int) -> None:
        gives = f"camera {camera!r} gives pictures of {height} x {width}"
        needed = self._size or (_SMALLEST, _SMALLEST)
        if height < needed[0] or width < needed[1]:
            raise UserError(f"{gives}; at least {needed[0]} x {needed[1]} pixels are needed")
        first = self._first.get(camera, (height, width))
        if first != (height, width) and abs(width / height * first[0] / first[1] - 1) > _SAME_CUT:
            raise UserError(f"{gives}; its first one was {first[0]} x {first[1]}, of another shape")
        stretch = width / height * needed[0] / needed[1]
        if self._size is not None and not 1 / _WIDEST <= stretch <= _WIDEST:
            raise UserError(f"{gives}, stretched to the policy's {needed[0]} x {needed[1]} out of all proportion")
        self._first.setdefault(camera, (height, width))
