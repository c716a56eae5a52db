"""Near-success data for world models: a scripted expert whose aim is off by a little, so that it succeeds or just
misses (World-VLA-Loop, arXiv 2602.06508).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import sim
from robot_io.gate import GateConfig
from sim.experts.base import CorrelatedNoise
from vla_rl.acting.attempt import Attempts
from vla_rl.acting.task import make_gate, open_robot
from vla_rl.acting.task_config import TaskConfig
from vla_rl.core.keys import code_of, key_of
from vla_rl.core.progress import track
from vla_rl.core.types import Float32Array, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.sources import Demonstrator

NEAR_SUCCESS_SEED = 700_000_000  # apart from those of practice and evaluation
_NEVER = 1_000_000
_COPY_PIXELS = 16  # of the scene that a blind expert acts on; nobody looks at its pictures
_STREAM = 11  # keeps these draws apart from those of the environment and of the expert, which have the same seed


@dataclass(frozen=True)
class PerturbationConfig:
    """How the expert is spoilt. The papers do not state their perturbations; lengths in the action's units (metres).

    Attributes:
        noise: range of the standard deviation of the wandering noise, drawn once per episode.
        aim: standard deviation of a constant error of each moving dimension in a stretch of the episode.
        stretch_s: shortest and longest stretch between two draws of that error.
        accurate: share of the stretches without an error of aim.
        slip: share of the episodes in which a gripper is opened or closed at the wrong time, for a stretch.
        stall: share of the stretches in which the arms hold still.
        blind: share of the episodes, drawn apart from the other shares, in which the expert acts on a copy of the
            scene, where all goes well, while its arms are off by a constant error here: the hand closes beside the
            object and goes on without it, as that of a policy does that is nearly good. An expert that sees its errors
            corrects them until it holds the object, and a world model that has only seen such grasps imagines that
            all of them hold.
        blind_aim: range of the standard deviation of that error, drawn once per episode.
        rough: share of the episodes in which the arms are flung about instead, as by a policy that has hardly learnt:
            the aim is off by far and changes every few ticks. Without them a world model cannot tell that such a
            policy fails.
        rough_aim: range of the standard deviation of that error, drawn once per episode.
        rough_ticks: longest time between two draws of it.
        rough_grippers: largest standard deviation of the error of grippers meanwhile, over their range; the one of an
            episode is drawn up to that. A policy that has hardly learnt opens and closes them at random, and a world
            model that has only seen them close around an object imagines one in an empty hand.
    """

    noise: tuple[float, float] = (0.001, 0.005)
    aim: float = 0.008
    stretch_s: tuple[float, float] = (0.4, 2.0)
    accurate: float = 0.7
    slip: float = 0.1
    stall: float = 0.05
    blind: float = 0.5
    blind_aim: tuple[float, float] = (0.005, 0.05)
    rough: float = 0.4
    rough_aim: tuple[float, float] = (0.01, 0.1)
    rough_ticks: int = 8
    rough_grippers: float = 2.0


@dataclass
class PerturbedExpert:
    """`act` and `reset` for `vla_rl.execution.sources.Demonstrator`: the expert's action and the spoilt one.

    Args:
        env: an environment of `sim`, wrapped or not.
        config: how it is spoilt.
        spoilt_from: the tick from which it is spoilt; before, it acts without fault.
    """

    env: Any
    config: PerturbationConfig = field(default_factory=PerturbationConfig)
    spoilt_from: int = 0

    def __post_init__(self) -> None:
        self._seeing = self._expert = sim.make_expert(self.env)
        self._copy: Any = gymnasium.make(self.env.spec, image_size=_COPY_PIXELS) if self.config.blind else None
        space = self.env.action_space
        self._low, self._high = space.low, space.high
        self._moving = np.ones(space.shape, np.float32)  # [A], 0 for grippers
        self._moving[list(self.env.unwrapped.gripper_dims)] = 0.0
        self._hz = float(self.env.metadata["render_fps"])

    def reset(self, seed: int) -> None:
        """Begin an episode: the seed fixes every draw of it."""
        self._rng = rng = np.random.default_rng([seed, _STREAM])
        self._noise = CorrelatedNoise(rng, rng.uniform(*self.config.noise), self._moving.shape)
        style = int(rng.integers(2**31))
        self._slips = rng.random() < self.config.slip
        self._rough_aim = rng.uniform(*self.config.rough_aim) if rng.random() < self.config.rough else 0.0
        self._rough_grip = rng.uniform(0.0, self.config.rough_grippers)
        self._blind = rng.random() < self.config.blind
        blind_aim = rng.uniform(*self.config.blind_aim) * rng.standard_normal(self._moving.shape) * self._moving
        self._blind_aim = blind_aim.astype(np.float32) * self._blind
        if self._blind:
            self._copy.reset(seed=seed)
        self._expert = sim.make_expert(self._copy) if self._blind else self._seeing
        self._expert.reset(style)
        self._tick = 0
        self._begin_stretch()

    def act(self) -> tuple[Float32Array, Float32Array]:
        """(what the expert wanted, what is sent), each float32 [A]."""
        if self._tick == self._stretch_end:
            self._begin_stretch()
        self._tick += 1
        clean, _ = self._expert.act()
        if self._blind:
            self._copy.step(clean)
        if self._tick <= self.spoilt_from:
            return clean, clean
        sent = clean + self._blind_aim + self._aim + self._moving * self._noise.draw()
        if self._stalled:
            sent = np.asarray(self._seeing.last_sent(), np.float32)
        if self._wrong_gripper is not None:
            dim, level = self._wrong_gripper
            sent = sent.copy()
            sent[dim] = level
        return clean, np.clip(sent, self._low, self._high).astype(np.float32)

    def close(self) -> None:
        """Close the copy of the scene; the environment is the caller's."""
        if self._copy is not None:
            self._copy.close()

    def _begin_stretch(self) -> None:
        config, rng = self.config, self._rng
        self._stretch_end = self._tick + max(1, round(rng.uniform(*config.stretch_s) * self._hz))
        off = config.aim * rng.standard_normal(len(self._moving)) * self._moving
        self._aim = off.astype(np.float32) * (rng.random() >= config.accurate)
        if self._rough_aim:
            self._stretch_end = self._tick + int(rng.integers(1, config.rough_ticks + 1))
            grip = rng.standard_normal(len(self._moving)) * (1 - self._moving) * self._rough_grip
            self._aim = (off * self._rough_aim / config.aim + grip * (self._high - self._low)).astype(np.float32)
        self._stalled = rng.random() < config.stall
        self._wrong_gripper: tuple[int, float] | None = None
        if self._slips and rng.random() < 0.5:
            dim = int(rng.choice(self.env.unwrapped.gripper_dims))
            self._wrong_gripper = dim, float(rng.choice([self._low[dim], self._high[dim]]))


class _ExpertStation:
    """An environment whose experts are recorded into a store, those episodes that are missing."""

    def __init__(self, task: TaskConfig, gate: GateConfig, store: EpisodeStore) -> None:
        self._robot, self._store = open_robot(task), store
        self.env = self._robot.env
        self._attempts = Attempts(self._robot, make_gate(self._robot, gate), Origin.SIM, task.env)

    def record(self, episode_id: str, seed: int, expert: PerturbedExpert) -> None:
        """Run one episode and save it, unless it is there."""
        if episode_id in self._store:
            return
        source = Demonstrator(expert.act, expert.reset)
        self._attempts.run(source, episode_id, seed, policy_version=-1, keep=self._store.add)

    def close(self) -> None:
        """Close the environment."""
        self._robot.close()


def collect_near_success(
    task: TaskConfig,
    gate: GateConfig,
    store: EpisodeStore,
    episodes: int,
    first_seed: int,
) -> None:
    """Add episodes of the spoilt expert to a store, those that are missing. Their sources say DEMO, their origin sim:
    no policy learns from a failure among them.

    Args:
        task: the environment.
        gate: limits of the robot.
        store: where they go; ``near-00000`` and so on.
        episodes: how many there are to be.
        first_seed: the environment's seed of the first one; the others follow.
    """
    if not episodes:  # nor is there need of an expert
        return
    station = _ExpertStation(task, gate, store)
    expert = PerturbedExpert(station.env, PerturbationConfig())
    for index in track(range(episodes), "near successes", "episode"):
        station.record(f"near-{index:05d}", first_seed + index, expert)
    expert.close()
    station.close()


def collect_counterfactuals(
    task: TaskConfig, gate: GateConfig, store: EpisodeStore, pairs: int, first_seed: int, before_end: int = 30
) -> dict[str, int]:
    """Add pairs of episodes that part from one state: the expert goes on without fault, or spoilt.

    Args:
        task: the environment.
        gate: limits of the robot.
        store: where they go, ``pair-KEY-00000-expert`` and ``pair-KEY-00000-spoilt``; those that are there stay.
        pairs: how many.
        first_seed: the environment's seed of the first pair; the others follow.
        before_end: they part so many steps before the expert is done.

    Returns:
        episode id -> the step at which the pair parts.
    """
    station, config = _ExpertStation(task, gate, store), PerturbationConfig(accurate=0.0, blind=0.0, rough=0.0)
    key = key_of([task, gate, config, first_seed, before_end, code_of("sim", __name__)])
    parting: dict[str, int] = {}
    for index in track(range(pairs), "counterfactuals", "pair"):
        clean, spoilt = (f"pair-{key}-{index:05d}-{kind}" for kind in ("expert", "spoilt"))
        station.record(clean, first_seed + index, PerturbedExpert(station.env, config, spoilt_from=_NEVER))
        step = max(store.read_header(clean).length - before_end, 1)
        station.record(spoilt, first_seed + index, PerturbedExpert(station.env, config, spoilt_from=step))
        parting |= {clean: step, spoilt: step}
    station.close()
    return parting


def near_success_ratio(store: Path) -> float:
    """Successes among the near-success episodes of a store."""
    episodes = EpisodeStore(store, create=False)
    headers = [episodes.read_header(name) for name in episodes.ids() if name.startswith("near-")]
    return sum(header.success is True for header in headers) / max(len(headers), 1)
