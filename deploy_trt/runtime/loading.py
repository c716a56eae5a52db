"""A deployment folder -> a policy on the best backend that works here, and one line on what is missing."""

import logging
from pathlib import Path

import numpy as np

from deploy_trt.runtime.backend import Backend
from deploy_trt.runtime.folder import Deployment
from deploy_trt.runtime.ladder import TOLERANCES, difference
from deploy_trt.runtime.manifest import BASE_FOLDER, FileInfo, read_verified
from deploy_trt.runtime.ort import OrtBackend
from deploy_trt.runtime.policy import DeployedPolicy
from deploy_trt.runtime.probe import ORDER, BackendName, probe
from deploy_trt.runtime.program import Program, probe_actions, probe_selections
from vla_rl.core.errors import CheckpointError, UserError, did_you_mean, one_line

logger = logging.getLogger(__name__)

_LOOSEST = TOLERANCES["int8"]  # of any precision
COSTS = {
    "trt": "the fastest backend on an NVIDIA GPU",
    "trt-rtx": "the fastest backend on a GeForce RTX GPU",
    "ort-cuda": "the GPU, without TensorRT's kernels",
    "ort-cpu": "the CPU: fast for small policies, too slow for large ones",
}


def check_name(backend: str) -> None:
    """Raise UserError unless there is a backend of this name."""
    if backend not in ORDER:
        raise UserError(f"there is no backend {backend!r}.{did_you_mean(backend, ORDER)}")


def open_backend(deployment: Deployment, name: BackendName) -> Backend:
    """Return the graphs of a deployment on a backend.

    Raises:
        UserError: if it cannot run them: an engine is not built, a provider or a library is missing.

    Example:
        >>> open_backend(Deployment.read(Path("deployments/flow")), "ort-cpu").name
        'ort-cpu'
    """
    check_name(name)
    if name in ("trt", "trt-rtx"):
        from deploy_trt.runtime.trt import TrtBackend

        try:
            return TrtBackend.open(name, deployment.folder, deployment.manifest)
        except ImportError as error:
            raise UserError(f"{name} needs {error.name}, which is not installed; see docs/deployment.md") from error
    return OrtBackend(name, deployment.graphs, deployment.weights)


def load_deployed(folder: Path, require: BackendName | None = None) -> DeployedPolicy:
    """Return the policy in a deployment folder, ready to act.

    Args:
        folder: as `deploy_trt.export.save_deployment` wrote it.
        require: use this backend and no other; None: the first of TensorRT, TensorRT-RTX, ONNX Runtime on CUDA and on
            the CPU that works.

    Raises:
        UserError: if the backend that is required does not work, or none does, with the reason of each.
        CheckpointError: if the folder is damaged.

    Example:
        >>> load_deployed(Path("deployments/flow"), require="ort-cpu").version
        3
    """
    if require is not None:
        check_name(require)
    deployment, base = Deployment.read(folder), None
    if (improved := deployment.manifest.base) and improved.name == BASE_FOLDER:
        read_verified(folder / BASE_FOLDER, FileInfo("manifest.json", improved.digest))
        base = load_deployed(folder / BASE_FOLDER, require)
    missing: dict[str, str] = {}
    failed: dict[str, str] = {}  # works here, and could not open the folder
    for name in ORDER if require is None else (require,):
        if not (found := probe(name)).works:
            missing[name] = found.reason
            continue
        try:
            program = deployment.program(open_backend(deployment, name))
            _try(deployment, program)
        except UserError as error:
            failed[name] = str(error)
            continue
        logger.info(_sentence(name, {**missing, **failed}))
        return DeployedPolicy(program, folder, base)
    reasons = "; ".join(f"{name}: {reason}" for name, reason in {**failed, **missing}.items())
    raise UserError(f"no backend runs {folder}: {reasons}")


def _try(deployment: Deployment, program: Program) -> None:
    """Plan one recorded chunk before anything acts. It has to be torch's, unless the weights have been refreshed or
    quantised since, which compares them by itself; then it has to be numbers.

    Raises:
        CheckpointError: if it is not, or cannot be planned.
    """
    try:
        probes = {name: rows[:1] for name, rows in deployment.probes().items()}
        planned = probe_actions(program, probes)
        weights = deployment.manifest.weights
        as_exported = weights is not None and list(probes["weights"]) == [weights.sha256]
        selected = [selection.actions for selection in probe_selections(program, probes)]
        passed = all(np.isfinite(actions).all() for actions in (*planned, *selected))
        found = difference(planned, list(probes["actions"])) if as_exported else None
    except CheckpointError:
        raise
    except Exception as error:  # graphs that do not fit the manifest fail in any part of the backend
        raise CheckpointError(f"{deployment.folder} cannot plan a recorded chunk: {one_line(error)}") from error
    if not passed or (found is not None and not found.within(_LOOSEST)):
        raise CheckpointError(f"{deployment.folder} plans another chunk than was recorded ({found}); export anew")


def _sentence(chosen: str, missing: dict[str, str]) -> str:
    """Return one line: what runs, what is missing, and what that costs."""
    if not missing:
        return f"policy on {chosen}"
    best = next(iter(missing))
    others = "; ".join(f"no {name} ({reason})" for name, reason in missing.items())
    return f"policy on {chosen}, not on {best} ({COSTS[best]}): {others}"
