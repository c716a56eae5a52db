"""A deployment folder -> a policy on the best backend that works here, and one line on what is missing."""

import io
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deploy_trt.runtime.backend import Backend
from deploy_trt.runtime.manifest import Manifest, load_manifest, read_verified
from deploy_trt.runtime.ort import OrtBackend
from deploy_trt.runtime.policy import DeployedPolicy
from deploy_trt.runtime.probe import ORDER, BackendName, probe
from deploy_trt.runtime.program import Program
from deploy_trt.runtime.weights import Array
from vla_rl.core.errors import CheckpointError, UserError, did_you_mean
from vla_rl.core.protocols import Policy

logger = logging.getLogger(__name__)

COSTS = {
    "trt": "the fastest backend on an NVIDIA GPU",
    "trt-rtx": "the fastest backend on a GeForce RTX GPU",
    "ort-cuda": "the GPU, without TensorRT's kernels",
    "ort-cpu": "the CPU: fast for small policies, too slow for large ones",
    "torch": "the policy as it was trained, several times slower and with torch on the robot",
}


@dataclass(frozen=True)
class Deployment:
    """A deployment folder in memory.

    Attributes:
        folder: where it lies.
        manifest: what it says.
        graphs: name -> ONNX without weights.
        weights: content of the safetensors file, or None.
    """

    folder: Path
    manifest: Manifest
    graphs: dict[str, bytes]
    weights: bytes | None

    @classmethod
    def read(cls, folder: Path) -> "Deployment":
        """Read and verify all files.

        Raises:
            CheckpointError: if one is missing or damaged.
        """
        manifest = load_manifest(folder)
        graphs = {name: read_verified(folder, graph) for name, graph in manifest.graphs.items()}
        weights = read_verified(folder, manifest.weights) if manifest.weights else None
        return cls(folder, manifest, graphs, weights)

    def probes(self) -> dict[str, Array]:
        """Recorded inputs and outputs: name -> array [K, ...]."""
        content = read_verified(self.folder, self.manifest.probes)
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except (ValueError, OSError) as error:
            raise CheckpointError(f"{self.folder / self.manifest.probes.file} is damaged: {error}") from error

    def backend(self, name: BackendName, threads: int = 1) -> Backend:
        """The graphs on a backend.

        Raises:
            UserError: if it cannot run them: an engine is not built, a provider is missing.
        """
        if name in ("trt", "trt-rtx"):
            from deploy_trt.runtime.trt import TrtBackend

            return TrtBackend.open(name, self.folder, self.manifest)
        return OrtBackend(name, self.graphs, self.weights, threads)


def load_deployed(
    folder: Path,
    require: BackendName | None = None,
    threads: int = 1,
    torch_policy: Callable[[], Policy] | None = None,
) -> Policy:
    """The policy in a deployment folder, ready to act.

    Args:
        folder: as `deploy_trt.export.save_deployment` wrote it.
        require: use this backend and no other; None: the first of TensorRT, TensorRT-RTX, ONNX Runtime on CUDA, on the
            CPU, and torch that works.
        threads: of one inference on the CPU.
        torch_policy: makes the policy in torch, for where nothing else works; a robot computer has none.

    Returns:
        a `DeployedPolicy`, or what ``torch_policy`` made.

    Raises:
        UserError: if the backend that is required does not work, or none does, with the reason of each.
        CheckpointError: if the folder is damaged.
    """
    if require is not None and require not in ORDER:
        raise UserError(f"there is no backend {require!r}.{did_you_mean(require, ORDER)}")
    deployment = Deployment.read(folder)
    missing: dict[str, str] = {}
    for name in ORDER if require is None else (require,):
        found = probe(name) if name != "torch" or torch_policy else None
        if found is None:
            missing[name] = "no checkpoint was given"
        elif not found.works:
            missing[name] = found.reason
        else:
            try:
                policy = _open(deployment, name, threads, torch_policy)
            except UserError as error:
                missing[name] = str(error)
                continue
            logger.info(_sentence(name, missing))
            return policy
    reasons = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
    raise UserError(f"no backend runs {folder}: {reasons}")


def _open(deployment: Deployment, name: BackendName, threads: int, torch_policy: Callable[[], Policy] | None) -> Policy:
    if name == "torch":
        assert torch_policy is not None
        return torch_policy()
    return DeployedPolicy(Program(deployment.manifest, deployment.backend(name, threads)), deployment.folder)


def _sentence(chosen: str, missing: dict[str, str]) -> str:
    """One line: what runs, what is missing, and what that costs."""
    if not missing:
        return f"policy on {chosen}"
    best = next(iter(missing))
    others = "; ".join(f"no {name} ({reason})" for name, reason in missing.items())
    return f"policy on {chosen}, not on {best} ({COSTS[best]}): {others}"
