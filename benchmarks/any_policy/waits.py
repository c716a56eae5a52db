"""How often a robot waits for a base policy that is slow and in another process."""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.any_policy.serving import acted_ticks, in_process_serving
from benchmarks.deploy_choice import random_policy, random_selector
from vla_rl.acting.policy_folder import PolicyFolder
from vla_rl.core.types import ActionChunk, Float32Array, Observation, Source
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.checkpoint import save_policy
from vla_rl.policies.proxy import ProxiedPolicy, ProxyConfig

DELAY_S = 0.08
RATES_HZ = (20, 50)  # that of the default task, and a faster one
_EXECUTED = 6  # actions of a chunk, as in practice


class Delayed:
    """The policy of `configs/alone.yaml` with random weights, which takes 80 ms more than it needs."""

    version = 0

    def __init__(self) -> None:
        model, _ = random_policy()
        self._policy = model.acting()
        self.spec, self.horizon, self.statistics = model.spec, model.horizon, model.statistics

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        self._policy.reset(seed)

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan, later."""
        time.sleep(DELAY_S)
        chunk: ActionChunk = self._policy.infer(observation, committed)
        return chunk


def measure(ticks: int) -> list[dict[str, Any]]:
    """Let an improved policy act in real time: the base policy in another process, residual and critic here.

    Args:
        ticks: Number of control ticks at each rate.

    Returns:
        For each rate, ``first_plan_ticks`` at rest before the first plan; after them ``ticks``, those that were lost
        (the deadline passed without a command) or held (no action of a plan was there), and their sum ``waits``.
    """
    own, (_, learning) = Delayed(), random_policy()
    name = f"{__name__}:{Delayed.__name__}"
    served = PolicyFolder(Path(), own.spec, own.horizon, (), 0, name=name)
    with in_process_serving(served) as url, tempfile.TemporaryDirectory() as scratch:
        model = ProxiedPolicy(ProxyConfig(base=url), own.spec, own.statistics)
        save_policy(Path(scratch, "policy"), model, random_selector(model, learning, draws=8), {})
        return [_acted(Path(scratch), ticks, rate) for rate in RATES_HZ]


def _acted(folder: Path, ticks: int, rate: int) -> dict[str, Any]:
    settings = {"robot.duration_s": ticks / rate + 1, "robot.control_hz": rate, "execution.strategy": "naive"}
    store = folder / f"at_{rate}_hz"
    lost = acted_ticks(folder / "policy", {**settings, "execution.execute_ticks": _EXECUTED}, store)["lost_ticks"]
    source = next(iter(EpisodeStore(store))).source
    first = int(np.argmax(source == Source.POLICY))
    held = int((source[first:] == Source.HOLD).sum())
    counts = {"ticks": len(source) - first, "lost_ticks": lost, "held_ticks": held, "waits": lost + held}
    return {"hz": rate, "first_plan_ticks": first, **counts}
