"""From a policy of any kind that has an exporter to its deployment folder."""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deploy_trt.export.deployment import export_flow_vla
from deploy_trt.export.flow_vla import Precision
from deploy_trt.export.lerobot import export_lerobot
from deploy_trt.export.proxied import export_proxied
from deploy_trt.runtime.manifest import CRITIC_LEFT_OUT, Manifest
from vla_rl.core.capabilities import require
from vla_rl.core.metadata import CORRECTOR_FOLDER, CRITIC_FOLDER
from vla_rl.core.types import Observation
from vla_rl.policies.corrector import ResidualCorrector
from vla_rl.policies.folders import load_model
from vla_rl.policies.lerobot_adapter.model import IMAGENET, LeRobotModel


def export_policy(
    policy: Path,
    folder: Path,
    precision: Precision = "fp32",
    unrolled: bool = False,
    observations: Sequence[Observation] = (),
    with_critic: bool = True,
) -> Manifest:
    """Export the policy in a folder, with its critic, residual and residual head.

    Args:
        policy: Its folder.
        folder, precision, unrolled, observations: See `export_flow_vla`. Policies of lerobot are compared on random
            observations.
        with_critic: Export the critic, if there is one. Without it, the deployment executes its first draw.

    Raises:
        ConfigError: If there is no exporter for the policy, or the exporter lacks an option.

    Example:
        >>> export_policy(Path("runs/dot/policies/version_0001"), Path("deployments/dot")).precision
        'fp32'
    """
    model, meta = load_model(policy)
    asked = {
        "half_precision": precision != "fp32",
        "unrolled": unrolled,
        "selection": with_critic and (policy / CRITIC_FOLDER).is_dir(),
    }
    exporter = next((each for each in EXPORTERS if each.requires <= model.capabilities), EXPORTERS[0])
    require(
        f"the export of policy.kind={model.config.kind}",
        exporter.requires | {word for word, is_asked in asked.items() if is_asked},
        exporter.provides | model.capabilities,
        [("vla-rl rollout, which runs the policy in torch", frozenset())],
    )
    if not with_critic:
        meta = {**meta, "critic": CRITIC_LEFT_OUT}
    critic = policy if with_critic else None
    manifest = exporter.export(model, folder, meta, precision, unrolled, observations, critic)
    copy_head(policy, folder)
    return manifest


def copy_head(policy: Path, deployment: Path) -> None:
    """Copy the residual head of a policy, which acts beside its deployment too. The head of an earlier policy goes."""
    shutil.rmtree(deployment / CORRECTOR_FOLDER, ignore_errors=True)
    if (policy / CORRECTOR_FOLDER).is_dir():
        ResidualCorrector.load(policy / CORRECTOR_FOLDER).save(deployment / CORRECTOR_FOLDER)


def _export_lerobot(model: LeRobotModel, folder: Path, meta: Mapping[str, Any], *_: object) -> Manifest:
    pictures = dict.fromkeys(model.spec.cameras, (IMAGENET["mean"], IMAGENET["std"]))
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = None
        if model.tokenizer is not None:
            tokenizer = Path(scratch) / "tokenizer.json"
            model.tokenizer.backend_tokenizer.save(str(tokenizer))
        return export_lerobot(model.merged().policy, folder, model.spec, model.statistics, pictures, tokenizer, meta)


class Exporter(NamedTuple):
    """What writes the deployments of policies that provide the required capabilities.

    ``provides`` are the words of the options that it has. ``export`` takes the arguments of `export_flow_vla`.
    """

    requires: frozenset[str]
    provides: frozenset[str]
    export: Callable[..., Manifest]


EXPORTERS = (
    Exporter(frozenset({"flow_graphs"}), frozenset({"half_precision", "unrolled", "selection"}), export_flow_vla),
    Exporter(frozenset({"lerobot_graphs"}), frozenset(), _export_lerobot),
    Exporter(frozenset({"base"}), frozenset({"selection"}), export_proxied),
)
