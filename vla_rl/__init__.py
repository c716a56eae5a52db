"""vla-rl: robots that act in action chunks without waiting for their policy, and learn from every episode.

This package imports nothing heavy: the computer on a robot runs ``core``, ``execution``, ``robot_io`` and
``deploy_trt.runtime`` without torch. Imported after Gymnasium, it registers its tasks there.
"""

import os
import sys
from typing import Any

# torch's OpenMP reads this once, when it is loaded. By default a waiting thread spins for milliseconds: beside a busy
# process each of the many short waits of a gradient step then costs a time slice of the scheduler. A brief spin, a few
# microseconds, spares idle cores the sleep.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

if "gymnasium" in sys.modules:  # Gymnasium since 1.0 loads no entry points: `gymnasium.make` knows what was imported
    import sim  # noqa: F401


def __getattr__(name: str) -> Any:
    """``__version__`` of the installed package; read only when asked for, since the search takes milliseconds."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("vla-rl")
