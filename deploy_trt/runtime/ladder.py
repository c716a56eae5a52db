"""When two programs count as the same policy. Cosine is not enough: graphs with old weights in them passed .999."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deploy_trt.runtime.weights import Array


@dataclass(frozen=True)
class Tolerance:
    """What a precision may cost, on normalized actions.

    Attributes:
        cosine: of a chunk, at least.
        mean_abs, max_abs: absolute difference, at most; ``max_abs`` 0: not asked.
        lost_value: Largest regret of the selection: difference of the torch critic's scores of its own choice and of
            the selected candidate. In parts of the candidates' spread, mean over the probes.
    """

    cosine: float
    mean_abs: float
    max_abs: float = 0.0
    lost_value: float = 0.2


TOLERANCES: dict[str, Tolerance] = {
    "fp32": Tolerance(0.9999, 1e-4, 1e-4, 1e-3),
    "fp16": Tolerance(0.99, 0.05),
    "bf16": Tolerance(0.99, 0.05),
    "fp8": Tolerance(0.99, 0.05),
    "int8": Tolerance(0.98, 0.1),
    "int4": Tolerance(0.98, 0.1),
    "int8-dynamic": Tolerance(0.98, 0.1),
    "int8-static": Tolerance(0.98, 0.1),
}


def selection_limit(backend: str) -> float:
    """Largest difference of graph ``selection``, which is in float32, to torch; GPUs round its products to TF32."""
    return 1e-5 if backend == "ort-cpu" else 1e-2


@dataclass(frozen=True)
class Difference:
    """How far two sets of chunks are apart: the smallest cosine of a chunk, mean and largest absolute difference."""

    cosine: float
    mean_abs: float
    max_abs: float

    def within(self, tolerance: Tolerance) -> bool:
        """Return whether it is small enough; not a number never is."""
        return bool(
            self.cosine >= tolerance.cosine
            and self.mean_abs <= tolerance.mean_abs
            and (not tolerance.max_abs or self.max_abs <= tolerance.max_abs)
        )

    def __str__(self) -> str:
        return f"max-abs {self.max_abs:.2g}, mean-abs {self.mean_abs:.2g}, cosine {self.cosine:.5f}"


def difference(ours: Sequence[Array], theirs: Sequence[Array]) -> Difference:
    """Compare arrays, such as chunks [rows, W], pairwise."""
    cosines: list[float] = []
    gaps: list[Array] = []
    for one, other in zip(ours, theirs, strict=True):
        a, b = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
        norm = np.linalg.norm(a) * np.linalg.norm(b)
        cosines.append(float(a @ b / norm) if norm > 0 else float(np.array_equal(a, b)))
        gaps.append(np.abs(a - b))
    every = np.concatenate(gaps)
    return Difference(min(cosines), float(every.mean()), float(every.max()))
