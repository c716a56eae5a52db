"""Dimensions that hardly move in the data and move later: what networks read of them, in training, in a policy folder
and in a deployment.

The arm of these traps moves two joints by half a radian; a third one only jitters by 1e-4.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.data_traps.traps import expect, trap
from deploy_trt.runtime.manifest import Affine
from deploy_trt.runtime.units import Normalization
from vla_rl.acting.world_folder import Eyes
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.normalization import INPUT_LIMIT, Statistics, VectorStatistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Episode, Observation, Origin, Source
from vla_rl.critics.backbones import OwnBackbone
from vla_rl.critics.outcome import OutcomeValue
from vla_rl.data.cache import FrameCache
from vla_rl.data.statistics import scale_notes
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.best_of_n import ChunkCritic, ChunkCriticConfig
from vla_rl.policies.corrector_training import exported
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, VisionConfig
from vla_rl.policies.layers import Normalizer
from vla_rl.policies.lerobot_adapter.model import lerobot_statistics
from vla_rl.policies.residual import Residual
from world_model.feature_dynamics import FeatureDynamics, FeatureDynamicsConfig, Transitions
from world_model.protocol import Observations, OneStep

_KIND = "scale of a dimension that hardly moves"
_ROWS = 2000
_SPEC = PolicySpec("arm", ("front",), (8, 8), 3, 3)
_MODEL = FlowVLAConfig(
    horizon=4,
    vision=VisionConfig(widths=(4,), kernels=(4,), strides=(2,), groups=0),
    expert=ExpertConfig(width=16, layers=1, heads=2),
)


def _column(*dimensions: tuple[float, float]) -> NDArray[np.float32]:
    """Smooth motion [N, D] around a center, by an amplitude, of each dimension."""
    time = np.linspace(0, 60, _ROWS)[:, None] + np.arange(len(dimensions))
    center, amplitude = np.array(dimensions).T
    return (center + amplitude * np.sin(time)).astype(np.float32)


_ARM = _column((0.0, 0.5), (0.4, 0.5), (1.0, 1e-4))
_MOVED = np.array([0.1, 0.3, 1.01], np.float32)  # the third joint, by a hundred times its jitter


def _inputs(statistics: VectorStatistics, raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a network of ours reads of raw vectors."""
    return Normalizer(statistics).network_input(torch.from_numpy(raw)).numpy()


def _model(statistics: Statistics) -> FlowVLA:
    torch.manual_seed(0)
    return FlowVLA(_MODEL, _SPEC, statistics).eval()


def _shown(numbers: Any) -> str:
    return "[" + ", ".join(f"{number:.3g}" for number in np.ravel(numbers)) + "]"


def _expect_in_limit(seen: NDArray[np.float32], what: str = "inputs") -> None:
    expect(float(np.abs(seen).max()) <= INPUT_LIMIT, f"{what} {_shown(seen)}")


@trap(_KIND, "a joint jitters by 1e-4 around 1.0 and is then moved by .01")
def jitter_then_motion(folder: Path) -> str:
    del folder
    statistics = VectorStatistics.from_array(_ARM, "state")
    plain = replace(statistics, floor=(0.0,) * statistics.size, limit=(np.inf,) * statistics.size)
    seen, before = _inputs(statistics, _MOVED), _inputs(plain, _MOVED)
    _expect_in_limit(seen)
    expect(np.array_equal(seen[:2], before[:2]), f"the other joints change: {_shown(before)} -> {_shown(seen)}")
    expect(0.1 < abs(seen[2]) < 3, f"the motion is read as {seen[2]:.3g}")
    return f"inputs {_shown(seen)}; without the floor {_shown(before)}"


@trap(_KIND, "every joint of the arm only jitters, by 1e-4 around 1.0")
def nothing_moves(folder: Path) -> str:
    del folder
    statistics = VectorStatistics.from_array(_column((1.0, 1e-4), (1.0, 1e-4)), "state")
    seen = _inputs(statistics, np.array([1.01, 1.5], np.float32))
    _expect_in_limit(seen)
    return f"inputs {_shown(seen)}"


@trap(_KIND, "a joint without a unit jitters by 1e-4 around 0 and is then moved by .01 and by 1")
def jitter_around_zero(folder: Path) -> str:
    del folder
    statistics = VectorStatistics.from_array(_column((0.0, 0.5), (0.0, 1e-4)), "state")
    seen = _inputs(statistics, np.array([[0.1, 0.01], [0.1, 1.0]], np.float32))
    _expect_in_limit(seen)
    return f"inputs {_shown(seen)}"


@trap(_KIND, "a joint declared in rad jitters by 1e-4 around 0, beside joints in rad and a gripper in m")
def jitter_of_a_declared_unit(folder: Path) -> str:
    del folder
    units = ("rad", "rad", "m")
    statistics = VectorStatistics.from_array(_column((0.0, 0.5), (0.0, 1e-4), (0.02, 0.02)), "state", units=units)
    seen = _inputs(statistics, np.array([0.1, 0.01, 0.04], np.float32))
    expect(0.1 < abs(seen[1]) < 3 and seen[2] > 1, f"inputs {_shown(seen)}")
    return f"inputs {_shown(seen)}; floored are {np.flatnonzero(statistics.floored).tolist()}"


@trap(_KIND, "a joint stands still in the data but for the last 3 of 2000 steps, in which it moves by .5")
def constant_then_moves(folder: Path) -> str:
    del folder
    column = _ARM.copy()
    column[:, 2] = 1.0
    column[-3:, 2] = 1.5
    seen = _inputs(VectorStatistics.from_array(column, "state"), column)
    _expect_in_limit(seen[-3:], "the last steps")
    expect(seen[-1, 2] - seen[0, 2] > 1, f"the motion is read as {seen[-1, 2] - seen[0, 2]:.3g}")
    return f"the joint is read as {seen[0, 2]:.3g} at rest and as {seen[-1, 2]:.3g} when it moves"


@trap(_KIND, "a wrist moves by .02 rad in all, and that matters")
def honest_small_range(folder: Path) -> str:
    del folder
    column = _column((0.0, 0.5), (0.4, 0.7), (1.2, 0.01))
    spread = _inputs(VectorStatistics.from_array(column, "state"), column).std(0)
    expect(spread.min() > 0.3, f"the inputs' standard deviations are {_shown(spread)}")
    return f"the inputs' standard deviations are {_shown(spread)}"


@trap(_KIND, "joints in degrees beside a gripper in metres, without declared units")
def mixed_units(folder: Path) -> str:
    del folder
    column = _column((0.0, 60.0), (90.0, 30.0), (0.02, 0.02))
    spread = _inputs(VectorStatistics.from_array(column, "state"), column).std(0)
    expect(np.allclose(spread, 1, atol=0.01), f"the inputs' standard deviations are {_shown(spread)}")
    return f"the inputs' standard deviations are {_shown(spread)}"


@trap(_KIND, "an action dimension jitters by 1e-4, and an intervention moves it by .5")
def action_that_hardly_moves(folder: Path) -> str:
    del folder
    normalizer = Normalizer(VectorStatistics.from_array(_ARM, "action"))
    raw = torch.from_numpy(np.concatenate([_ARM, [[0.1, 0.3, 1.5]]]).astype(np.float32))
    normalized = normalizer.normalize(raw)
    error = float((normalizer.denormalize(normalized) - raw).abs().max())
    expect(error < 1e-6, f"an action comes back {error:.2g} away")
    expect(float(normalized[-1, 2]) < 100, f"the loss would see a target of {float(normalized[-1, 2]):.3g}")
    return f"actions come back within {error:.2g}; the target of the intervention is {float(normalized[-1, 2]):.3g}"


def _dominated(network: Any, rows: Tensor) -> str:
    """Check that a network says the same of an input beyond the limit as of one at it."""
    usual, far = rows[-1:].clone(), rows[-1:].clone()
    far[:, 0] += 100
    with torch.no_grad():
        one, other, further = network(usual), network(far), network(far + 900 * torch.eye(1, rows.shape[1]))
    expect(torch.allclose(other, further, atol=1e-3), f"outputs {_shown(other)} become {_shown(further)} further away")
    return f"outputs {_shown(one)}, and {_shown(other)} however far the input goes"


def _dynamics(features: Tensor, later: Tensor) -> FeatureDynamics:
    """Dynamics of noisy chunks of two actions, with the scales of these features."""
    yes = torch.ones(len(features), dtype=torch.bool)
    noise = torch.randn(len(features), 2, 3, generator=torch.Generator().manual_seed(0))
    data = Transitions(features, noise, torch.full_like(yes, 2, dtype=torch.int64), later, yes, ~yes, yes)
    return FeatureDynamics.of(data, FeatureDynamicsConfig())


def _still_rows(count: int, width: int) -> Tensor:
    """Rows [N, I] of features, of which the first hardly varies."""
    rows = torch.randn(count, width, generator=torch.Generator().manual_seed(0))
    rows[:, 0] = 1 + 1e-5 * rows[:, 0]
    return rows


@trap(_KIND, "a feature that hardly varied jumps: critic of chunks and residual")
def critic_and_residual(folder: Path) -> str:
    del folder
    model = _model(Statistics.from_arrays(_ARM, _ARM))
    critic, residual = ChunkCritic(model, ChunkCriticConfig(chunk_ticks=2)), Residual(model)
    torch.nn.init.normal_(residual.net[-1].weight)  # type: ignore[arg-type]  # a linear layer
    lines = []
    for name, network in (("critic", critic), ("residual", residual)):
        rows = _still_rows(64, len(network.mean))
        network.mean.copy_(rows.mean(0))
        network.scale.copy_(rows.std(0) + 1e-2)
        lines.append(f"{name}: {_dominated(network, rows)}")
    return "; ".join(lines)


@trap(_KIND, "a feature that hardly varied jumps: dynamics and value of branches")
def dynamics_and_value(folder: Path) -> str:
    del folder
    rows = _still_rows(64, 6)
    rows[:, 0] = 1 + 500 * (rows[:, 0] - 1)  # above what the dynamics leave out
    value = OutcomeValue(rows, 2)
    dynamics = _dynamics(rows, rows + torch.randn(64, 6))

    def later(seen: Tensor) -> Tensor:
        return dynamics(seen, torch.zeros(1, 2, 3))[0] - seen

    return f"value: {_dominated(value.logits, rows)}; dynamics: {_dominated(later, rows)}"


@trap(_KIND, "a joint that jitters is moved by .5: critics with features of their own")
def own_critics(folder: Path) -> str:
    del folder
    model = _model(Statistics.from_arrays(_ARM, _ARM))
    backbone, text = OwnBackbone(model), model.tokenize(["put it in"])
    image = torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    features = backbone({"front": image}, torch.tensor([[0.1, 0.3, 1.5]]), text)
    seen = features[0, -3:].detach().numpy()
    _expect_in_limit(seen, "inputs of the critic")
    return f"inputs {_shown(seen)}"


@trap(_KIND, "a joint that jitters is moved by .01 and by 98: what a world model sees, and its dynamics")
def world_model(folder: Path) -> str:
    del folder
    eyes = Eyes(_model(Statistics.from_arrays(_ARM, _ARM)))

    def seen(states: NDArray[np.float32]) -> Tensor:
        pictures = {"front": np.zeros((len(states), 8, 8, 3), np.uint8)}
        return eyes.look(Observations(OneStep(pictures, states, "put it in"), np.arange(len(states))))

    arm, moved = seen(_ARM), float(seen(_MOVED[None])[0, -1])
    expect(0.1 < moved < 3, f"a motion by .01 is read as {moved:.3g}")
    dynamics = _dynamics(arm[:-1], arm[1:])
    rows = seen(np.array([_MOVED, [0.1, 0.3, 99.0], [0.1, 0.3, 999.0]], np.float32))
    near, far, further = (dynamics(rows, torch.zeros(3, 2, 3))[0] - rows)[:, :-1]
    expect(torch.allclose(far, further, atol=1e-3), f"changes {_shown(far[-2:])} become {_shown(further[-2:])}")
    return f"a motion by .01 is read as {moved:.3g}; the others go by {_shown(near[-2:])}, later by {_shown(far[-2:])}"


def _observation(state: NDArray[np.float32]) -> Observation:
    return Observation({"front": np.zeros((8, 8, 3), np.uint8)}, state, "put it in", 0)


@trap(_KIND, "a joint that jitters is moved by .5 on the robot computer: deployment and residual head without torch")
def deployed(folder: Path) -> str:
    del folder
    statistics = Statistics.from_arrays(_ARM, _ARM)
    raw = np.concatenate([_ARM[::100], [[0.1, 0.3, 1.5]]]).astype(np.float32)
    affine = Affine.of(statistics.state)
    without_torch, with_torch = Normalization(affine).network_input(raw), _inputs(statistics.state, raw)
    gap = float(np.abs(without_torch - with_torch).max())
    expect(gap <= 1e-5, f"the deployment reads {_shown(without_torch[-1])}, torch {_shown(with_torch[-1])}")
    _expect_in_limit(without_torch[-1])
    model = _model(statistics)
    inputs = 2 * _MODEL.vision.keypoints + 3 + 3 + 8
    head = torch.nn.Sequential(torch.nn.Linear(inputs, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    corrector = exported(model, head)
    at_limit, beyond = (
        corrector.correct(_observation(np.array([0.1, 0.3, third], np.float32)), _MOVED, 0) for third in (1.5, 99.0)
    )
    expect(np.array_equal(at_limit, beyond), f"the residual head says {_shown(at_limit)}, then {_shown(beyond)}")
    return f"inputs {_shown(without_torch[-1])} on both sides, {gap:.1g} apart; the residual head ends there too"


@trap(_KIND, "lerobot's processors: a joint jitters by 1e-4, one is constant, and both are moved by .01")
def lerobot_processors(folder: Path) -> str:
    del folder
    column = np.concatenate([_ARM, np.zeros((_ROWS, 1), np.float32)], 1)
    spec = PolicySpec("arm", ("front",), (8, 8), 4, 4)
    stats = lerobot_statistics(Statistics.from_arrays(column, column), spec)["observation.state"]
    moved = torch.tensor([0.1, 0.3, 1.01, 0.01])
    by_deviation = (moved - stats["mean"]) / (stats["std"] + 1e-8)
    by_range = 2 * (moved - stats["min"]) / (stats["max"] - stats["min"] + 1e-8) - 1
    for seen in (by_deviation, by_range):
        _expect_in_limit(seen.numpy())
    return f"inputs {_shown(by_deviation)} by deviation, {_shown(by_range)} by range"


@trap(_KIND, "the dry run and the log of training data in which a named joint jitters")
def named_in_the_dry_run(folder: Path) -> str:
    names = Dimensions(("pan", "lift", "roll"), ("rad", "rad", "rad"))
    store = EpisodeStore(folder / "store")
    length = 200
    column = _ARM[:length]
    store.add(
        Episode(
            episode_id="demo",
            images={"front": np.zeros((length, 8, 8, 3), np.uint8)},
            state=column,
            action_policy=column,
            action_sent=column,
            source=np.full(length, Source.DEMO, np.uint8),
            task="put it in",
            success=True,
            terminated=True,
            origin=Origin.DEMO,
            policy_version=-1,
            seed=None,
            control_hz=20.0,
            env_id="arm",
            state_dimensions=names,
            action_dimensions=names,
        )
    )
    cache = FrameCache(store, folder / "cache")
    cache.refresh()
    earlier = Statistics.from_arrays(_ARM[:, [0, 2, 1]], _ARM[:, [0, 2, 1]])
    own, others = scale_notes(cache, Statistics.from_arrays(column, column)), scale_notes(cache, earlier)
    expect(len(own) == 2 and all("roll" in line for line in own), f"the dry run says {own}")
    expect(any("lift (155, limit 10)" in line for line in others), f"of other data the dry run says {others}")
    return " / ".join([*own, *others])
