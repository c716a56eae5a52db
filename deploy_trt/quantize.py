"""Quantised deployments: INT8 for ONNX Runtime, and FP8, INT8 or INT4 Q/DQ nodes for TensorRT through ModelOpt.

Calibration takes real observations. Without any it fails: numbers from dummy data are worse than none. What comes out
is compared with the float32 deployment that it was made from, and refused if it is another policy.
"""

import functools
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from deploy_trt.runtime.backend import Value
from deploy_trt.runtime.folder import Deployment, materialised
from deploy_trt.runtime.ladder import TOLERANCES, Difference, difference
from deploy_trt.runtime.manifest import save_manifest, write_digested
from deploy_trt.runtime.ort import OrtBackend
from deploy_trt.runtime.policy import DeployedPolicy
from deploy_trt.runtime.program import probe_actions
from deploy_trt.runtime.weights import Array
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.files import write_atomic
from vla_rl.core.types import Observation

ORT_MODES = ("int8-dynamic", "int8-static")
MODELOPT_MODES = ("fp8", "int8", "int4")
FULL_PRECISION = ("time", "selection")  # the one runs once per weights, the other decides
_MODELOPT_TIMEOUT_S = 3600

Feeds = dict[str, list[dict[str, Array]]]
Quantizer = Callable[[Path, Path, list[dict[str, Array]]], None]  # from a graph into another file, by what it reads


class RecordingBackend(OrtBackend):
    """Keeps every input that a graph ever got."""

    feeds: Feeds

    def run(self, graph: str, feeds: Mapping[str, Value]) -> dict[str, Value]:
        self.feeds.setdefault(graph, []).append({name: np.array(self.get(value)) for name, value in feeds.items()})
        return super().run(graph, feeds)


def record_feeds(deployment: Deployment, observations: Sequence[Observation]) -> Feeds:
    """Return what each graph reads while the policy plans from real observations; UserError if there are none."""
    if not observations:
        raise UserError(
            "calibration needs real observations, found none; give an episode store of this robot. "
            "Random inputs would give scales that no real input has"
        )
    backend = RecordingBackend("ort-cpu", deployment.graphs, deployment.weights)
    backend.feeds = {}
    policy = DeployedPolicy(deployment.program(backend), deployment.folder)
    for observation in observations:
        policy.infer(observation)
    return backend.feeds


def quantize_deployment(
    folder: Path,
    out: Path,
    mode: str,
    observations: Sequence[Observation] = (),
    modelopt_python: Path | None = None,
    check: bool = True,
) -> Difference:
    """Write a quantised copy of a float32 deployment.

    Args:
        folder: the float32 deployment.
        out: made if missing.
        mode: ``int8-dynamic`` (weights; no calibration), ``int8-static``, or ``fp8``, ``int8``, ``int4`` of ModelOpt.
        observations: for calibration; from the episode store.
        modelopt_python: the interpreter of an environment with nvidia-modelopt, whose pins clash with ours.
        check: refuse a result that is another policy. ModelOpt's are checked on the target: ONNX Runtime on a CPU
            cannot run them all.

    Returns:
        difference to torch on the probes.

    Raises:
        UserError: for an unknown mode, no observations, or a result outside the tolerance of its precision.
    """
    deployment = Deployment.read(folder)
    if deployment.weights is None or deployment.manifest.precision != "fp32":
        raise UserError(f"{folder} is in {deployment.manifest.precision}; quantise a deployment in fp32")
    if mode not in (*ORT_MODES, *MODELOPT_MODES):
        raise UserError(
            f"there is no quantisation {mode!r}.{did_you_mean(mode, [*ORT_MODES, *MODELOPT_MODES])} "
            "NVFP4 has no ONNX quantizer in ModelOpt; it is quantised in torch"
        )
    feeds = {} if mode == "int8-dynamic" else record_feeds(deployment, observations)
    graphs = _converted(deployment, _quantizer(mode, modelopt_python), feeds)
    if mode in ORT_MODES:
        program = deployment.program(OrtBackend("ort-cpu", graphs, None))
        probes = deployment.probes()
        found = difference(probe_actions(program, probes), list(probes["actions"]))
        if check and not found.within(TOLERANCES[mode]):
            raise UserError(f"{mode} makes another policy of {folder}: {found}, allowed is {TOLERANCES[mode]}")
    else:
        found = Difference(float("nan"), float("nan"), float("nan"))
    _write(deployment, out, mode, graphs)
    return found


def _converted(deployment: Deployment, quantize: Quantizer, feeds: Feeds) -> dict[str, bytes]:
    """Return all graphs with their weights inside, quantised but for those in full precision."""
    import onnx

    graphs = {}
    with materialised(deployment.graphs, deployment.weights) as source, tempfile.TemporaryDirectory() as target:
        for name in deployment.graphs:
            model = onnx.load(source / f"{name}.onnx")  # with the external weights
            inlined, result = Path(target) / f"{name}.onnx", Path(target) / f"{name}.quantised.onnx"
            onnx.save(_optimised(model), inlined)
            if name not in FULL_PRECISION:
                quantize(inlined, result, feeds.get(name, []))
                inlined = result
            graphs[name] = inlined.read_bytes()
    return graphs


def _optimised(model: Any) -> Any:
    """Transposed weights folded, so that quantizers find constant weights. From trained weights: see the first trap."""
    import onnxscript.optimizer

    from deploy_trt.export.graph import quiet_exporter

    with quiet_exporter():
        optimized = onnxscript.optimizer.optimize(model)
    del optimized.graph.value_info[:]  # of shapes before the transposes were folded; quantizers infer them anew
    return optimized


def _quantizer(mode: str, modelopt_python: Path | None) -> Quantizer:
    if mode in ORT_MODES:
        return _dynamic_int8 if mode == "int8-dynamic" else _static_int8
    if modelopt_python is None:
        raise UserError(f"{mode} needs nvidia-modelopt in an environment of its own; name its python interpreter")
    return functools.partial(_modelopt, mode=mode, python=modelopt_python)


def _dynamic_int8(source: Path, target: Path, _: list[dict[str, Array]]) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        source, target, op_types_to_quantize=["MatMul", "Gemm"], per_channel=True, weight_type=QuantType.QInt8
    )


def _static_int8(source: Path, target: Path, feeds: list[dict[str, Array]]) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._rows = iter(feeds)

        def get_next(self) -> dict[str, Array] | None:
            return next(self._rows, None)

    quantize_static(
        source,
        target,
        Reader(),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["MatMul", "Gemm", "Conv"],
        per_channel=True,
        weight_type=QuantType.QInt8,
    )


def _modelopt(source: Path, target: Path, feeds: list[dict[str, Array]], mode: str, python: Path) -> None:
    """ModelOpt's own command line, in its own environment."""
    calibration = source.with_suffix(".npz")
    np.savez(
        calibration, allow_pickle=False, **{name: np.concatenate([row[name] for row in feeds]) for name in feeds[0]}
    )
    options = {
        "onnx_path": source,
        "output_path": target,
        "quantize_mode": mode,
        "calibration_data_path": calibration,
        "high_precision_dtype": "fp32",
    }
    command = [str(python), "-m", "modelopt.onnx.quantization"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_MODELOPT_TIMEOUT_S)
    if done.returncode or not target.exists():
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"ModelOpt did not quantise {source.stem}: {reason[:300]}")


def _write(deployment: Deployment, out: Path, mode: str, graphs: Mapping[str, bytes]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    old = deployment.manifest
    infos = {}
    for name, content in graphs.items():
        written = write_digested(out, name, ".onnx", content)
        infos[name] = replace(old.graphs[name], file=written.file, sha256=written.sha256)
    for file in filter(None, (old.probes.file, old.text.file)):
        write_atomic(out / file, (deployment.folder / file).read_bytes())
    source = {**old.source, "quantised_from": deployment.folder.name}
    save_manifest(out, replace(old, precision=mode, graphs=infos, weights=None, source=source))
