"""Collecting with a quantised policy while learning goes on in full precision: policy checkpoint -> policy that acts.

A process exports the built-in policy once; after that each new version is only new weights, quantised anew. Policies of
other kinds are exported at every version.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from deploy_trt.export.policies import export_policy
from deploy_trt.quantize import ORT_MODES, quantize_deployment
from deploy_trt.runtime import DeployedPolicy, Deployment, load_deployed
from deploy_trt.runtime.manifest import save_manifest, write_digested
from deploy_trt.runtime.refresh import read_checkpoint, read_chooser
from deploy_trt.runtime.weights import replaced
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.types import Observation
from vla_rl.policies.flow_vla import FlowVLA
from vla_rl.policies.folders import load_model

PRECISIONS = ("fp32", *ORT_MODES)


class ExplorationPolicies:
    """Makes acting policies in a low precision from checkpoints of one architecture. A context manager.

    Args:
        precision: ``fp32`` (ONNX Runtime, not quantised), ``int8-dynamic`` or ``int8-static``.
        observations: for the calibration of ``int8-static``.

    Raises:
        UserError: for an unknown precision, or no observations where they are needed.
    """

    def __init__(self, precision: str, observations: Sequence[Observation] = ()) -> None:
        if precision not in PRECISIONS:
            raise UserError(f"there is no precision {precision!r} to collect in.{did_you_mean(precision, PRECISIONS)}")
        if precision == "int8-static" and not observations:
            raise UserError("int8-static is calibrated on real observations; give some, or collect in int8-dynamic")
        self.precision, self._observations = precision, observations
        self._folder = tempfile.TemporaryDirectory(prefix="vla-rl-exploration-")
        self._exported = Path(self._folder.name) / "fp32"
        self._takes_weights = False  # of the next version, without another export

    def __enter__(self) -> "ExplorationPolicies":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was exported."""
        self._folder.cleanup()

    def load(self, checkpoint: Path) -> DeployedPolicy:
        """The policy of a checkpoint, quantised, on ONNX Runtime.

        Raises:
            CheckpointError: if it is damaged or of another architecture than the first one.
            UserError: if quantising makes another policy of it.
        """
        if self._takes_weights:
            self._put_in(checkpoint)
        else:
            model, meta = load_model(checkpoint)
            export_policy(model, self._exported, meta, policy_folder=checkpoint)
            self._takes_weights = isinstance(model, FlowVLA)
        folder = self._exported
        if self.precision != "fp32":
            folder = Path(self._folder.name) / self.precision
            # Whether a young policy survives quantising shows in its episodes, not in a threshold.
            quantize_deployment(self._exported, folder, self.precision, self._observations, check=False)
        policy = load_deployed(folder, require="ort-cpu")
        assert isinstance(policy, DeployedPolicy)
        return policy

    def _put_in(self, checkpoint: Path) -> None:
        """Other weights in the exported folder. Its probes keep the answers of the first ones."""
        deployment = Deployment.read(self._exported)
        version, tensors = read_checkpoint(checkpoint, deployment.manifest)
        assert deployment.weights is not None
        weights = write_digested(
            self._exported, "weights", ".safetensors", replaced(deployment.weights, tensors, str(checkpoint))
        )
        chooser = read_chooser(checkpoint, deployment.manifest)
        if chooser is not None:
            write_digested(self._exported, "critic", ".safetensors", chooser.content)
        manifest = replace(deployment.manifest, policy_version=version, weights=weights)
        save_manifest(self._exported, replace(manifest, chooser=chooser.info if chooser else None))
