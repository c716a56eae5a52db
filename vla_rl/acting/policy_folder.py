"""The control process's view of a policy, without torch. The policy may live in another process, or be a server's
(``openpi://HOST:PORT``) or a class of any package (``module:Name``).
"""

import functools
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy_trt.runtime import DeployedPolicy, is_deployment, load_deployed, load_manifest
from vla_rl.core.config import config_from_dict
from vla_rl.core.config_files import read_yaml
from vla_rl.core.errors import CheckpointError, ConfigError, UserError, one_line
from vla_rl.core.json_files import check_seal, read_json
from vla_rl.core.metadata import CORRECTOR_FOLDER, is_lerobots, not_adopted
from vla_rl.core.policy_spec import PolicySpec, successor_difference
from vla_rl.core.protocols import BasePolicy, Policy
from vla_rl.core.robot_matching import RobotMatch
from vla_rl.core.validation import check_version
from vla_rl.data.run_folder import RunFolder
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.execution.watched_policy import WatchedPolicy
from vla_rl.policies.named import is_name, load_named

if TYPE_CHECKING:
    from vla_rl.policies.trainable import TrainablePolicy

type AnyPolicy = TrainablePolicy | Policy | str | Path
"""A policy, its folder, or its name: ``openpi://HOST:PORT`` or ``module:Name``."""
_DESCRIPTIONS = ("vla_rl.json", "config.json")


@dataclass(frozen=True)
class PolicyFolder:
    """A policy on disk or under a name.

    Attributes:
        path: the folder, for `load_acting_policy`; empty for a policy under a name.
        spec: its interface.
        horizon: H, actions in a chunk.
        discrete_dims: action dimensions that are discrete (grippers).
        version: of the weights.
        run: the resolved config of the run that it comes from, as plain data; empty for a policy on its own.
        provides: its capabilities, see `vla_rl.core.capabilities`.
        prefix_ticks: longest committed prefix seen in training; 0: none.
        name: of a policy that has no folder, see `is_name`.
        n_obs_steps: number of observations, of consecutive ticks, that it reads.
    """

    path: Path
    spec: PolicySpec
    horizon: int
    discrete_dims: tuple[int, ...]
    version: int
    run: Mapping[str, Any] = field(default_factory=dict)
    provides: frozenset[str] = frozenset()
    prefix_ticks: int = 0
    name: str = ""
    n_obs_steps: int = 1

    def load(self, device: str = "cpu") -> Policy:
        """Load the policy to act with, see `load_acting_policy`."""
        return load_named(self.name) if self.name else load_acting_policy(self.path, device=device)


def find_policy(path: str | Path, version: int | None = None) -> PolicyFolder:
    """Return the policy in a folder that `TrainablePolicy.save` or `vla-rl export` wrote, or a version (default: the
    newest) of a run. A name stands for a policy too (`load_named`).

    Raises:
        UserError: if there is none.
        CheckpointError: if the policy's description is damaged.
    """
    if isinstance(path, str) and is_name(path):
        return _named(path)
    path = Path(path)
    run: Mapping[str, Any] = {}
    if (path / "policies").exists():
        run = read_yaml(path / "config.yaml")
        path = _version_of_run(path, version)
    elif version is not None:
        raise UserError(f"--version chooses among the policies of a run; {path} is no run folder")
    if is_deployment(path):
        manifest = load_manifest(path)
        return PolicyFolder(
            path,
            manifest.spec,
            manifest.horizon,
            tuple(dim for dim, _, _ in manifest.discrete),
            manifest.policy_version,
            provides=frozenset(manifest.provides) | _head_in(path),
            prefix_ticks=_prefix_ticks(manifest.source.get("config", {})) if "prefix" in manifest.provides else 0,
            n_obs_steps=manifest.base.n_obs_steps if manifest.base else 1,
        )
    # A policy of lerobot's is described in our terms beside its own config.json.
    file = next((file for name in _DESCRIPTIONS if (file := path / name).exists()), None)
    if file is None:
        raise UserError(f"{path} holds no run (policies/), no policy (config.json) and no deployment")
    try:
        description = read_json(file)
        if is_lerobots(description):
            raise not_adopted(path)
        check_seal(description)
        return PolicyFolder(
            path,
            config_from_dict(PolicySpec, description["spec"], where=str(file)),
            int(description["horizon"]),
            tuple(map(int, description["statistics"]["discrete_dims"])),
            check_version(description["meta"].get("policy_version", 0)),
            run,
            frozenset(map(str, description["provides"])) | _head_in(path),
            _prefix_ticks(description.get("config", {})),
            n_obs_steps=int(description.get("n_obs_steps", 1)),
        )
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise CheckpointError(
            f"{file} is damaged or of another version: {one_line(error)}; take the policy anew"
        ) from error


@contextmanager
def opened(policy: AnyPolicy) -> Iterator[AnyPolicy]:
    """Yield a policy; one that is given by its name is loaded, and a connection to its server is closed afterwards."""
    if not is_name(policy):
        yield policy
        return
    named = load_named(str(policy))
    try:
        yield named
    finally:
        if hasattr(named, "close"):
            named.close()


def _named(name: str) -> PolicyFolder:
    with opened(name) as policy:
        assert isinstance(policy, BasePolicy)
        return PolicyFolder(
            Path(),
            policy.spec,
            policy.horizon,
            tuple(getattr(policy, "discrete_dims", ())),
            policy.version,
            provides=frozenset(getattr(policy, "provides", ())),
            prefix_ticks=getattr(policy, "prefix_ticks", 0),
            name=name,
            n_obs_steps=getattr(policy, "n_obs_steps", 1),
        )


def _head_in(path: Path) -> frozenset[str]:
    return frozenset({"corrector"} if (path / CORRECTOR_FOLDER).is_dir() else ())


def _prefix_ticks(trained: Mapping[str, Any]) -> int:
    return int(trained.get("prefix_max", 0))


def load_policy(source: str | Path, version: int | None = None) -> Policy:
    """Load a policy, with its critic and residual.

    Args:
        source: Policy folder, run folder or deployment. Or the URL of a policy server, ``openpi://HOST:PORT``, or
            the ``module:Name`` of a `vla_rl.core.protocols.BasePolicy`.
        version: Version of the policy in a run folder. Default: the newest.

    Returns:
        Policy whose ``infer(observation)`` plans a chunk, float32 [H, A].

    Raises:
        UserError: If the folder holds no such policy, or the policy is damaged.

    Example:
        >>> policy = load_policy("runs/dot")
        >>> policy.infer(env.observe()).actions.shape
        (16, 2)
    """
    if isinstance(source, str) and is_name(source):
        return load_named(source)
    return find_policy(source, version).load()


@contextmanager
def on_disk(policy: AnyPolicy) -> Iterator[Path | None]:
    """Yield the folder of a policy, written for now if it has none; None for a name or an object that only acts.

    Raises:
        UserError: For a folder without a policy, or something that is none.
    """
    if is_name(policy):
        yield None
        return
    if isinstance(policy, str | Path):
        yield find_policy(policy).path
        return
    from vla_rl.policies.acting import ActingPolicy
    from vla_rl.policies.trainable import TrainablePolicy

    if isinstance(policy, ActingPolicy | TrainablePolicy):
        with tempfile.TemporaryDirectory(prefix="vla_rl_") as name:
            policy.save(Path(name, "policy"))
            yield Path(name, "policy")
        return
    if isinstance(policy, type) or not (hasattr(policy, "reset") and hasattr(policy, "infer")):
        found = f"the class {policy.__name__}" if isinstance(policy, type) else f"a {type(policy).__name__}"
        raise UserError(f"{found} is no policy; expected its folder, its name, or an object with reset and infer")
    yield None


def on_robot(
    policy: PolicyFolder, execution: ExecutionConfig, found: RobotMatch
) -> tuple[PolicyFolder, ExecutionConfig]:
    """Return the policy towards a robot, and its execution, with all dimensions in the robot's order."""
    dims = found.on_robot(execution.discrete_dims), found.on_robot(execution.delta_dims)
    on_it = replace(policy, spec=found.robot, discrete_dims=found.on_robot(policy.discrete_dims))
    return on_it, replace(execution, discrete_dims=dims[0], delta_dims=dims[1])


def load_acting_policy(path: Path, expected: PolicySpec | None = None, device: str = "cpu") -> Policy:
    """Load a policy to act with, on one thread: for the process where inference happens. Deployments need no torch.

    Raises:
        CheckpointError: If the policy is damaged, or has another interface than ``expected``.
    """
    if expected is not None and (differs := successor_difference(find_policy(path).spec, expected)):
        raise CheckpointError(
            f"{path} has the {differs.name} {differs.found}; the policy of the robot's check has "
            f"{differs.expected}. Watch the folder of that policy's own run"
        )
    if is_deployment(path):
        return load_deployed(path)
    import torch

    from vla_rl.policies.folders import load_policy

    torch.set_num_threads(1)
    return load_policy(path, device)


def load_watched_policy(path: Path, policies: Path) -> Policy:
    """Return the newest policy version in a folder, and whichever come after it. For the inference process.

    Every version must have the interface of the policy at ``path``, with which the robot has been compared. A
    deployment keeps its graphs and takes the weights of the versions.
    """
    if not is_deployment(path):
        return WatchedPolicy(policies, functools.partial(load_acting_policy, expected=find_policy(path).spec))
    from deploy_trt.runtime.refresh import watch

    policy = load_acting_policy(path)
    if isinstance(policy, DeployedPolicy):
        watch(policy, policies).__enter__()  # until the process ends
    return policy


def _version_of_run(run: Path, version: int | None) -> Path:
    folder = RunFolder(run)
    finished = folder.policy_versions()
    if not finished:
        raise UserError(f"{run} has no policy yet; let it finish its first stages")
    chosen = finished[-1] if version is None else version
    if chosen not in finished:
        raise UserError(f"{run} has no policy version {version}; it has {finished}")
    return folder.policy(chosen)
