"""What a figure was measured on: written beside every result."""

import os
import platform
from pathlib import Path
from typing import Any

from vla_rl.core.cache_keys import package_versions

_PACKAGES = ("vla-rl", "torch", "lerobot", "mujoco", "gymnasium", "numpy", "zarr", "onnxruntime")


def describe_machine() -> dict[str, Any]:
    """Processor, memory, accelerator and versions of the packages that matter."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "cpu": next(named, platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "versions": {name: found for name, found in package_versions(*_PACKAGES).items() if found},
    }
