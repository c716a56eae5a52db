"""TensorRT engines from the graphs of a deployment folder, on the machine that will run them. Through polygraphy.

Precision comes from the types and the Q/DQ nodes in the graphs, never from a builder flag. Networks are strongly typed
on TensorRT 10, and TensorRT 11 knows no other kind. An engine is found again by a key of everything that it depends on.

TensorRT-RTX also builds without a GPU, for named GPUs. This proves in CI that its parser and its builder accept every
graph. Each build runs in a process of its own, since a library without its driver may crash.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy_trt.runtime.folder import Deployment, materialised
from deploy_trt.runtime.probe import MODULES, BackendName, probe, run_probe
from vla_rl.core.cache_keys import cache_key, code_digest
from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic

RTX_WITHOUT_GPU = "SM89"  # what a build without a GPU is for: GeForce RTX 40
_TIMEOUT_S = 1800
# What `run_worker` needs beside the files ``onnx`` and ``engine`` to build without a GPU.
RTX_REQUEST: dict[str, Any] = {
    "backend": "trt-rtx",
    "timing_cache": "",
    "without_gpu": True,
}
_BUILDER_SCRIPT = """
import json, polygraphy, tensorrt_rtx as trt
trt.Builder(trt.Logger())
print(json.dumps({"version": trt.__version__, "compute_capability": 0}))
"""


@dataclass(frozen=True)
class BuiltEngine:
    """One engine: its file, whether it was there already, and how long it took."""

    graph: str
    file: Path
    cached: bool
    wall_s: float


def check_version(version: str) -> None:
    """Refuse versions of TensorRT that are known to compute something else.

    Raises:
        UserError: for 11.3, whose refittable engines can lose the bias of a matrix product, and for less than 10.
    """
    major, minor = (int(part) for part in re.findall(r"\d+", version)[:2])
    if (major, minor) == (11, 3):
        raise UserError(
            f"TensorRT {version} can drop a bias in refittable engines; use 11.4 or newer (JetPack 7.2.2), or 10.x"
        )
    if major < 10:
        raise UserError(f"TensorRT {version} is too old; 10.x and 11.x are supported")


def engine_key(deployment: Deployment, graph: str, library: tuple[BackendName, str, int], without_gpu: bool) -> str:
    """Return the key of an engine of a graph, which holds the weights that it was built with.

    ``library`` is the backend, its version and the GPU's compute capability.
    """
    weights = deployment.manifest.weights
    contents = [deployment.manifest.graphs[graph].sha256, weights.sha256 if weights else ""]
    return cache_key([contents, library, deployment.manifest.precision, without_gpu, code_digest("deploy_trt.build")])


def build_engines(folder: Path, backend: BackendName, without_gpu: bool = False) -> list[BuiltEngine]:
    """Build the engines of a deployment, or find them, in ``engines/KEY.engine`` of its folder.

    ``without_gpu`` builds for `RTX_WITHOUT_GPU` on the CPU (TensorRT-RTX only). Such engines cannot be refitted.

    Raises:
        UserError: if the library is missing or of a version that is refused, or a graph does not build.
    """
    version, capability = _library(backend, without_gpu)
    deployment = Deployment.read(folder)
    engines = folder / "engines"
    engines.mkdir(exist_ok=True)
    built = []
    with materialised(deployment.graphs, deployment.weights) as graphs:
        for name in deployment.manifest.graphs:
            key = engine_key(deployment, name, (backend, version, capability), without_gpu)
            file = engines / f"{name}-{key}.engine"
            if file.exists():
                built.append(BuiltEngine(name, file, cached=True, wall_s=0.0))
                continue
            request = {
                "backend": backend,
                "onnx": str(graphs / f"{name}.onnx"),
                "engine": str(file),
                "timing_cache": str(engines / f"timing-{backend}-{version}-{capability}.cache"),
                "without_gpu": without_gpu,
            }
            built.append(BuiltEngine(name, file, cached=False, wall_s=run_worker(request)["wall_s"]))
    index: dict[str, Any] = {"backend": backend, "version": version, "compute_capability": capability}
    index["engines"] = {engine.graph: engine.file.name for engine in built}
    index["weights_sha256"] = deployment.manifest.weights.sha256 if deployment.manifest.weights else ""
    write_atomic(engines / f"{backend}.json", json.dumps(index, indent=1).encode())
    return built


def run_worker(request: dict[str, Any]) -> dict[str, Any]:
    """Build one engine in a process of its own; UserError if the builder refuses the graph, or dies."""
    environment = {**os.environ, "POLYGRAPHY_USE_TENSORRT_RTX": "1" if request["backend"] == "trt-rtx" else "0"}
    command = [sys.executable, "-m", "deploy_trt.build", json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment)
    if done.returncode:
        reasons = [line for line in (done.stdout + done.stderr).splitlines() if "[E]" in line or "Error" in line]
        reason = "; ".join(reasons[-3:]) or f"it died with code {done.returncode}"
        raise UserError(f"{request['backend']} does not build {Path(request['onnx']).name}: {reason[:600]}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def rtx_without_gpu() -> str:
    """Empty if TensorRT-RTX can build engines here without a GPU, else the reason why not."""
    found = run_probe(_BUILDER_SCRIPT)
    return "" if found.works else f"TensorRT-RTX cannot build here: {found.reason} (uv sync --group trt-rtx)"


def _library(backend: BackendName, without_gpu: bool) -> tuple[str, int]:
    """Return version and compute capability that engines are built with; UserError if the library does not work."""
    if without_gpu:
        if backend != "trt-rtx":
            raise UserError("only TensorRT-RTX builds without a GPU; TensorRT needs the GPU that it builds for")
        reason = rtx_without_gpu()
        if reason:
            raise UserError(reason)
        return importlib.metadata.version("tensorrt-rtx"), int(RTX_WITHOUT_GPU.removeprefix("SM"))
    found = probe(backend)
    if not found.works:
        raise UserError(f"{backend} cannot build engines here: {found.reason}")
    if backend == "trt":
        check_version(found.version)
    return found.version, found.compute_capability


def _worker(request: dict[str, Any]) -> dict[str, Any]:
    """In the process of one build."""
    from polygraphy.backend.trt import engine_bytes_from_network, network_from_onnx_path

    trt = importlib.import_module(MODULES[request["backend"]])
    started_s = time.perf_counter()
    # TensorRT 11 and -RTX have no other kind of network; polygraphy passes the flag where it exists.
    builder, network, parser = network_from_onnx_path(request["onnx"], strongly_typed=True)
    config = builder.create_builder_config()
    if request["without_gpu"]:
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, RTX_WITHOUT_GPU), 0)
    else:
        config.set_flag(trt.BuilderFlag.REFIT)  # never REFIT_IDENTICAL: undefined for weights that changed
        cache_file = Path(request["timing_cache"])
        timings = cache_file.read_bytes() if cache_file.exists() else b""
        config.set_timing_cache(config.create_timing_cache(timings), ignore_mismatch=False)
    engine = bytes(engine_bytes_from_network((builder, network, parser), config=config))
    write_atomic(Path(request["engine"]), engine)
    if not request["without_gpu"]:
        write_atomic(cache_file, bytes(config.get_timing_cache().serialize()))
    return {"wall_s": time.perf_counter() - started_s, "bytes": len(engine)}


if __name__ == "__main__":
    print(json.dumps(_worker(json.loads(sys.argv[1]))))
