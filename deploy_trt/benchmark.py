"""How long a deployed policy takes, part by part, with the warm-up apart and the roofline of the machine beside it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deploy_trt.runtime.policy import DeployedPolicy
from deploy_trt.runtime.weights import layout, numpy_dtype
from vla_rl.core.types import Observation

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class CallTimes:
    """Of one part. ``first_ms``: the very first call; percentiles and the smallest are of the calls after warm-up."""

    first_ms: float
    min_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float


def time_calls(call: Callable[[], object], calls: int, warm_up: int = 20) -> CallTimes:
    """Time calls one by one."""
    spent_ms = []
    for _ in range(warm_up + calls):
        started_s = time.perf_counter()
        call()
        spent_ms.append(1e3 * (time.perf_counter() - started_s))
    steady = spent_ms[warm_up:]
    return CallTimes(spent_ms[0], min(steady), *(float(np.percentile(steady, p)) for p in PERCENTILES))


def benchmark_policy(policy: DeployedPolicy, observation: Observation, calls: int = 300) -> dict[str, CallTimes]:
    """Times of a whole chunk and of each graph of a flow policy."""
    program, manifest = policy.program, policy.manifest
    backend = program.backend
    parts = {"chunk": time_calls(lambda: policy.infer(observation), calls)}
    parts["inputs"] = time_calls(lambda: policy.inputs(observation), calls)
    if "prefix" not in manifest.graphs:
        return parts
    features = {name: backend.put(array) for name, array in policy.inputs(observation).items()}
    taken = manifest.graphs["prefix"].inputs
    if "indicator" in taken:
        features["indicator"] = backend.put(np.zeros(1, np.int64))
    prefix = {name: backend.put(backend.get(value).copy()) for name, value in backend.run("prefix", features).items()}
    parts["prefix"] = time_calls(lambda: backend.run("prefix", features), calls)
    of_step: dict[str, Any] = {}
    for name, info in manifest.graphs["step"].inputs.items():
        of_step[name] = prefix[name] if name in prefix else backend.put(np.zeros(info.shape, numpy_dtype(info.dtype)))
    parts["step"] = time_calls(lambda: backend.run("step", of_step), calls)
    return parts


def roofline(policy: DeployedPolicy, weights: bytes, bandwidth_gb_s: float) -> float:
    """The least a chunk can take, ms: every weight read from memory once for the prefix and once for each step.

    Args:
        policy: its manifest says how many steps.
        weights: content of the weights file.
        bandwidth_gb_s: of the memory, measured (`memory_bandwidth`). Small policies live in the cache and beat it.
    """
    sizes = {name: size for name, (_, _, _, size) in layout(weights).items()}
    of_steps = sum(size for name, size in sizes.items() if ".layers." in name or "action_" in name)
    read = sum(sizes.values()) + max(policy.manifest.sampler.steps - 1, 0) * of_steps
    return 1e3 * read / (bandwidth_gb_s * 1e9)


def memory_bandwidth(megabytes: int = 256) -> float:
    """GB/s that one core reads from memory: the best of a few sums over an array much larger than the caches."""
    array = np.ones(megabytes * 2**20 // 8)
    best_s = min(_timed(array.sum) for _ in range(5))
    return array.nbytes / best_s / 1e9


def _timed(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s
