"""``manifest.json`` of a deployment folder: everything that a robot computer has to know beside the graphs.

::

    FOLDER/manifest.json             this description; written last, it names the other files by their digests
    FOLDER/NAME-DIGEST.onnx          graphs as exported, unoptimized, without weights
    FOLDER/weights-DIGEST.safetensors  all weights under the names that they have in training; the graphs refer to it
    FOLDER/probes-DIGEST.npz         inputs, and what the policy in torch made of them
    FOLDER/engines/KEY/              what was built from the graphs on this very machine; may be deleted
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from vla_rl.core.config import config_from_dict, config_to_dict
from vla_rl.core.errors import CheckpointError, ConfigError
from vla_rl.core.files import write_atomic
from vla_rl.core.json_files import SEAL, check_seal, read_bytes, read_json, write_sealed
from vla_rl.core.normalization import Statistics, VectorStatistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.signing import check_trusted
from vla_rl.core.validation import check_vector, check_version, plain_name

FORMAT = "vla-rl-deployment"
FORMAT_VERSION = 3
LARGEST_SIZE = 10**7
_TEXTS = ("none", "hashed_words", "tokenizer")
_GRAPHS = {  # by the kind of the sampler
    "direct": {"policy"},
    "unrolled": {"policy"},
    "flow": {"prefix", "step"},
    "diffusion": {"prefix", "step"},
    "base": {"prefix", "selection"},
}
BASE_FOLDER = "base"
CRITIC_LEFT_OUT = "left out"
"""What ``source`` says under ``meta.critic`` of a policy that was exported without its critic on purpose."""
WEIGHTS_LOCATION = "weights.safetensors"  # the name that the graphs know the weights by, whatever the file is called


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's dtype, as numpy or ml_dtypes name it, and shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class FileInfo:
    """A file of the folder and its digest."""

    file: str
    sha256: str


@dataclass(frozen=True)
class GraphInfo(FileInfo):
    """One ONNX graph; ``inputs`` and ``outputs`` are in the graph's order."""

    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]


@dataclass(frozen=True)
class Affine:
    """``normalized = (raw - offset) / scale``; scale 0 marks a constant dimension, which is 0 when normalized.

    Attributes:
        offset, scale: Raw units.
        limit: Largest size of a network's normalized input. Empty: no limit.
    """

    offset: tuple[float, ...]
    scale: tuple[float, ...]
    limit: tuple[float, ...] = ()

    @classmethod
    def of(cls, statistics: VectorStatistics, discrete_dims: Sequence[int] = ()) -> Self:
        """As a policy in torch normalizes."""
        offset, scale = statistics.affine(discrete_dims)
        return cls(tuple(map(float, offset)), tuple(map(float, scale)), statistics.limit)


def normalization_of(statistics: Statistics) -> dict[str, Any]:
    """Return the fields of a `Manifest` that follow from the statistics of a policy."""
    state, action, discrete = statistics.state, statistics.action, statistics.discrete_dims
    return {
        "state": Affine.of(state),
        "action": Affine.of(action, discrete),
        "state_mean": state.mean,
        "action_mean": action.mean,
        "discrete": tuple((dim, action.low[dim], action.high[dim]) for dim in discrete),
    }


@dataclass(frozen=True)
class TextInfo:
    """How the task sentence becomes numbers.

    Attributes:
        kind: ``none``; ``hashed_words`` (`vla_rl.core.flow_sampling.hash_words`); ``tokenizer`` (a ``tokenizer.json``).
        length: L, fixed.
        vocabulary: hash buckets of ``hashed_words``.
        file, sha256: of ``tokenizer``.
        first: added to every number of a ``tokenizer``, so that 0 is free to mean that there is no token.
        suffix: appended to the sentence.
    """

    kind: str = "none"
    length: int = 0
    vocabulary: int = 0
    file: str = ""
    sha256: str = ""
    first: int = 0
    suffix: str = ""


@dataclass(frozen=True)
class SamplerInfo:
    """How a chunk comes out of the graphs.

    Attributes:
        kind: ``direct``: graph ``policy`` gives the chunk. ``unrolled``: it also takes noise. ``flow`` and
            ``diffusion``: graph ``prefix`` once, then graph ``step`` so often, from noise to ``next_actions``.
            ``base``: another policy draws the chunks, and graph ``prefix`` gives features of the observation.
        steps: integration steps.
        width: size of the noise's last dimension, at least that of an action.
        horizon: rows of the noise, at least the length of a chunk.
        schedule: inputs of ``step`` that differ from step to step: name -> [steps, ...].
        committed: whether a chunk may be made to begin with given actions.
        guidance_scale: of classifier-free guidance towards the positive indicator; 1: none.
        step_noise: fresh noise in every step.
    """

    kind: str
    steps: int = 0
    width: int = 0
    horizon: int = 0
    schedule: dict[str, list[Any]] = field(default_factory=dict)
    committed: bool = False
    guidance_scale: float = 1.0
    step_noise: bool = False


@dataclass(frozen=True)
class SelectionInfo:
    """Best-of-N selection by a critic: graph ``selection`` moves N candidates and returns the best one.

    Attributes:
        num_samples: N candidates. Graph ``step`` takes 1 + N chunks at once; the first starts from zero noise.
        settings: What is constant in the graph, as the critic's folder describes it. Other settings need another graph.
    """

    num_samples: int
    settings: dict[str, Any]


@dataclass(frozen=True)
class BaseInfo:
    """The policy that draws the chunks of a deployment that only improves them.

    Attributes:
        name: ``openpi://HOST:PORT`` or ``module:Name``; `BASE_FOLDER`: the deployment in the folder of this name.
        draws: Number of chunks that it is asked for; with 1, the one of zero noise.
        n_obs_steps: Number of observations, of consecutive ticks, that it reads.
        digest: Of a deployment, the SHA-256 of its manifest.
        start: What its sampler begins with, [rows, W]. Empty: the noise of the chunk.
    """

    name: str
    draws: int = 1
    n_obs_steps: int = 1
    digest: str = ""
    start: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Manifest:
    """The manifest of a deployment folder.

    Attributes:
        policy: its kind: flow_vla, act, diffusion, smolvla, pi0, proxy.
        policy_version: counts the updates of the weights.
        spec: the robot's interface.
        horizon: H, actions in a chunk.
        precision: of weights and activations, see `deploy_trt.runtime.ladder`.
        graphs: by name.
        reference: the same graphs in float32, where ``graphs`` are not: what new weights are verified against.
        weights: the file with all weights; None where they stand inside the graphs (quantised ones).
        probes: the file with recorded inputs and outputs.
        state, action: normalization.
        state_mean, action_mean: fill the dimensions that a smaller robot lacks.
        discrete: (dimension, lower level, upper level) of action dimensions that have two levels.
        text, sampler: see there.
        provides: Capabilities that remain in the graphs, see `vla_rl.core.capabilities`. Strategies may require them.
        selection: Of a policy that draws several chunks; None: it draws one, which is executed.
        base: Draws the chunks; None: the graphs do.
        source: where the policy comes from; plain data for people.

    Example:
        >>> load_manifest(Path("deployments/flow")).policy
        'flow_vla'
    """

    policy: str
    policy_version: int
    spec: PolicySpec
    horizon: int
    precision: str
    graphs: dict[str, GraphInfo]
    reference: dict[str, GraphInfo]
    weights: FileInfo | None
    probes: FileInfo
    state: Affine
    action: Affine
    state_mean: tuple[float, ...]
    action_mean: tuple[float, ...]
    discrete: tuple[tuple[int, float, float], ...]
    text: TextInfo
    sampler: SamplerInfo
    provides: tuple[str, ...]
    selection: SelectionInfo | None = None
    base: BaseInfo | None = None
    source: dict[str, Any] = field(default_factory=dict)


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest; all files that it names must be there."""
    content = {"format": FORMAT, "format_version": FORMAT_VERSION, **config_to_dict(manifest)}
    write_sealed(folder / "manifest.json", content)


def is_deployment(folder: Path) -> bool:
    """Return whether a folder holds a deployed policy.

    Example:
        >>> is_deployment(Path("deployments/flow")), is_deployment(Path("runs/dot"))
        (True, False)
    """
    return (folder / "manifest.json").is_file()


def load_manifest(folder: Path) -> Manifest:
    """Read the manifest.

    Raises:
        CheckpointError: if it is missing, damaged or of another version.

    Example:
        >>> load_manifest(Path("deployments/flow")).policy_version
        3
    """
    file = folder / "manifest.json"
    try:
        content = read_json(file)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise CheckpointError(f"{file} is not the manifest of a {FORMAT}; make one with `vla-rl export`")
        if (version := content.get("format_version")) != FORMAT_VERSION:
            raise CheckpointError(
                f"{file} has format version {version!r}, this program reads {FORMAT_VERSION}; export the policy anew"
            )
        check_seal(content)
    except OSError as error:
        raise CheckpointError(f"{folder} holds no deployed policy: {file.name}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: {error}; copy the folder anew") from error
    plain = {key: value for key, value in content.items() if key not in ("format", "format_version", SEAL)}
    check_trusted(folder)
    try:
        manifest = config_from_dict(Manifest, plain, where=str(file))
        _check(manifest)
        return manifest
    except (ConfigError, ValueError) as error:
        raise CheckpointError(f"{file}: {error}; export the policy anew") from error


def _check(manifest: Manifest) -> None:
    """Raise ValueError for lengths that do not fit and numbers that no policy has."""
    spec, sampler, text = manifest.spec, manifest.sampler, manifest.text
    check_version(manifest.policy_version)
    for name, affine, mean, size in (
        ("state", manifest.state, manifest.state_mean, spec.state_dim),
        ("action", manifest.action, manifest.action_mean, spec.action_dim),
    ):
        check_vector(f"{name}.offset", affine.offset, size)
        check_vector(f"{name}.scale", affine.scale, size, least=0)
        check_vector(f"{name}.limit", affine.limit, size if affine.limit else 0, least=0)
        check_vector(f"{name}_mean", mean, size)
    for dim, low, high in manifest.discrete:
        check_vector("discrete", (low, high), 2)
        if not (0 <= dim < spec.action_dim and low <= high):
            raise ValueError(f"discrete has dimension {dim} with the levels {low} and {high}")
    if sampler.kind not in _GRAPHS or text.kind not in _TEXTS:
        raise ValueError(f"sampler {sampler.kind!r} or text {text.kind!r} is not known")
    if missing := _GRAPHS[sampler.kind] - manifest.graphs.keys():
        raise ValueError(f"the graphs {sorted(missing)} are missing")
    sizes = (sampler.steps, sampler.width, sampler.horizon, text.length, text.vocabulary)
    if not (1 <= manifest.horizon <= LARGEST_SIZE and all(0 <= size <= LARGEST_SIZE for size in sizes)):
        raise ValueError(f"a size is out of range: horizon {manifest.horizon}, sampler and text {sizes}")
    if (sampler.kind == "base") != (manifest.base is not None) or (manifest.base and manifest.selection is None):
        raise ValueError(f"sampler {sampler.kind!r} does not fit the base {manifest.base}, or nothing selects")
    if (base := manifest.base) and not (
        (":" in base.name or base.name == BASE_FOLDER) and base.draws >= 1 <= base.n_obs_steps
    ):
        raise ValueError(f"base is {base}")
    rows = math.inf if sampler.kind == "direct" else sampler.horizon
    if manifest.horizon > rows or sampler.width < spec.action_dim:
        raise ValueError(f"a chunk [{manifest.horizon}, {spec.action_dim}] does not fit into the sampler's")
    check_vector("guidance_scale", (sampler.guidance_scale,), 1)
    if manifest.selection is not None:
        _check_selection(manifest, manifest.selection)


def _check_selection(manifest: Manifest, selection: SelectionInfo) -> None:
    """Raise ValueError for graphs that do not fit together."""
    graphs, count = manifest.graphs, selection.num_samples
    of_draws = set() if manifest.base else {"step"}
    if missing := {"prefix", "selection", *of_draws} - graphs.keys():
        raise ValueError(f"selection: the graphs {sorted(missing)} are missing")
    shown, read = graphs["prefix"].outputs.get("features"), graphs["selection"].inputs.get("features")
    if shown is None or shown != read:
        raise ValueError(f"selection: graph 'prefix' gives the features {shown}, graph 'selection' reads {read}")
    name, drawn = ("selection", "drawn") if manifest.base else ("step", "actions")
    found = graphs[name].inputs[drawn].shape[1 if manifest.base else 0]
    if not 1 <= count <= LARGEST_SIZE or found != 1 + count:
        raise ValueError(f"selection: graph {name!r} takes {found} chunks at once, {1 + count} are drawn")


def read_verified(folder: Path, info: FileInfo) -> bytes:
    """Return the content of a file of the folder.

    Raises:
        CheckpointError: if it is missing, outside the folder, or not the one that the manifest means.
    """
    try:
        content = read_bytes(folder / plain_name(info.file))
    except OSError as error:
        raise CheckpointError(f"cannot read {folder / info.file}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{folder / 'manifest.json'}: {error}; copy the folder anew") from error
    if hashlib.sha256(content).hexdigest() != info.sha256:
        raise CheckpointError(f"{folder / info.file} is not the file that the manifest means; copy the folder anew")
    return content


def write_digested(folder: Path, stem: str, suffix: str, content: bytes) -> FileInfo:
    """Write a file whose name holds its digest, so that it never changes under a reader of the manifest."""
    digest = hashlib.sha256(content).hexdigest()
    info = FileInfo(f"{stem}-{digest[:16]}{suffix}", digest)
    write_atomic(folder / info.file, content)
    return info


def remove_stale(folder: Path, manifest: Manifest) -> None:
    """Remove what the manifest no longer names."""
    named = {graph.file for graph in (*manifest.graphs.values(), *manifest.reference.values())}
    named |= {manifest.probes.file, manifest.text.file}
    named |= {manifest.weights.file} if manifest.weights else set()
    for pattern in ("*-*.onnx", "weights-*.safetensors", "probes-*.npz", "tokenizer-*.json"):
        for file in folder.glob(pattern):
            if file.name not in named:
                file.unlink(missing_ok=True)
