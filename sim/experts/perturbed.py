"""A scripted expert with small errors, so that it succeeds or just misses: data for world models (World-VLA-Loop,
arXiv 2602.06508).
"""

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

import sim
from sim.experts.base import CorrelatedNoise
from vla_rl.core.types import Float32Array

_COPY_PIXELS = 16  # image size of the scene copy that a blind expert acts on; its images are unused
_STREAM = 11  # separates these draws from those of the environment and of the expert, which share the seed


@dataclass(frozen=True)
class PerturbationConfig:
    """The errors of the expert; the papers do not state theirs. Lengths are in the units of the action (meters).

    Attributes:
        noise: Range of the standard deviation of the correlated noise, drawn once per episode.
        aim: Standard deviation of an offset of each moving dimension, constant during a segment of the episode.
        stretch_s: Shortest and longest segment.
        accurate: Share of the segments without that offset.
        slip: Share of the episodes in which a gripper opens or closes at the wrong time.
        stall: Share of the segments in which the arms hold still.
        blind: Share of the episodes in which the expert acts on a copy of the scene without errors, while the arms
            here have a constant offset. The hand closes next to the object and the expert goes on without it, as a
            nearly good policy does. An expert that sees its errors corrects them until it holds the object. A world
            model that has only seen such grasps predicts that every grasp holds.
        blind_aim: Range of the standard deviation of that offset, drawn once per episode.
        rough: Share of the episodes with large offsets that change every few ticks, as those of a barely trained
            policy. Without them a world model cannot predict that such a policy fails.
        rough_aim: Range of the standard deviation of those offsets, drawn once per episode.
        rough_ticks: Longest time between two draws of them.
        rough_grippers: Largest standard deviation of the error of grippers in those episodes, over their range. A
            world model that has only seen grippers close around an object predicts one in an empty hand.
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
    """Provides `act` and `reset` for `vla_rl.execution.sources.Demonstrator`: clean and perturbed actions.

    The environment is one of `sim`, wrapped or not. Errors begin at tick ``perturbed_from``.
    """

    env: Any
    config: PerturbationConfig = field(default_factory=PerturbationConfig)
    perturbed_from: int = 0

    def __post_init__(self) -> None:
        self._seeing = self._expert = sim.make_expert(self.env)
        self._copy: Any = gymnasium.make(self.env.spec, image_size=_COPY_PIXELS) if self.config.blind else None
        space = self.env.action_space
        self._low, self._high = space.low, space.high
        self._moving = np.ones(space.shape, np.float32)  # [A], 0 for grippers
        self._moving[list(self.env.unwrapped.gripper_dims)] = 0.0
        self._hz = float(self.env.metadata["render_fps"])

    def reset(self, seed: int) -> None:
        """Begin an episode; its seed fixes every draw."""
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
        """Return the expert's action and the perturbed action to send, each float32 [A]."""
        if self._tick == self._stretch_end:
            self._begin_stretch()
        self._tick += 1
        clean, _ = self._expert.act()
        if self._blind:
            self._copy.step(clean)
        if self._tick <= self.perturbed_from:
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
