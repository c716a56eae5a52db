"""Tiny episodes and a tiny policy, so that whole algorithms run in milliseconds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from vla_rl.algorithms.base import Learning
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, VisionConfig
from vla_rl.training.algorithms import find_algorithm

P, H, D = Source.POLICY, Source.HUMAN, Source.DEMO
TINY_VISION = VisionConfig(widths=(4,), kernels=(4,), strides=(2,), groups=0)
TINY = {
    "actor": {"batch_size": 8, "warmup_steps": 2, "precision": "float32"},
    "credit": {"min_human_steps": 3},
    "critic": {},
    "critic_training": {"batch_size": 8},
    "advantage": {"warmup_steps": 3},
    "dynamics": {"steps": 3},
    "value": {"steps": 2},
    "branches": {"updates": 1, "branches": 8, "ood_ratio": 0.0},
    "ppo": {},
    "td": {"updates": 4, "batch_size": 8},
    "recap": {"warmup_steps": 2, "threshold_every": 2, "threshold_frames": 16, "lookahead": 3},
}


def tiny(name: str, **changes: Any) -> Learning:
    """The options of an algorithm, as small as they go; ``changes`` are those of its own, and of its sections, that a
    test is about.
    """
    config = find_algorithm(name).config_class()
    own = {option: changes.pop(option) for option in ("distill_steps", "discount") if option in changes}
    if hasattr(config, "distill_steps"):
        own.setdefault("distill_steps", 0)
    config = replace(config, **own)
    small = {section: options for section, options in TINY.items() if hasattr(config, section)} | changes
    for section in small:
        options = {**TINY.get(section, {}), **changes.get(section, {})}
        if hasattr(getattr(config, section), "chunk_ticks"):
            options = {"chunk_ticks": 2, **options}
        if section == "critic" and hasattr(config.critic, "hidden"):
            options = {"hidden": (16,), **options}
        config = replace(config, **{section: replace(getattr(config, section), **options)})
    return config


def make_episode(
    name: str,
    source: Sequence[Source],
    success: bool | None,
    *,
    origin: Origin | None = None,
    version: int = 0,
    state: np.ndarray | None = None,
    action: np.ndarray | None = None,
    task: str = "put it in",
) -> Episode:
    """An episode whose columns are random where they are not given."""
    random = np.random.default_rng(len(source) + sum(map(ord, name)))
    length = len(source)
    demo = source[0] == D
    state = random.normal(size=(length, 2)).astype(np.float32) if state is None else state
    action = random.normal(size=(length, 2)).astype(np.float32) if action is None else action
    return Episode(
        episode_id=name,
        images={"front": random.integers(0, 255, (length, 8, 8, 3), dtype=np.uint8)},
        state=state,
        action_policy=action,
        action_sent=action,
        source=np.array(source, dtype=np.uint8),
        task=task,
        success=success,
        terminated=True,
        origin=origin or (Origin.DEMO if demo else Origin.SIM),
        policy_version=-1 if demo else version,
        seed=None,
        control_hz=20.0,
        env_id="tiny",
    )


MIXED = [
    make_episode("demo-0", [D] * 12, True),
    make_episode("demo-1", [D] * 9, True, task="take it out"),
    make_episode("round-0", [P] * 10, True),
    make_episode("round-1", [P] * 15, False),
    make_episode("round-2", [P] * 5 + [H] * 5 + [P] * 3, True),
    make_episode("round-3", [P] * 6 + [H] * 6, False),
]


def make_model(seed: int = 0, state_dim: int = 2, action_dim: int = 2, **options) -> FlowVLA:
    """A policy of a few thousand weights."""
    torch.manual_seed(seed)
    random = np.random.default_rng(0)
    statistics = Statistics.from_arrays(random.normal(size=(50, state_dim)), random.normal(size=(50, action_dim)))
    config = FlowVLAConfig(
        horizon=4,
        vision=TINY_VISION,
        expert=ExpertConfig(width=16, layers=1, heads=2),
        **options,
    )
    return FlowVLA(config, PolicySpec("tiny", ("front",), (8, 8), state_dim, action_dim), statistics)
