"""From a policy of any kind that has an exporter to its deployment folder."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy_trt.export.deployment import export_flow_vla
from deploy_trt.export.flow_vla import Precision
from deploy_trt.export.lerobot import export_lerobot
from deploy_trt.runtime.manifest import Manifest
from vla_rl.core.errors import UserError
from vla_rl.core.metadata import CORRECTOR_FOLDER, CRITIC_FOLDER
from vla_rl.core.types import Observation
from vla_rl.policies.corrector import ResidualCorrector
from vla_rl.policies.flow_vla import FlowVLA
from vla_rl.policies.lerobot_adapter.model import IMAGENET, LeRobotModel
from vla_rl.policies.trainable import TrainablePolicy


def export_policy(
    model: TrainablePolicy,
    folder: Path,
    meta: Mapping[str, Any],
    precision: Precision = "fp32",
    unrolled: bool = False,
    observations: Sequence[Observation] = (),
    policy_folder: Path | None = None,
) -> Manifest:
    """Export a policy. Arguments as of `export_flow_vla`; lerobot's know only three graphs in float32, are compared on
    random observations, and cannot choose among their draws.

    Raises:
        UserError: for a policy of a kind without an exporter, or options that its exporter does not have.
    """
    if isinstance(model, FlowVLA):
        return export_flow_vla(model, folder, meta, precision, unrolled, observations, policy_folder)
    if not isinstance(model, LeRobotModel):
        raise UserError(
            f"policies of kind {model.config.kind!r} have no exporter, only 'flow_vla' and 'lerobot' do; "
            "let it act with torch: vla-rl rollout"
        )
    if policy_folder is not None and (policy_folder / CRITIC_FOLDER).is_dir():
        raise UserError(
            f"{policy_folder} acts by a critic, and a policy of lerobot's can be exported alone only, to execute its "
            "first draw: --without-critic"
        )
    if precision != "fp32" or unrolled:
        raise UserError("a policy of lerobot's is exported in fp32 and not unrolled; leave --precision and --unrolled")
    pictures = dict.fromkeys(model.spec.cameras, (IMAGENET["mean"], IMAGENET["std"]))
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = None
        if model.tokenizer is not None:
            tokenizer = Path(scratch) / "tokenizer.json"
            model.tokenizer.backend_tokenizer.save(str(tokenizer))
        return export_lerobot(model.policy, folder, model.spec, model.statistics, pictures, tokenizer, meta)


def copy_head(policy: Path, deployment: Path) -> None:
    """Copy the residual head of a policy, which acts beside its deployment too. The head of an earlier policy goes."""
    shutil.rmtree(deployment / CORRECTOR_FOLDER, ignore_errors=True)
    if (policy / CORRECTOR_FOLDER).is_dir():
        ResidualCorrector.load(policy / CORRECTOR_FOLDER).save(deployment / CORRECTOR_FOLDER)
