"""A world that breaks between two rounds is found within the round, by the check with trained dynamics.

The toy's world is a red spot that goes half way to the target that was sent. Only the camera shows where it is.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_world import P, make_episode, tiny

from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Episode
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, VisionConfig
from vla_rl.training.algorithms import make_algorithm

SIZE, SPOT, LENGTH, EPISODES = 32, 5.0, 24, 24


def seen(position: np.ndarray, shift: int = 0) -> np.ndarray:
    """The spot at a position in [-1, 1]^2, from a camera that is moved by some pixels."""
    row, column = (position + 1) / 2 * SIZE
    distance = (np.arange(SIZE)[:, None] - row) ** 2 + (np.arange(SIZE) + shift - column) ** 2
    bright = np.exp(-distance / (2 * SPOT**2))[..., None]
    return (40 + bright * (190, 20, -20)).astype(np.uint8)


def episode(index: int, version: int, shift: int = 0) -> Episode:
    random = np.random.default_rng(index)
    action = random.uniform(-1, 1, (LENGTH, 2)).astype(np.float32)
    position = np.zeros((LENGTH, 2), np.float32)
    position[0] = random.uniform(-0.5, 0.5, 2)
    for step in range(LENGTH - 1):
        position[step + 1] = position[step] + 0.5 * (action[step] - position[step])
    images = {"front": np.stack([seen(each, shift) for each in position])}
    name, success = f"round-{version}-{index:03d}", bool(position[-1, 0] > 0)
    made = make_episode(
        name, [P] * LENGTH, success, version=version, state=np.zeros((LENGTH, 2), np.float32), action=action
    )
    return replace(made, images=images)


def earlier(one: Episode) -> Episode:
    return replace(one, action_sent=np.roll(one.action_sent, 1, 0))


def later(one: Episode) -> Episode:
    return replace(one, action_sent=np.roll(one.action_sent, -1, 0))


def permuted(one: Episode) -> Episode:
    return replace(one, images={"front": one.images["front"][..., [2, 0, 1]]})


def moved(one: Episode) -> Episode:
    """The camera is moved by an eighth of what it sees, as by 4 of 64 pixels for pictures half as fine."""
    return replace(one, images=episode(int(one.episode_id[-3:]), one.policy_version, shift=4).images)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (None, ""),
        (earlier, "tick later"),
        (later, "tick earlier"),
        (permuted, "times as much"),
        (moved, "times as much"),
    ],
    ids=["sound", "earlier", "later", "colors", "camera"],
)
def test_a_broken_world_is_found_within_one_round(
    make_cache: Callable, caplog: pytest.LogCaptureFixture, broken: Callable | None, why: str, monkeypatch
) -> None:
    monkeypatch.setattr("world_model.feature_dynamics._HIDDEN", (64,))
    older = [episode(index, 0) for index in range(EPISODES)]
    newest = [episode(EPISODES + index, 1) for index in range(EPISODES)]
    cache = make_cache([*older, *(broken(one) if broken else one for one in newest)])
    statistics = Statistics.from_arrays(cache.state[: EPISODES * LENGTH], cache.action_sent[: EPISODES * LENGTH])
    vision = VisionConfig(widths=(8, 8), kernels=(8, 3), strides=(4, 2), groups=0)
    config = FlowVLAConfig(horizon=4, vision=vision, expert=ExpertConfig(width=16, layers=1, heads=2))
    torch.manual_seed(0)
    model = FlowVLA(config, PolicySpec("tiny", ("front",), (SIZE, SIZE), 2, 2), statistics)
    options = {"dynamics": {"steps": 200, "members": 2}, "branches": {"ood_ratio": 1.3, "updates": 1, "branches": 8}}
    algorithm = make_algorithm("imagined_edit", tiny("imagined_edit", **options), model, cache, 0)
    algorithm.begin_round(cache, 1)
    logs = algorithm.update(0)
    assert logs.get("imagined_stopped", 0.0) == bool(broken)
    assert why in caplog.text
