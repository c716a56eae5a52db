"""What an improved policy computes beside its base policy: features of the proxy, then one decision."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.any_policy.waits import Prompt
from benchmarks.deploy_choice import random_policy, random_selector
from benchmarks.timing import perturb
from deploy_trt.export import export_policy
from deploy_trt.export.deployment import random_observations
from deploy_trt.runtime import load_deployed
from vla_rl.policies.base import flat_features
from vla_rl.policies.checkpoint import save_policy
from vla_rl.policies.proxy import ProxiedPolicy, ProxyConfig

CANDIDATES = 8


def measure(count: int) -> dict[str, Any]:
    """Time proxy and decision on one thread, in torch and in the exported graphs, in turns.

    Args:
        count: Number of observations.

    Returns:
        Median CPU milliseconds, and the largest difference of values and executed actions between torch and the graphs.
    """
    torch.set_num_threads(1)
    own, (_, learning) = Prompt(), random_policy()
    name = f"{Prompt.__module__}:{Prompt.__name__}"
    model = ProxiedPolicy(ProxyConfig(base=name), own.spec, own.statistics)
    perturb(model, 0)
    selector = random_selector(model, learning, CANDIDATES)
    with tempfile.TemporaryDirectory() as scratch:
        policy, deployment = Path(scratch, "policy"), Path(scratch, "deployment")
        save_policy(policy, model, selector, {})
        export_policy(policy, deployment)
        deployed = load_deployed(deployment, require="ort-cpu")
    program = deployed.program
    acting: Any = model.eval().acting()
    horizon, size = model.horizon, model.spec.action_dim
    free, rng, gaps = np.ones(horizon, np.float32), np.random.default_rng(0), [0.0]
    spent_ms: dict[str, list[float]] = {}

    def timed(part: str, work: Callable[..., Any], *arguments: Any) -> Any:
        started_s = time.thread_time()
        found = work(*arguments)
        spent_ms.setdefault(part, []).append(1e3 * (time.thread_time() - started_s))
        return found

    observations = random_observations(model.spec, model.statistics.state)
    with torch.no_grad():
        for index in range(count):
            seen = observations[index % len(observations)]
            inputs, feeds = acting._inputs(seen), deployed.inputs(seen)
            noise = rng.standard_normal((selector.noise_rows(horizon), size), np.float32)
            drawn = np.tile(rng.standard_normal((1, horizon, size), np.float32), (1 + CANDIDATES, 1, 1))
            tensors = [torch.from_numpy(array)[None] for array in (noise, drawn)]
            tick, all_free = torch.tensor([float(index)]), torch.from_numpy(free)
            tokens = timed("torch_encode_ms", model.features, *inputs)
            of_torch = (model, flat_features(*tokens), tick, *tensors, all_free, 0)
            candidates, values = timed("torch_decide_ms", selector.judged, *of_torch)
            features = timed("ort_encode_ms", program.sample, feeds, drawn).features
            chosen = timed("ort_decide_ms", program.select, features, index, noise, drawn, free, 0)
            pairs = [(chosen.values, values[0]), (chosen.actions, candidates[0, int(values.argmax())])]
            gaps += [float(np.abs(ours - theirs.numpy()).max()) for ours, theirs in pairs]
    times = {part: statistics.median(each) for part, each in spent_ms.items()}
    return {"decisions": count, "candidates": CANDIDATES, **times, "max_difference": max(gaps)}
