"""Collecting with the graphs that a robot's computer runs, while learning goes on in torch: policy checkpoint -> policy
that acts, quantised or as TensorRT engines.

A process exports the policy once; each new version is only new weights, put into the running graphs (`refresh`). What
the graphs cannot take is exported anew: a policy of another kind, or the first version that has a critic.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from deploy_trt.build import build_engines
from deploy_trt.export.policies import export_policy
from deploy_trt.quantize import ORT_MODES, quantize_deployment
from deploy_trt.runtime import DeployedPolicy, load_deployed
from deploy_trt.runtime.probe import BackendName, probe
from deploy_trt.runtime.refresh import refresh
from vla_rl.core.errors import CheckpointError, UserError, did_you_mean
from vla_rl.core.types import Observation

PRECISIONS = ("fp32", *ORT_MODES, "trt")


class ExplorationPolicies:
    """Makes acting policies from checkpoints of one policy as it learns. A context manager.

    Args:
        precision: ``fp32`` (ONNX Runtime, not quantised), ``int8-dynamic``, ``int8-static``, or ``trt``: TensorRT on
            this machine's GPU, whose engines are built once and refitted with every version.
        observations: for the calibration of ``int8-static``.

    Raises:
        UserError: for an unknown precision, no observations where they are needed, or no TensorRT.
    """

    def __init__(self, precision: str, observations: Sequence[Observation] = ()) -> None:
        if precision not in PRECISIONS:
            raise UserError(f"there is no precision {precision!r} to collect in.{did_you_mean(precision, PRECISIONS)}")
        if precision == "int8-static" and not observations:
            raise UserError("int8-static is calibrated on real observations; give some, or collect in int8-dynamic")
        self.precision, self._observations = precision, observations
        self._backend: BackendName = "trt" if precision == "trt" else "ort-cpu"
        if precision == "trt" and not (found := probe("trt")).works:
            raise UserError(f"TensorRT does not work here: {found.reason}; collect in another precision")
        self._folder = tempfile.TemporaryDirectory(prefix="vla-rl-exploration-")
        self._exported: DeployedPolicy | None = None
        """The newest version, not quantised."""

    def __enter__(self) -> "ExplorationPolicies":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was exported."""
        self._folder.cleanup()

    def load(self, checkpoint: Path) -> DeployedPolicy:
        """Return the policy of a checkpoint in its precision. It acts until the next one is loaded.

        Raises:
            CheckpointError: if it is damaged.
            UserError: if quantising makes another policy of it.
        """
        newest = self._exported = self._refreshed(checkpoint) or self._export(checkpoint)
        if self.precision not in ORT_MODES:
            return newest
        folder = Path(self._folder.name) / self.precision
        # Whether a young policy survives quantising shows in its episodes, not in a threshold.
        quantize_deployment(newest.folder, folder, self.precision, self._observations, check=False)
        return load_deployed(folder, require=self._backend)

    def _refreshed(self, checkpoint: Path) -> DeployedPolicy | None:
        """Return the policy that acts, with the weights of a checkpoint; None if its graphs cannot take them."""
        if self._exported is None:
            return None
        try:
            refresh(self._exported, checkpoint)
        except CheckpointError:
            return None
        return self._exported

    def _export(self, checkpoint: Path) -> DeployedPolicy:
        folder = Path(self._folder.name) / "exported"
        export_policy(checkpoint, folder)
        if self._backend == "trt":
            build_engines(folder, "trt")
        return load_deployed(folder, require=self._backend)
