"""A deployment folder in memory, and back on disk where a library wants files."""

import contextlib
import io
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deploy_trt.runtime.backend import Backend
from deploy_trt.runtime.manifest import WEIGHTS_LOCATION, Manifest, load_manifest, read_verified
from deploy_trt.runtime.program import Program
from deploy_trt.runtime.weights import Array, unpack
from vla_rl.core.errors import CheckpointError


@dataclass(frozen=True)
class Deployment:
    """A deployment folder in memory.

    Attributes:
        graphs: Name -> ONNX without weights.
        reference: The same in float32; equal to ``graphs`` where these are.
        weights: Content of the safetensors file, or None.

    Example:
        >>> sorted(Deployment.read(Path("deployments/flow")).graphs)
        ['prefix', 'step', 'time']
    """

    folder: Path
    manifest: Manifest
    graphs: dict[str, bytes]
    reference: dict[str, bytes]
    weights: bytes | None

    @classmethod
    def read(cls, folder: Path) -> "Deployment":
        """Read and verify all files; CheckpointError if one is missing or damaged."""
        manifest = load_manifest(folder)
        graphs = {name: read_verified(folder, graph) for name, graph in manifest.graphs.items()}
        reference = {name: read_verified(folder, graph) for name, graph in manifest.reference.items()} or graphs
        weights = read_verified(folder, manifest.weights) if manifest.weights else None
        for name, tensor in unpack(weights).items() if weights else ():
            if tensor.dtype.kind not in "iub" and not np.isfinite(tensor.astype(np.float32)).all():
                raise CheckpointError(f"{folder}: {name} holds numbers that are not finite; export an older version")
        return cls(folder, manifest, graphs, reference, weights)

    def program(self, backend: Backend) -> Program:
        """Return the sampler on a backend that holds its graphs."""
        return Program(self.manifest, backend)

    def probes(self) -> dict[str, Array]:
        """Recorded inputs and outputs: name -> array [K, ...]."""
        content = read_verified(self.folder, self.manifest.probes)
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except (ValueError, OSError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise CheckpointError(f"{self.folder / self.manifest.probes.file} is damaged: {error}") from error


@contextlib.contextmanager
def materialised(graphs: Mapping[str, bytes], weights: bytes | None) -> Iterator[Path]:
    """Return a folder with ``NAME.onnx`` and the weights as the graphs name them, for parsers that read files."""
    with tempfile.TemporaryDirectory(prefix="vla-rl-graphs-") as name:
        folder = Path(name)
        for graph, content in graphs.items():
            (folder / f"{graph}.onnx").write_bytes(content)
        if weights is not None:
            (folder / WEIGHTS_LOCATION).write_bytes(weights)
        yield folder
