"""vla-rl: robots that act in action chunks without waiting for their policy, and learn from every episode.

Importing this package loads nothing heavy: the computer on a robot runs ``core``, ``execution``, ``robot_io`` and
``deploy_trt.runtime`` without torch. If Gymnasium was imported before, the import registers our tasks there.
"""

import importlib
import os
import sys
from typing import Any

# torch's OpenMP reads this once, when it is loaded. By default a waiting thread spins for milliseconds. Beside a busy
# process each short wait of a gradient step then costs a time slice of the scheduler. A brief spin, a few microseconds,
# spares idle cores the sleep.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

if "gymnasium" in sys.modules:  # Gymnasium since 1.0 loads no entry points: `gymnasium.make` knows what was imported
    importlib.import_module("sim")


_PUBLIC = {
    "make_env": "vla_rl.acting.env",
    "load_episodes": "vla_rl.data.sources",
    "collect_demonstrations": "vla_rl.api",
    "FlowVLA": "vla_rl.policies.flow_vla",
    "load_policy": "vla_rl.acting.policy_folder",
    "train": "vla_rl.api",
    "evaluate": "vla_rl.api",
    "compare": "vla_rl.api",
    "rollout": "vla_rl.acting.rollout",
    "Practice": "vla_rl.training.run",
    "open_run": "vla_rl.training.run",
    "export": "vla_rl.api",
    "EpisodeStore": "vla_rl.data.store",
    "Subscriber": "vla_rl.core.protocols",
    "UserError": "vla_rl.core.errors",
}
"""Public name -> its module, which is imported on first use."""

__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, or read ``__version__`` of the installed package."""
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    if name != "__version__":
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; its public names are {', '.join(_PUBLIC)}"
        )
    from importlib.metadata import version

    return version("vla-rl")


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC, "__version__"]
