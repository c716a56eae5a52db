"""New weights in a running policy: put in by name, optimized, verified against the unoptimized graph, then swapped
between two chunks. Whatever goes wrong, the weights that act go on acting.

Threading law: `refresh` may run in any thread; only its last line touches the running policy.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from deploy_trt.runtime.backend import Backend
from deploy_trt.runtime.folder import Deployment
from deploy_trt.runtime.ladder import TOLERANCES, Difference, difference, selection_limit
from deploy_trt.runtime.manifest import (
    CRITIC_LEFT_OUT,
    Manifest,
    SelectionInfo,
    normalization_of,
    remove_stale,
    save_manifest,
    write_digested,
)
from deploy_trt.runtime.ort import OrtBackend
from deploy_trt.runtime.policy import DeployedPolicy
from deploy_trt.runtime.program import Program, probe_actions, probe_selections, selection_gap
from deploy_trt.runtime.weights import Array, layout, pack, replaced, unpack
from vla_rl.core.config import config_from_dict
from vla_rl.core.errors import CheckpointError, ConfigError, UserError, one_line
from vla_rl.core.json_files import read_json
from vla_rl.core.metadata import (
    CORRECTOR_FOLDER,
    CRITIC_FORMAT,
    CRITIC_VERSION,
    POLICY_FORMAT,
    POLICY_VERSION,
    RESIDUAL,
    critic_of,
    read_weights,
)
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec, successor_difference
from vla_rl.core.validation import check_version
from vla_rl.core.version_watcher import VersionWatcher

logger = logging.getLogger(__name__)

_BACKGROUND_NICENESS = 10


@dataclass(frozen=True)
class Refreshed:
    """How new weights came in: their version, and the time from the checkpoint on disk to the swap.

    ``max_abs`` is the largest difference to the graphs executed node by node, on the probes, normalized units.
    """

    version: int
    max_abs: float
    wall_s: float


def refresh(policy: DeployedPolicy, checkpoint: Path, keep: bool = True) -> Refreshed:
    """Put the weights of a newer checkpoint of the same policy into a running one, which acts on.

    Architecture and statistics must be the deployed ones. With ``keep`` the weights are written into the deployment
    folder too, so that a restart finds them.

    Raises:
        CheckpointError: If the checkpoint does not fit, or has another residual head.
        UserError: If the new graphs do not do what the weights say. In both cases the running policy is untouched.
    """
    started_s = time.perf_counter()
    old = policy.program
    deployment = Deployment.read(policy.folder)
    if deployment.weights is None:
        raise UserError(f"{policy.folder} has its weights inside quantised graphs; quantise the new checkpoint anew")
    version, tensors = read_checkpoint(checkpoint, deployment.manifest)
    check_head(checkpoint, policy.folder)
    tensors |= selection_weights(checkpoint, deployment.manifest)
    content = replaced(deployment.weights, tensors, str(checkpoint))
    manifest = replace(deployment.manifest, policy_version=version)
    candidate = Program(manifest, backend_with(old.backend, replace(deployment, weights=content)))
    exact = pack({name: tensors[name] for name in layout(content)}) if deployment.manifest.reference else content
    found = check_program(candidate, reference_program(deployment, exact), deployment.probes())
    if keep:
        weights = write_digested(policy.folder, "weights", ".safetensors", content)
        manifest = candidate.manifest = replace(manifest, weights=weights)
        save_manifest(policy.folder, manifest)
        remove_stale(policy.folder, manifest)
    policy.swap(candidate)
    return Refreshed(version, found.max_abs, time.perf_counter() - started_s)


def check_program(program: Program, reference: Program, probes: Mapping[str, Array]) -> Difference:
    """Compare a program with the one that is known to be right, on the probes; UserError if they differ by too much."""
    found = difference(probe_actions(program, probes), probe_actions(reference, probes))
    ours, theirs = (probe_selections(one, probes, recorded=True) for one in (program, reference))
    gap, limit = selection_gap(ours, theirs, program.units), selection_limit(program.backend.name)
    if not gap <= limit:
        raise UserError(
            f"the new critic selects otherwise on {program.backend.name} than torch: by {gap:.2g}, allowed is "
            f"{limit}; the old weights go on acting"
        )
    precision = program.manifest.precision
    if not found.within(TOLERANCES[precision]):
        raise UserError(
            f"the new weights act otherwise on {program.backend.name} than in torch: {found}; allowed in "
            f"{precision} is {TOLERANCES[precision]}. The old weights go on acting"
        )
    return found


def reference_program(deployment: Deployment, weights: bytes) -> Program:
    """Return the float32 graphs as they were exported, executed node by node, with weights in float32."""
    backend = OrtBackend("ort-cpu", deployment.reference, weights, optimize=False)
    manifest = deployment.manifest
    return Program(replace(manifest, graphs=manifest.reference or manifest.graphs), backend)


def read_checkpoint(checkpoint: Path, manifest: Manifest) -> tuple[int, dict[str, Array]]:
    """Return the version and the weights of a policy checkpoint, without torch.

    Raises:
        CheckpointError: if it is damaged, or of another architecture, robot or normalization than the manifest's.
    """
    try:
        description, content = read_weights(checkpoint, POLICY_FORMAT, POLICY_VERSION)
        config, spec = description["config"], config_from_dict(PolicySpec, description["spec"])
        version = check_version(description["meta"].get("policy_version", 0))
        normalization = normalization_of(Statistics.from_dict(description["statistics"]))
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise CheckpointError(f"{checkpoint} is no policy checkpoint: {error!r}") from error
    deployed = dict(manifest.source.get("config", {}))
    for name in sorted(deployed.keys() | config.keys()):
        # A backbone's folder moves with its checkpoint.
        if name != "backbone" and deployed.get(name) != config.get(name):
            raise CheckpointError(f"{checkpoint} has another {name} than the deployed policy; export it anew")
    if differs := successor_difference(spec, manifest.spec):
        raise CheckpointError(
            f"{checkpoint} has the {differs.name} {differs.found}, the deployed policy {differs.expected}; export it "
            "anew"
        )
    for name, found in normalization.items():
        if found != getattr(manifest, name):
            raise CheckpointError(
                f"{checkpoint} has another normalization of the {name} than the deployed policy; export it anew"
            )
    return version, unpack(content)


def backend_with(running: Backend, deployment: Deployment) -> Backend:
    """Return a second backend of the same kind with other weights; the running one is not touched."""
    if isinstance(running, OrtBackend):
        return running.with_weights(deployment.graphs, deployment.weights)
    from deploy_trt.runtime.trt import TrtBackend

    assert isinstance(running, TrtBackend)
    return running.refitted(deployment)


def selection_weights(checkpoint: Path, manifest: Manifest) -> dict[str, Array]:
    """Return the weights of graph ``selection`` in a policy checkpoint; none if the deployed policy has no such graph.

    Raises:
        CheckpointError: if the critic is damaged, or the graph was exported with other settings.
    """
    if manifest.source.get("meta", {}).get("critic") == CRITIC_LEFT_OUT:
        return {}
    found, weights = read_critic(checkpoint) or (None, {})
    deployed = manifest.selection
    counts = [0 if info is None else info.num_samples for info in (found, deployed)]
    if counts[0] != counts[1]:
        raise CheckpointError(
            f"{checkpoint} chooses among {counts[0]} draws, the deployed policy among {counts[1]}; export it anew"
        )
    ours, theirs = ({} if info is None else info.settings for info in (found, deployed))
    for name in theirs:
        if ours[name] != theirs[name]:
            differs = f"{name} {ours[name]}, the deployed policy with {theirs[name]}"
            raise CheckpointError(f"{checkpoint} chooses with {differs}; export it anew")
    return weights


def read_critic(policy: Path) -> tuple[SelectionInfo, dict[str, Array]] | None:
    """Return critic and residual in a policy's folder: their part of a manifest, and the weights by their names in
    graph ``selection``. None: the policy has no critic.

    Raises:
        CheckpointError: if it is damaged or has gone.
        UserError: if there is a residual and no critic.
    """
    folder = critic_of(policy)
    if folder is None:
        return None
    about, content = read_weights(folder, CRITIC_FORMAT, CRITIC_VERSION)
    if about.get("config") is None:
        raise UserError(
            f"{folder} holds a residual without a critic, which acts in torch only; export the policy without it: "
            "--without-critic"
        )
    try:
        settings = {name: about[name] for name in ("config", "best_of_n", "residual", "ticks")}
        info = SelectionInfo(int(settings["best_of_n"]["num_samples"]), settings)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder} is damaged: {one_line(error)}; copy it anew") from error
    weights = unpack(content)
    if any((tensor <= 0).any() for name, tensor in weights.items() if name.endswith("scale")):
        raise CheckpointError(f"{folder} scales its inputs by numbers that are not positive; take an older version")
    return info, {name if name.startswith(RESIDUAL) else f"critic.{name}": tensor for name, tensor in weights.items()}


def check_head(checkpoint: Path, deployed: Path) -> None:
    """Refuse a policy checkpoint with another residual head than the deployed one. That head acts in the control
    process, where nothing replaces it.

    Raises:
        CheckpointError: if only one of the two has a head, the heads differ, or one is damaged.
    """
    found, expected = _head(checkpoint), _head(deployed)
    if found != expected:
        have, has = ("none" if head is None else head[:8] for head in (found, expected))
        raise CheckpointError(
            f"{checkpoint} has another residual head ({have}) than the deployed policy ({has}), whose head would go on "
            "correcting; export it anew"
        )


def _head(policy: Path) -> str | None:
    """Return the digest of the weights of the residual head in a folder; None: there is none."""
    folder = policy / CORRECTOR_FOLDER
    if not folder.is_dir():
        return None
    try:
        return str(read_json(folder / "config.json")["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder} holds no residual head that can be read ({error!r}); copy it anew") from error


def watch(policy: DeployedPolicy, policies: Path, period_s: float = 0.5) -> VersionWatcher:
    """Refresh a policy in the background whenever a newer ``version_NNNN`` appears in a run's ``policies`` folder. The
    watcher is a context manager.
    """

    def take(version: Path) -> None:
        found = refresh(policy, version)
        logger.info("policy version %d acts after %.2f s", found.version, found.wall_s)

    return VersionWatcher(policies, take, policy.version, period_s, _BACKGROUND_NICENESS)
