"""TensorRT and the CUDA runtime on the host, as far as the backend uses them: engines are ONNX Runtime sessions, device
memory is host memory, and captured launches are replayed. What it cannot show is TensorRT itself.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from deploy_trt.runtime.manifest import WEIGHTS_LOCATION, GraphInfo
from deploy_trt.runtime.ort import OrtBackend
from deploy_trt.runtime.weights import numpy_dtype

__version__ = "10.16.2"


class Logger:
    ERROR = 1

    def __init__(self, _: int) -> None: ...


class FakeCuda:
    """The functions of libcudart that `CudaRuntime` calls."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.recording: list[Callable[[], None]] | None = None
        self.graphs: list[list[Callable[[], None]]] = []
        self.launches = 0

    def do(self, action: Callable[[], None]) -> None:
        if self.recording is None:
            action()
        else:
            self.recording.append(action)

    def cudaStreamCreateWithFlags(self, stream: Any, _: Any) -> int:
        stream._obj.value = 7
        return 0

    def cudaMalloc(self, pointer: Any, size: Any) -> int:
        buffer = ctypes.create_string_buffer(size.value)
        pointer._obj.value = ctypes.addressof(buffer)
        self.memory[pointer._obj.value] = buffer
        return 0

    def cudaMemcpyAsync(self, target: Any, source: Any, size: Any, _: Any, __: Any) -> int:
        self.do(lambda: ctypes.memmove(target.value, source.value, size.value) and None)
        return 0

    def cudaStreamSynchronize(self, _: Any) -> int:
        return 0

    def cudaStreamBeginCapture(self, _: Any, __: Any) -> int:
        self.recording = []
        return 0

    def cudaStreamEndCapture(self, _: Any, graph: Any) -> int:
        assert self.recording is not None
        self.graphs.append(self.recording)
        graph._obj.value, self.recording = len(self.graphs), None
        return 0

    def cudaGraphInstantiateWithFlags(self, executable: Any, graph: Any, _: Any) -> int:
        executable._obj.value = graph.value
        return 0

    def cudaGraphDestroy(self, _: Any) -> int:
        return 0

    def cudaGraphLaunch(self, executable: Any, _: Any) -> int:
        self.launches += 1
        for action in self.graphs[executable.value - 1]:
            action()
        return 0


CUDA = FakeCuda()
INFOS: dict[bytes, GraphInfo] = {}  # plan -> shapes, which a real engine knows
MISSING: list[str] = []  # what `get_missing_weights` answers


class Engine:
    def __init__(self, graph: bytes, weights: bytes, info: GraphInfo) -> None:
        self.info = info
        self.load(graph, weights)

    def load(self, graph: bytes, weights: bytes) -> None:
        self.session = OrtBackend("ort-cpu", {"graph": graph}, weights).sessions["graph"]

    def create_execution_context(self) -> "Context":
        return Context(self)


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.addresses = engine, dict[str, int]()

    def set_tensor_address(self, name: str, pointer: int) -> None:
        assert name in self.engine.info.inputs or name in self.engine.info.outputs, name
        self.addresses[name] = pointer

    def execute_async_v3(self, _: int) -> bool:
        addresses = dict(self.addresses)
        CUDA.do(lambda: self._execute(addresses))
        return True

    def _execute(self, addresses: dict[str, int]) -> None:
        feeds = {name: _view(addresses[name], info) for name, info in self.engine.info.inputs.items()}
        names = list(self.engine.info.outputs)
        for name, array in zip(names, self.engine.session.run(names, feeds), strict=True):
            _view(addresses[name], self.engine.info.outputs[name])[...] = array


class Runtime:
    def __init__(self, _: Logger) -> None: ...

    def deserialize_cuda_engine(self, plan: bytes) -> Engine | None:
        length = int.from_bytes(plan[:8], "little")
        return Engine(plan[8 : 8 + length], plan[8 + length :], INFOS[plan]) if plan in INFOS else None


class Refitter:
    def __init__(self, engine: Engine, _: Logger) -> None:
        self.engine = engine
        self.new: tuple[bytes, bytes] | None = None

    def get_missing_weights(self) -> list[str]:
        return MISSING

    def refit_cuda_engine(self) -> bool:
        assert self.new is not None
        self.engine.load(*self.new)
        return True


class OnnxParserRefitter:
    def __init__(self, refitter: Refitter, _: Logger) -> None:
        self.refitter = refitter

    def refit_from_file(self, file: str) -> bool:
        self.refitter.new = Path(file).read_bytes(), (Path(file).parent / WEIGHTS_LOCATION).read_bytes()
        return True


def plan(graph: bytes, weights: bytes, info: GraphInfo) -> bytes:
    """An engine."""
    content = len(graph).to_bytes(8, "little") + graph + weights
    INFOS[content] = info
    return content


def _view(pointer: int, info: Any) -> np.ndarray:
    dtype = numpy_dtype(info.dtype)
    size = int(np.prod(info.shape, dtype=np.int64)) * dtype.itemsize
    buffer = (ctypes.c_char * size).from_address(pointer)
    return np.frombuffer(buffer, dtype).reshape(info.shape)
