"""A finished run as a crash would have left it."""

import shutil
from pathlib import Path


def interrupted(run: Path, copy: Path) -> Path:
    """A copy of a run that was killed after its last checkpoint but one, before its last policy."""
    shutil.copytree(run, copy)
    shutil.rmtree(sorted(copy.glob("checkpoints/step_*"))[-1])
    shutil.rmtree(sorted(copy.glob("policies/version_*"))[-1])
    return copy


def weights(run: Path, version: int) -> bytes:
    """The weights of a policy version, as they are on disk."""
    (file,) = run.glob(f"policies/version_{version:04d}/*model*.safetensors")
    return file.read_bytes()
