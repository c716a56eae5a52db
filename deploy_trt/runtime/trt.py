"""Graphs as TensorRT or TensorRT-RTX engines. Values are device buffers: what ``prefix`` writes is what ``step`` reads.

The integration loop is captured in one CUDA graph and then launched with one call. New weights go into a second, idle
set of engines, so the running set is never half old and half new.
"""

import importlib
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from deploy_trt.runtime.backend import Backend, Value
from deploy_trt.runtime.cuda import CudaRuntime
from deploy_trt.runtime.folder import Deployment, materialised
from deploy_trt.runtime.manifest import Manifest
from deploy_trt.runtime.probe import MODULES, BackendName
from deploy_trt.runtime.weights import Array, numpy_dtype
from vla_rl.core.errors import UserError
from vla_rl.core.json_files import read_json, reading
from vla_rl.core.validation import plain_name


@dataclass(frozen=True)
class DeviceBuffer:
    """A tensor on the device."""

    pointer: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class TrtBackend(Backend):
    """Engines of one deployment: ``plans``, graph -> content of its engine. The manifest has the shapes.

    Raises:
        UserError: if an engine is of another version or GPU.
    """

    def __init__(
        self, name: BackendName, manifest: Manifest, plans: Mapping[str, bytes], trt: Any, cuda: CudaRuntime
    ) -> None:
        self.name = name
        self.manifest = manifest
        self._kind, self._plans, self._trt, self._cuda = name, dict(plans), trt, cuda
        self._logger = trt.Logger(trt.Logger.ERROR)
        self._runtime = trt.Runtime(self._logger)
        self._engines = {graph: self._runtime.deserialize_cuda_engine(plan) for graph, plan in self._plans.items()}
        for graph, engine in self._engines.items():
            if engine is None:
                raise UserError(f"{name}: the engine of graph {graph!r} is of another version or GPU; build it anew")
        self._contexts = {graph: engine.create_execution_context() for graph, engine in self._engines.items()}
        self._free: dict[int, list[int]] = defaultdict(list)
        self._outputs = {
            graph: {key: self._buffer(numpy_dtype(info.dtype), info.shape) for key, info in description.outputs.items()}
            for graph, description in manifest.graphs.items()
        }
        # Captured loops by the addresses that they read, with what they read and write.
        self._loops: dict[tuple[int, ...], tuple[Any, DeviceBuffer, list[Value]]] = {}

    @classmethod
    def open(cls, name: BackendName, folder: Path, manifest: Manifest) -> Self:
        """Return the engines that were built in a deployment folder, with its newest weights.

        Raises:
            UserError: if they are not built, or were built by another version of the library.
        """
        trt = importlib.import_module(MODULES[name])
        index_file = folder / "engines" / f"{name}.json"
        if not index_file.exists():
            raise UserError("its engines are not built; build them here")
        with reading(index_file, "build the engines anew"):
            index = read_json(index_file)
            if index["version"] != trt.__version__:
                raise UserError(
                    f"its engines are of version {index['version']}, here is {trt.__version__}; build them anew"
                )
            files = {graph: folder / "engines" / plain_name(file) for graph, file in index["engines"].items()}
            plans = {graph: file.read_bytes() for graph, file in files.items()}
        backend = cls(name, manifest, plans, trt, CudaRuntime())
        if manifest.weights and manifest.weights.sha256 != index["weights_sha256"]:
            return backend.refitted(Deployment.read(folder))
        return backend

    def refitted(self, deployment: Deployment) -> Self:
        """Return a second set of engines, with the weights of ``deployment``; this one runs on untouched.

        Raises:
            UserError: if an engine cannot be refitted, or a weight would keep its old value.
        """
        other = type(self)(self._kind, deployment.manifest, self._plans, self._trt, self._cuda.beside())
        with materialised(deployment.graphs, deployment.weights) as graphs:
            for graph in deployment.graphs:
                other._refit(graph, graphs / f"{graph}.onnx")
        return other

    def put(self, array: Array) -> Value:
        buffer = self._buffer(array.dtype, array.shape)
        self._cuda.upload(array, buffer.pointer)
        return buffer

    def get(self, value: Value) -> Array:
        array = np.empty(value.shape, value.dtype)
        self._cuda.download(value.pointer, array)
        return array

    def run(self, graph: str, feeds: Mapping[str, Value]) -> dict[str, Value]:
        self._launch(graph, feeds)
        return self._outputs[graph]

    def integrate(self, start: Array, fixed: Mapping[str, Value], stepped: Sequence[Mapping[str, Value]]) -> Array:
        """Integrate the flow (`Backend.integrate`). Captured once for each set of buffers, then launched with one
        call."""
        if any("step_noise" in inputs for inputs in stepped):  # in other buffers every time
            return super().integrate(start, fixed, stepped)
        read = [value for inputs in (fixed, *stepped) for value in inputs.values()]
        key = tuple(value.pointer for value in read)
        if key not in self._loops:
            executable, actions = self._capture(fixed, stepped)
            self._loops[key] = executable, actions, read  # kept, so that their addresses stay theirs
        executable, actions, _ = self._loops[key]
        self._cuda.upload(start, actions.pointer)
        self._cuda.launch(executable)
        return self.get(actions)

    def _capture(self, fixed: Mapping[str, Value], stepped: Sequence[Mapping[str, Value]]) -> tuple[Any, DeviceBuffer]:
        info = self.manifest.graphs["step"].inputs["actions"]
        actions = self._buffer(numpy_dtype(info.dtype), info.shape)
        following = self._outputs["step"]["next_actions"]

        def loop() -> None:
            for inputs in stepped:
                self._launch("step", {"actions": actions, **fixed, **inputs})
                self._cuda.copy(following.pointer, actions.pointer, actions.size)

        loop()  # the first run of an engine may allocate, which a capture forbids
        self._cuda.wait()
        self._cuda.begin_capture()
        loop()
        return self._cuda.end_capture(), actions

    def _launch(self, graph: str, feeds: Mapping[str, Value]) -> None:
        context = self._contexts[graph]
        for name, buffer in {**feeds, **self._outputs[graph]}.items():
            context.set_tensor_address(name, buffer.pointer)
        if not context.execute_async_v3(self._cuda.stream.value or 0):
            raise UserError(f"{self.name}: graph {graph!r} did not run")

    def _refit(self, graph: str, file: Path) -> None:
        refitter = self._trt.Refitter(self._engines[graph], self._logger)
        parser = self._trt.OnnxParserRefitter(refitter, self._logger)
        if not parser.refit_from_file(str(file)):
            raise UserError(f"{self.name}: graph {graph!r} cannot take new weights; build its engine anew")
        missing = refitter.get_missing_weights()
        if missing:
            raise UserError(f"{self.name}: graph {graph!r} would keep old weights {list(missing)[:3]}; build it anew")
        if not refitter.refit_cuda_engine():
            raise UserError(f"{self.name}: graph {graph!r} did not take its new weights; build its engine anew")

    def _buffer(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> DeviceBuffer:
        """Device memory that is used again after its buffer is released: allocating is slow."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        free = self._free[size]
        buffer = DeviceBuffer(free.pop() if free else self._cuda.allocate(size), dtype, shape)
        weakref.finalize(buffer, free.append, buffer.pointer)
        return buffer
