"""What is asked of a policy node beside a simulated robot: episodes, takeovers, a soak, a robot that is killed.

Runs in a process with ROS, see `ros2_rig`; faults at random moments are `benchmarks.campaign`'s.

``python -m benchmarks.ros2_trials JSON``, with the fields of `TrialsConfig`; the last line of its output is
JSON. Reactions are counted in the recorded episodes, on the robot's own clock, so they hold on a busy machine too.
"""

import json
import math
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robot_io.limits import RobotLimits
from tests.fakes.ros2_rig import Rig
from vla_rl.acting.expert_policy import EXPERT
from vla_rl.core.config import load_config
from vla_rl.core.config_files import CONFIGS
from vla_rl.core.errors import UserError
from vla_rl.core.types import Episode, Source
from vla_rl.data.store import EpisodeStore

TASK = "insert the peg into the socket"  # of the default environment; a policy hears nothing else of it
TICK_MS = 50.0
HOLD_TICKS = 20
EXECUTION = (f"execution.hold_ticks={HOLD_TICKS}", "execution.execute_ticks=4")
LIMITS = load_config(RobotLimits, CONFIGS / "robots" / "tabletop.yaml")
# On the machine's clock other processes may hold everything up: readings are allowed to grow older.
REALTIME_AGE_MS = 1000.0
_SOAK_HZ = 50.0
_BETWEEN_ATTEMPTS_MS = 150.0


@dataclass(frozen=True)
class TrialsConfig:
    """What to do.

    Attributes:
        folder: for logs and episodes.
        policy: parameter ``policy`` of the node.
        env: gymnasium id, with the module that registers it.
        env_options: its arguments.
        robot: parameters of the simulated robot, such as its time.
        node: parameters of the policy node.
        lockstep: the world waits for commands, on a time of its own; otherwise it runs with the machine.
        episodes: attempts to run first.
        seed: of the first one.
        takeovers: takeovers to try.
        soak_s: how long to run the loop at 50 Hz, on the machine's clock.
        kills: how often the robot's process is killed in an attempt.
    """

    folder: str
    policy: str = "expert:sim:vla_rl/PegInsert-v0?difficulty=0.3"
    env: str = "sim:vla_rl/PegInsert-v0"
    env_options: dict[str, Any] = field(default_factory=lambda: {"difficulty": 0.3})
    robot: dict[str, Any] = field(default_factory=dict)
    node: dict[str, Any] = field(default_factory=dict)
    lockstep: bool = True
    episodes: int = 0
    seed: int = 0
    takeovers: int = 0
    soak_s: float = 0.0
    kills: int = 0


class Trials:
    """Trials on one rig. See the module."""

    def __init__(self, config: TrialsConfig, rig: Rig) -> None:
        self._config, self._rig = config, rig
        self._store = EpisodeStore(Path(config.folder) / "episodes")
        self._random = random.Random(config.seed)

    def run(self) -> dict[str, Any]:
        """Everything that the config asks for."""
        states = [self._rig.state()]
        for name in ("configure", "activate"):
            if not self._rig.transition(name):
                raise UserError(f"the node refused to {name}; see its log in {self._config.folder}")
            states.append(self._rig.state())
        result: dict[str, Any] = {"episodes": self.episodes()}
        result["latency_ms"] = self._rig.robot_latency_ms()
        result["loop"] = self._rig.status("attempts")[2]
        result["takeovers"] = [self.takeover() for _ in range(self._config.takeovers)]
        result["kills"] = [self.kill() for _ in range(self._config.kills)]
        if self._config.soak_s:
            result["soak"] = self.soak()
        for name in ("deactivate", "cleanup", "unconfigured_shutdown"):
            self._rig.transition(name)
            states.append(self._rig.state())
        return {**result, "states": states}

    def episodes(self) -> dict[str, Any]:
        """Attempts from the first to the last, and how they went."""
        count = self._config.episodes
        self._rig.wait(lambda: len(self._store) >= count, 30.0 + 20.0 * count, f"{count} episodes")
        headers = [self._store.read_header(name) for name in self._store.ids()[:count]]
        return {
            "episodes": count,
            "successes": sum(header.success is True for header in headers),
            "steps": sum(header.length for header in headers),
        }

    def takeover(self) -> dict[str, Any]:
        """A person takes over in mid-chunk, moves the robot, gives it back, and ends the attempt."""
        rig, before = self._rig, len(self._store)
        # Early in an attempt: one that is nearly done would end before the person is there.
        rig.wait(lambda: len(self._store) > before, 60.0, "the end of the present attempt")
        known = len(self._store)
        self._act_for(self._random.randint(12, 24))
        first = _tick(rig.take_over(True))
        until = self._ticks() + self._random.randint(20, 40)
        while (tick := self._ticks()) < until:
            rig.move([0.004 * math.sin(0.3 * tick)] * 8)
            time.sleep(0.001)
        after = _tick(rig.take_over(False))
        self._act_for(10)
        rig.trigger("failure")
        self._rig.wait(lambda: len(self._store) > known, 30.0, "the episode of the takeover")
        episode_id = self._store.ids()[known]
        episode = self._store.read(episode_id)
        human = np.zeros(len(episode), bool)
        human[first:after] = True
        arms = [dim for dim in range(episode.action_sent.shape[1]) if dim not in LIMITS.discrete_dims]
        return {
            "episode_id": episode_id,
            "first_human_tick": first,
            "first_policy_tick": after,
            "exact": bool(((episode.source == Source.HUMAN) == human).all()),
            "largest_jump": float(np.abs(np.diff(episode.action_sent[:, arms], axis=0)).max()),
            "allowed_jump": LIMITS.max_velocity[0] / episode.control_hz + 1e-6,
        }

    def soak(self) -> dict[str, Any]:
        """The loop for a long time: the periods between commands as they arrive here, and the ticks that it skipped."""
        rig = self._rig
        self._act_for(100)  # the first attempt of a process is slower
        before, arrivals_s = self._loop(), rig.record_commands()
        rig.sleep(self._config.soak_s)
        after, rig.recording = self._loop(), False
        periods_ms = np.diff(np.asarray(arrivals_s)) * 1e3
        periods_ms = periods_ms[periods_ms < _BETWEEN_ATTEMPTS_MS]
        return {
            "minutes": self._config.soak_s / 60.0,
            "ticks": after["ticks"] - before["ticks"],
            "missed": after["missed ticks"] - before["missed ticks"],
            "period_p50_ms": float(np.percentile(periods_ms, 50)),
            "period_p99_ms": float(np.percentile(periods_ms, 99)),
            "stopped": self._stop_reason(),
        }

    def _loop(self) -> dict[str, int]:
        values = self._rig.status("attempts")[2]
        return {name: int(values[name]) for name in ("ticks", "missed ticks")}

    def kill(self) -> dict[str, Any]:
        """The robot's process is killed: how long the node took to stop, and what made it go on."""
        rig = self._rig
        self._act_for(self._random.randint(8, 30))
        rig.robot.stop(signal.SIGKILL)
        why = rig.wait(self._stop_reason, 60.0, "a stop after the robot was killed")
        said = "; ".join(rig.status(name)[1] for name in ("streams", "commands", "policy", "gate"))
        stored = self._store.ids()
        episode = self._store.read(stored[-1])
        refused = not rig.trigger("start")[0]
        rig.start_robot()
        rig.wait(lambda: rig.status("streams")[0] == 0, 90.0, "the robot's return")
        rig.wait(lambda: rig.status("stop inputs")[0] == 0, 60.0, "the end of the dead driver")
        ticks = self._ticks()
        time.sleep(0.3)
        still = self._ticks() == ticks and self._stop_reason() == why and len(self._store) == len(stored)
        rearmed, _ = rig.trigger("rearm")
        self._act_for(5)
        reaction, declared = _reaction_ms(episode), REALTIME_AGE_MS + LIMITS.stop_after_ms + 3 * TICK_MS
        moved = bool(np.abs(np.diff(episode.action_sent[-3:], axis=0)).max() > 0)
        return {
            "reaction_ms": reaction,
            "declared_ms": declared,
            "said": f"{why}; {said}",
            "start_refused": refused,
            "still_until_rearmed": still,
            "rearmed": rearmed,
            "moved_after_fault": moved,
            "passed": reaction <= declared and refused and still and rearmed and not moved,
        }

    def _act_for(self, ticks: int) -> None:
        """Wait until the policy has acted for so many ticks of one attempt."""
        begun = self._ticks()
        self._rig.wait(lambda: self._ticks() >= begun + ticks, 60.0, f"{ticks} ticks of the loop")

    def _ticks(self) -> int:
        return int(self._rig.status("attempts")[2].get("ticks", 0))

    def _stop_reason(self) -> str:
        level, message, _ = self._rig.status("attempts")
        return message if level == 2 else ""


def _reaction_ms(episode: Episode) -> float:
    """From the last reading of a recorded attempt to its end, in the robot's time."""
    captured = np.stack([episode.extras[name] for name in episode.extras if name.startswith("captured_ns.")])
    onset = int(np.flatnonzero((np.diff(captured, axis=1) > 0).all(axis=0))[-1]) + 1
    return (len(episode) - 1 - onset) * TICK_MS


def make_rig(config: TrialsConfig) -> Rig:
    """The two nodes, connected as the config says."""
    node = {
        "policy": config.policy,
        "limits": str(CONFIGS / "robots" / "tabletop.yaml"),
        "overrides": list(EXECUTION),
        "store": f"{config.folder}/episodes",
        "seed": config.seed,
        "task": TASK,
        "use_sim_time": config.lockstep,
        "diagnostics_hz": 20.0,
        **config.node,
    }
    if config.lockstep:
        node["takeover_timeout_ms"] = 10_000.0  # of simulated time, which flies
    else:
        slow = [f"gate.{name}={REALTIME_AGE_MS}" for name in ("max_observation_age_ms", "max_gap_ms")]
        node["overrides"] = [*EXECUTION, *slow]
        node["stream_timeout_s"] = 60.0
    if config.soak_s:
        node["control_hz"], node["any_rate"], node["store"] = _SOAK_HZ, True, ""
    robot = {
        "env": config.env,
        "env_options": json.dumps(config.env_options),
        "seed": config.seed,
        "lockstep": config.lockstep,
        # The expert plans in no time; a real policy would be late in a world that runs faster than time. Not much
        # faster: the commands of a takeover come in the time of a person.
        "realtime_factor": 4.0 if config.lockstep and config.policy.startswith(EXPERT) else 1.0,
        **config.robot,
    }
    return Rig(Path(config.folder), node, robot)


def main() -> int:
    """Run the trials."""
    config = TrialsConfig(**json.loads(sys.argv[1]))
    with make_rig(config) as rig:
        result = Trials(config, rig).run()
    print(json.dumps(result))
    return 0


def _tick(answer: str) -> int:
    return int(answer.rpartition(" ")[2])


if __name__ == "__main__":
    sys.exit(main())
