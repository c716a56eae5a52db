"""Which readings are news. A camera that repeats its frame and a sensor that says NaN tell nothing new.

The watchdogs of the gate look at capture times; this keeps the capture time of the last reading that was good and new.
"""

import numpy as np

from vla_rl.core.types import Float32Array, Uint8Array

_STRIDE = 7  # a pixel in 49 is enough: sensor noise changes nearly all of them from frame to frame


class Freshness:
    """Keeps the last good reading of every stream, with its capture time.

    Args:
        detect_frozen: whether an image equal to the one before counts as old. For real cameras, whose noise never
            repeats; not for simulators, where a still scene does.
    """

    def __init__(self, detect_frozen: bool) -> None:
        self._detect_frozen = detect_frozen
        self._samples: dict[str, Uint8Array] = {}
        self._state: Float32Array | None = None
        self.captured_ns: dict[str, int] = {}

    def state(self, state: Float32Array, captured_ns: int) -> Float32Array:
        """The newest finite state, float32 [S]; ``captured_ns["state"]`` is its time.

        Without any finite state yet the state comes back as it is, with capture time 0: old for every watchdog.
        """
        if np.isfinite(state).all():
            self._state = state
            self.captured_ns["state"] = captured_ns
        else:
            self.captured_ns.setdefault("state", 0)
        return state if self._state is None else self._state

    def image(self, camera: str, image: Uint8Array, captured_ns: int) -> Uint8Array:
        """The image; ``captured_ns[camera]`` is the time since which it has looked like this."""
        sample = image[::_STRIDE, ::_STRIDE]
        known = self._samples.get(camera)
        if not self._detect_frozen or known is None or not np.array_equal(known, sample):
            self._samples[camera] = sample.copy()
            self.captured_ns[camera] = captured_ns
        return image
