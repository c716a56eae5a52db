"""The few calls of the CUDA runtime that engines need, through ctypes: memory, a stream, and graphs of launches.

`CudaRuntime` owns one stream; it belongs to one thread.
"""

import ctypes
import ctypes.util
from typing import Any

import numpy as np

from deploy_trt.runtime.weights import Array
from vla_rl.core.errors import UserError

_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3
_CAPTURE_THREAD_LOCAL = 1
_LIBRARIES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")


class CudaRuntime:
    """Memory and launches on one stream, by a CUDA runtime, else the system's; UserError if there is none."""

    def __init__(self, library: Any = None) -> None:
        self._library = library or _load()
        stream = ctypes.c_void_p()
        self._call("cudaStreamCreateWithFlags", ctypes.byref(stream), ctypes.c_uint(1))
        self.stream = stream

    def beside(self) -> "CudaRuntime":
        """Another stream of the same device."""
        return CudaRuntime(self._library)

    def allocate(self, size: int) -> int:
        """Device memory of ``size`` bytes; its address."""
        pointer = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(max(size, 1)))
        return int(pointer.value or 0)

    def upload(self, array: Array, pointer: int) -> None:
        """Copy an array to the device, in the order of the stream; returns when the array may change."""
        contiguous = np.ascontiguousarray(array)
        self._copy(pointer, contiguous.ctypes.data, contiguous.nbytes, _TO_DEVICE)
        self.wait()

    def download(self, pointer: int, array: Array) -> None:
        """Copy from the device into an array, and wait for it."""
        self._copy(array.ctypes.data, pointer, array.nbytes, _TO_HOST)
        self.wait()

    def copy(self, source: int, target: int, size: int) -> None:
        """Copy on the device, in the order of the stream."""
        self._copy(target, source, size, _ON_DEVICE)

    def wait(self) -> None:
        """Until the stream has done everything."""
        self._call("cudaStreamSynchronize", self.stream)

    def begin_capture(self) -> None:
        """From now on launches are noted, not done."""
        self._call("cudaStreamBeginCapture", self.stream, ctypes.c_int(_CAPTURE_THREAD_LOCAL))

    def end_capture(self) -> ctypes.c_void_p:
        """What was noted since `begin_capture`, ready for `launch`."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cudaStreamEndCapture", self.stream, ctypes.byref(graph))
        self._call("cudaGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        self._call("cudaGraphDestroy", graph)
        return executable

    def launch(self, executable: ctypes.c_void_p) -> None:
        """Do what was captured, with one call."""
        self._call("cudaGraphLaunch", executable, self.stream)

    def _copy(self, target: int, source: int, size: int, kind: int) -> None:
        self._call(
            "cudaMemcpyAsync",
            ctypes.c_void_p(target),
            ctypes.c_void_p(source),
            ctypes.c_size_t(size),
            ctypes.c_int(kind),
            self.stream,
        )

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise UserError(f"CUDA: {name} failed with error {code}")


def _load() -> Any:
    for name in (*_LIBRARIES, ctypes.util.find_library("cudart")):
        if name:
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
    raise UserError(f"no CUDA runtime library found ({', '.join(_LIBRARIES)}); JetPack and CUDA toolkits bring it")
