"""What this computer can run graphs with. Each library is tried in a process of its own: one without its driver may not
raise but crash.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from typing import Literal

BackendName = Literal["trt", "trt-rtx", "ort-cuda", "ort-cpu"]
ORDER: tuple[BackendName, ...] = ("trt", "trt-rtx", "ort-cuda", "ort-cpu")
MODULES = {"trt": "tensorrt", "trt-rtx": "tensorrt_rtx"}
_TIMEOUT_S = 60
_TRT = """
import ctypes, json, {module} as trt
runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
driver = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
    raise RuntimeError("there is no GPU")
device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
driver.cuDeviceGet(ctypes.byref(device), 0)
driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
print(json.dumps({{"version": trt.__version__, "compute_capability": major.value * 10 + minor.value}}))
"""
_ORT = """
import json, onnxruntime as ort
if {provider!r} not in ort.get_available_providers():
    raise RuntimeError("this build of ONNX Runtime has only " + ", ".join(ort.get_available_providers()))
print(json.dumps({{"version": ort.__version__, "compute_capability": 0}}))
"""
_SCRIPTS = {
    "trt": _TRT.format(module="tensorrt"),
    "trt-rtx": _TRT.format(module="tensorrt_rtx"),
    "ort-cuda": _ORT.format(provider="CUDAExecutionProvider"),
    "ort-cpu": _ORT.format(provider="CPUExecutionProvider"),
}


@dataclass(frozen=True)
class Probe:
    """Whether a backend works here, in which version of its library, or why not, on one line.

    ``compute_capability`` belongs to the first GPU, such as 87 for an Orin. It is 0 for a backend without a GPU.
    """

    works: bool
    version: str = ""
    compute_capability: int = 0
    reason: str = ""


@cache
def probe(backend: BackendName) -> Probe:
    """Try a backend, once per process."""
    return run_probe(_SCRIPTS[backend])


def run_probe(script: str) -> Probe:
    """Run a script that prints what it found as JSON, and survive whatever it does."""
    try:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Probe(False, reason=f"it did not answer within {_TIMEOUT_S} s")
    if done.returncode < 0:
        return Probe(False, reason=f"it crashed (signal {-done.returncode}); a driver is missing or too old")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return Probe(False, reason=lines[-1][:200])
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Probe(True, found["version"], found["compute_capability"])
