"""What a tick costs the control process: executor and gate of ours, against the host path of lerobot's rollout loop.

They alternate in short blocks, so that a busy machine slows all of them. None includes inference, nor the robot's own
reading and writing. lerobot's path is its own code: observation processor, dataset frame, engine, interpolator,
dictionary of actions, action processor, locked robot. It has two engines. ``sync``, the default, is measured at ticks
at which the policy's queue holds an action. A thread fills the queue of ``rtc``. Neither has a gate; ours has the full
one, with velocity, acceleration and jerk limits.
"""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.cells import Cells
from robot_io.gate import GateConfig, SafetyGate
from robot_io.limits import RobotLimits
from vla_rl.core.config import load_config
from vla_rl.core.config_files import CONFIGS
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.execution.executor import Executor
from vla_rl.execution.plan import InlinePlanner
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.policies.corrector import FOLDER, ResidualCorrector

_JOINTS, _HORIZON, _EXECUTE = 6, 50, 25
_HZ = 50.0
_BLOCKS, _BLOCK_TICKS = 40, 250
_PIXELS = 64
_NAMES = [f"joint_{joint}.pos" for joint in range(_JOINTS)]
_FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (_JOINTS,), "names": _NAMES},
    "observation.images.front": {"dtype": "video", "shape": (_PIXELS, _PIXELS, 3), "names": None},
}
Tick = Callable[[int], None]


class _Chunks:
    """A policy that answers with chunks prepared beforehand, so that nothing but the executor is measured."""

    version = 0

    def __init__(self, low: Float32Array, high: Float32Array) -> None:
        phase = np.arange(4 * _HORIZON)[:, None] / 40 + np.arange(_JOINTS)
        self._path = ((low + high) / 2 + 0.05 * (high - low) * np.sin(phase)).astype(np.float32)

    def reset(self, seed: int) -> None:
        pass

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        del committed
        begin = observation.tick % (3 * _HORIZON)
        return ActionChunk(self._path[begin : begin + _HORIZON], observation.tick, 0, 0)


def measure(cells: Cells) -> None:
    """One cell: medians of both, and the median ratio over alternating blocks."""
    if "host" in cells:
        return
    limits = load_config(RobotLimits, CONFIGS / "robots" / "so101.yaml")
    light = GateConfig(low=limits.low, high=limits.high, max_velocity=limits.max_velocity)
    ours, ours_light = _our_tick(limits), _our_tick(light)
    rivals = _lerobot_tick(_QueueEngine()), _lerobot_tick(_RtcEngine())
    blocks = []
    for block in range(_BLOCKS + 1):
        ticks = range(block * _BLOCK_TICKS, (block + 1) * _BLOCK_TICKS)
        blocks.append([_times_us(tick, ticks) for tick in (ours, ours_light, *rivals)])
    times_us = np.array(blocks[1:])  # [blocks, 4, ticks]; the first one warms up
    medians = np.median(times_us, axis=2)
    full_us, light_us, queue_us, rtc_us = np.median(times_us, axis=(0, 2)).tolist()
    values = {
        "kind": "host",
        "tick_us_median": full_us,
        "tick_us_p99": float(np.percentile(times_us[:, 0], 99)),
        "tick_us_median_without_jerk_limits": light_us,
        "lerobot_us_median": queue_us,
        "lerobot_rtc_us_median": rtc_us,
        "tick_vs_lerobot": float(np.median(medians[:, 0] / medians[:, 2])),
        "tick_vs_lerobot_rtc": float(np.median(medians[:, 0] / medians[:, 3])),
        "ticks": times_us[:, 0].size,
        "joints": _JOINTS,
    }
    cells.write("host", values)


def measure_corrector(cells: Cells, policy: Path) -> None:
    """One cell: what the residual head of a2c2 adds to a tick, two cameras of the policy in ``policy`` included."""
    if "corrector" in cells:
        return
    corrector = ResidualCorrector.load(policy / FOLDER)
    spec, random = corrector.spec, np.random.default_rng(0)
    images = {camera: random.integers(0, 256, (*spec.image_size, 3), dtype=np.uint8) for camera in spec.cameras}
    state = corrector.weights["state.offset"].astype(np.float32)
    action = corrector.weights["action.offset"].astype(np.float32)
    observation = Observation(images, state, "go", 0)

    def tick(number: int) -> None:
        corrector.correct(observation, action, number % spec.horizon)

    times_us = _times_us(tick, range(_BLOCKS * _BLOCK_TICKS))[_BLOCK_TICKS:]  # the first block warms up
    medians = {
        "corrector_us_median": float(np.median(times_us)),
        "corrector_us_p99": float(np.percentile(times_us, 99)),
    }
    cells.write("corrector", {"kind": "corrector", **medians, "cameras": len(spec.cameras)})


def _times_us(tick: Tick, ticks: range) -> list[float]:
    times = []
    for number in ticks:
        start = time.perf_counter_ns()
        tick(number)
        times.append((time.perf_counter_ns() - start) * 1e-3)
    return times


def _our_tick(limits: GateConfig) -> Tick:
    """Executor and gate, from an observation to the command."""
    low, high = np.asarray(limits.low, np.float32), np.asarray(limits.high, np.float32)
    executor = Executor(InlinePlanner(_Chunks(low, high)), ExecutionConfig(execute_ticks=_EXECUTE))
    gate = SafetyGate(limits, _HZ)
    rest = ((low + high) / 2).astype(np.float32)
    executor.reset(0, rest)
    gate.reset(rest)
    images = {"front": np.zeros((_PIXELS, _PIXELS, 3), np.uint8)}
    state, period_ns = rest.copy(), round(1e9 / _HZ)

    def tick(number: int) -> None:
        now_ns = number * period_ns
        observation = Observation(images, state, "go", number, {"front": now_ns, "state": now_ns})
        proposal = executor.propose(observation, now_ns)
        verdict = gate.admit(proposal.action, now_ns, now_ns, proposal.planned_ns)
        executor.sent(verdict.commands[-1])

    return tick


class _RtcEngine:
    """lerobot's action queue of real-time chunking, used as its engine uses it."""

    def __init__(self) -> None:
        import torch
        from lerobot.policies.rtc.action_queue import ActionQueue
        from lerobot.policies.rtc.configuration_rtc import RTCConfig

        self._queue = ActionQueue(RTCConfig())
        self._chunk = torch.zeros(_HORIZON, _JOINTS)
        self._latest: dict[str, Any] = {}

    def notify_observation(self, observation: dict[str, Any]) -> None:
        self._latest["obs"] = observation

    def get_action(self, frame: dict[str, Any]) -> Any:
        del frame
        if self._queue.qsize() <= _EXECUTE:  # what its thread would do; a chunk is a copy of 300 numbers
            self._queue.merge(self._chunk, self._chunk, 0)
        return self._queue.get()


class _QueueEngine:
    """lerobot's default engine around an ACT policy whose queue always holds an action."""

    def __init__(self) -> None:
        import torch
        from lerobot.configs.types import FeatureType, PolicyFeature
        from lerobot.policies.act.configuration_act import ACTConfig
        from lerobot.policies.act.modeling_act import ACTPolicy
        from lerobot.policies.act.processor_act import make_act_pre_post_processors
        from lerobot.rollout.inference.sync import SyncInferenceEngine

        config = ACTConfig(
            input_features={
                "observation.state": PolicyFeature(FeatureType.STATE, (_JOINTS,)),
                "observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, _PIXELS, _PIXELS)),
            },
            output_features={"action": PolicyFeature(FeatureType.ACTION, (_JOINTS,))},
            pretrained_backbone_weights=None,
            chunk_size=_HORIZON,
            n_action_steps=_HORIZON,
            device="cpu",
        )
        images = {"mean": torch.zeros(3, 1, 1), "std": torch.ones(3, 1, 1)}
        vector = {"mean": torch.zeros(_JOINTS), "std": torch.ones(_JOINTS)}
        statistics_of = {"observation.state": vector, "observation.images.front": images, "action": vector}
        self._policy, self._action = ACTPolicy(config), torch.zeros(1, _JOINTS)
        features = {**_FEATURES, "action": {"dtype": "float32", "shape": (_JOINTS,), "names": _NAMES}}
        processors = make_act_pre_post_processors(config, statistics_of)
        self._engine = SyncInferenceEngine(self._policy, *processors, features, _NAMES, "go", "cpu", "mock")

    def notify_observation(self, observation: dict[str, Any]) -> None:
        """The default engine has no use for it."""

    def get_action(self, frame: dict[str, Any]) -> Any:
        self._policy._action_queue.append(self._action)
        return self._engine.get_action(frame)


def _lerobot_tick(engine: Any) -> Tick:
    """lerobot's rollout loop between its robot's reading and writing, with a robot that does nothing."""
    from lerobot.processor import make_default_processors
    from lerobot.rollout.robot_wrapper import ThreadSafeRobot
    from lerobot.rollout.strategies.core import send_next_action
    from lerobot.utils.action_interpolator import ActionInterpolator

    _, action_processor, observation_processor = make_default_processors()
    raw = {**dict.fromkeys(_NAMES, 0.0), "front": np.zeros((_PIXELS, _PIXELS, 3), np.uint8)}
    context = SimpleNamespace(
        policy=SimpleNamespace(inference=engine),
        data=SimpleNamespace(dataset_features=_FEATURES, ordered_action_keys=_NAMES),
        processors=SimpleNamespace(robot_action_processor=action_processor),
        hardware=SimpleNamespace(robot_wrapper=ThreadSafeRobot(SimpleNamespace(send_action=lambda action: action))),
    )
    interpolator = ActionInterpolator()

    def tick(number: int) -> None:
        del number
        processed = observation_processor(raw)
        engine.notify_observation(processed)
        send_next_action(processed, raw, context, interpolator)

    return tick
