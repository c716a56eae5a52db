"""How often a robot waits for a base policy that is slow and in another process."""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.any_policy.serving import acted_ticks, served_policy
from benchmarks.deploy_choice import random_policy, random_selector
from vla_rl.core.types import ActionChunk, Float32Array, Observation, Source
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.checkpoint import save_policy
from vla_rl.policies.proxy import ProxiedPolicy, ProxyConfig

DELAY_S = 0.08
_HERE, _THERE = "same process, no delay", "another process, 80 ms late"
ROWS = ((_THERE, 20), (_HERE, 20), (_THERE, 50))
"""Place of the base policy, and control rate in Hz. The default task runs at 20 Hz."""
_EXECUTED = 6  # actions of a chunk, as in practice


class Prompt:
    """The policy of `configs/imagined.yaml` with random weights."""

    version = 0

    def __init__(self) -> None:
        model, _ = random_policy()
        self._policy = model.acting()
        self.spec, self.horizon, self.statistics = model.spec, model.horizon, model.statistics

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        self._policy.reset(seed)

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan."""
        chunk: ActionChunk = self._policy.infer(observation, committed)
        return chunk


class Delayed(Prompt):
    """Plan as `Prompt`, 80 ms late."""

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan, later."""
        time.sleep(DELAY_S)
        return super().infer(observation, committed)


def measure(ticks: int) -> list[dict[str, Any]]:
    """Let an improved policy act in real time: the base policy, and its residual and critic beside the robot.

    Args:
        ticks: Number of control ticks of each row.

    Returns:
        For each of `ROWS`, the ticks at rest before the first plan (``first_plan_ticks``) and those after it. Of
        these, a held one had no action of a plan, and a lost one no command. ``waits`` is their sum.
    """
    own = Prompt()
    with served_policy(f"{__name__}:{Delayed.__name__}") as url, tempfile.TemporaryDirectory() as scratch:
        bases = {_THERE: url, _HERE: f"{__name__}:{Prompt.__name__}"}
        return [_acted(own, bases[where], where, rate, ticks, Path(scratch)) for where, rate in ROWS]


def _acted(own: Prompt, base: str, where: str, rate: int, ticks: int, scratch: Path) -> dict[str, Any]:
    model, (_, learning) = ProxiedPolicy(ProxyConfig(base=base), own.spec, own.statistics), random_policy()
    folder = scratch / f"{where} {rate}"
    save_policy(folder / "policy", model, random_selector(model, learning, draws=8), {})
    settings = {"robot.duration_s": ticks / rate + 1, "robot.control_hz": rate, "execution.strategy": "naive"}
    settings |= {"execution.execute_ticks": _EXECUTED}
    acted_ticks(folder / "policy", settings, folder / "episodes")
    episode = next(iter(EpisodeStore(folder / "episodes")))
    first = int(np.argmax(episode.source == Source.POLICY))
    held = int((episode.source[first:] == Source.HOLD).sum())
    # By the record: the log's number includes the time after the end in which the recorder puts it together.
    tick = episode.extras["tick"][first:]
    lost = int(tick[-1] - tick[0]) + 1 - len(tick)
    counts = {"ticks": len(tick), "lost_ticks": lost, "held_ticks": held, "waits": lost + held}
    return {"base": where, "hz": rate, "first_plan_ticks": first, **counts}
