"""Latency of a deployed policy, part by part, with the warm-up apart."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deploy_trt.runtime.policy import DeployedPolicy
from deploy_trt.runtime.weights import numpy_dtype
from vla_rl.core.types import Observation

PERCENTILES = (50, 90, 99)
_WARM_UP_CALLS = 20


@dataclass(frozen=True)
class CallTimes:
    """Of one part. ``first_ms``: the very first call; percentiles and the smallest are of the calls after warm-up."""

    first_ms: float
    min_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float


def time_calls(call: Callable[[], object], calls: int = 300) -> CallTimes:
    """Time calls one by one."""
    spent_ms = []
    for _ in range(_WARM_UP_CALLS + calls):
        started_s = time.perf_counter()
        call()
        spent_ms.append(1e3 * (time.perf_counter() - started_s))
    steady = spent_ms[_WARM_UP_CALLS:]
    return CallTimes(spent_ms[0], min(steady), *(float(np.percentile(steady, p)) for p in PERCENTILES))


def benchmark_policy(policy: DeployedPolicy, observation: Observation) -> dict[str, CallTimes]:
    """Times of a whole chunk and of each graph of a flow policy."""
    program, manifest = policy.program, policy.manifest
    backend = program.backend
    parts = {"chunk": time_calls(lambda: policy.infer(observation))}
    parts["inputs"] = time_calls(lambda: policy.inputs(observation))
    if "prefix" not in manifest.graphs:
        return parts
    features = {name: backend.put(array) for name, array in policy.inputs(observation).items()}
    taken = manifest.graphs["prefix"].inputs
    if "indicator" in taken:
        features["indicator"] = backend.put(np.zeros(1, np.int64))
    prefix = {name: backend.put(backend.get(value).copy()) for name, value in backend.run("prefix", features).items()}
    parts["prefix"] = time_calls(lambda: backend.run("prefix", features))
    of_step: dict[str, Any] = {}
    for name, info in manifest.graphs["step"].inputs.items():
        of_step[name] = prefix[name] if name in prefix else backend.put(np.zeros(info.shape, numpy_dtype(info.dtype)))
    parts["step"] = time_calls(lambda: backend.run("step", of_step))
    return parts
