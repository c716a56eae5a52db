"""What a figure was measured on: written beside every result."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

_PACKAGES = ("vla-rl", "torch", "lerobot", "mujoco", "gymnasium", "numpy", "zarr", "onnxruntime")


def describe_machine() -> dict[str, Any]:
    """Processor, memory, accelerator and versions of the packages that matter."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "gpu": _gpu_name(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES if _is_installed(name)},
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpu_name() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
