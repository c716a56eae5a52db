"""The oracle ladder of imagination: practice in branches with learned parts replaced by the truth. Its table shows
which part limits practice.

Every rung starts from the same supervised policy and the same real episodes, and imagines as many chunks an update. It
plays with the residual alone, without selection. The truth is MuJoCo. Every real step is played again to its state, and
branches continue from there, with the policy's pictures.

Example: python -m benchmarks imagination --parts ladder --seeds 0 1 2
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, override

import numpy as np
import torch
from torch import Tensor

from benchmarks import outcomes
from benchmarks.cells import Cells
from benchmarks.practices import PATIENT, as_measured
from benchmarks.runs import Cell, evaluations
from robot_io.env_robot import EnvRobot
from vla_rl.acting.task import open_robot
from vla_rl.algorithms.chunk_critic import ChunkCriticLearner
from vla_rl.algorithms.imagined_edit import FittedWorld, ImaginedEdit, ImaginedEditLearning
from vla_rl.algorithms.model_rollouts import Imagination
from vla_rl.core.errors import UserError
from vla_rl.core.types import Origin
from vla_rl.data.cache import FrameCache
from vla_rl.policies.base import example_row, flat_features
from vla_rl.training.config import TaskConfig
from world_model.feature_dynamics import Transitions
from world_model.feature_world import FeatureState, FeatureWorld
from world_model.protocol import Observations, Prediction, WorldModel

_WHOLE = ["learning.branches.chunks=20", "learning.branches.branches=77"]  # as many chunks as 512 branches of three
_EDIT_ALONE = [
    "budget.rounds=1",
    "budget.steps_per_round=1",
    "learning.best_of_n.num_samples=1",
    "learning.distill_steps=0",
    *PATIENT,
]
_TRUE = "algorithm=benchmarks.ladder:TrueDynamics"
_TRUE_BUT_SUCCESS = "algorithm=benchmarks.ladder:TrueDynamicsLearntSuccess"
RUNGS: dict[str, tuple[str, list[str]]] = {
    "learnt": ("learnt dynamics, three chunks, learnt value", []),
    "whole": ("learnt dynamics and success to the end of the episode", _WHOLE),
    "true_dynamics": ("true dynamics, pictures and success, three chunks, learnt value", [_TRUE]),
    "true_dynamics_learnt_success": (
        "true dynamics and pictures, three chunks, learnt success and value",
        [_TRUE_BUT_SUCCESS],
    ),
    "all_true": ("true dynamics, pictures and success to the end of the episode", [_TRUE, *_WHOLE]),
}

# One thing changed of the rung `learnt`; as many chunks an update.
ABLATIONS: dict[str, tuple[str, list[str]]] = {
    "one_chunk": ("one chunk", ["learning.branches.chunks=1", "learning.branches.branches=1536"]),
    "eight_chunks": ("eight chunks", ["learning.branches.chunks=8", "learning.branches.branches=192"]),
    "one_member": ("one network of dynamics instead of five", ["learning.dynamics.members=1"]),
    "free": ("no cost on the distance from no edit", ["learning.branches.kl_coef=0"]),
    "no_failures": (
        "dynamics that have not seen the failures of practice",
        ["algorithm=benchmarks.ladder:WithoutFailures"],
    ),
}
# Temporal differences after self-imitation, with and without rollouts in their data.
_TD_ROUND = ["budget.rounds=1", "budget.steps_per_round=401", "exploration=0.25"]
_TRUE_TD = "algorithm=benchmarks.ladder_td:TrueRolloutsTD"
TD: dict[str, tuple[str, list[str]]] = {
    "td": ("real chunks", ["algorithm=residual_td"]),
    "learnt_td": (
        "real chunks, and up to 12,288 of learnt dynamics",
        ["algorithm=benchmarks.ladder_td:LearntRolloutsTD"],
    ),
    "true_td": ("real chunks, and up to 12,288 of the simulator", [_TRUE_TD]),
}
PARTS = {"ladder": RUNGS, "ablations": ABLATIONS, "ladder_td": TD}


@dataclass(frozen=True)
class TruthConfig:
    """The simulator in which the real episodes were played.

    Attributes:
        env: of the task.
        difficulty: of the task.
    """

    env: str = ""
    difficulty: float = 0.4


@dataclass(frozen=True)
class TrueDynamicsLearning(ImaginedEditLearning):
    """Options of `TrueDynamics`."""

    truth: TruthConfig = field(default_factory=TruthConfig)


class TrueDynamics(ImaginedEdit):
    """`ImaginedEdit` whose branches are played in the simulator: an algorithm of the benchmark's own."""

    name = "true_dynamics"
    config_class: ClassVar[type] = TrueDynamicsLearning
    config: TrueDynamicsLearning

    @override
    def imagination(self, fitted: FittedWorld, generator: torch.Generator) -> Imagination:
        return replace(super().imagination(fitted, generator), world=simulator_of(self, self.config.truth))


class TrueDynamicsLearntSuccess(TrueDynamics):
    """`TrueDynamics` whose success within a chunk is the learned head's prediction."""

    name = "true_dynamics_learnt_success"

    @override
    def imagination(self, fitted: FittedWorld, generator: torch.Generator) -> Imagination:
        within = super().imagination(fitted, generator)
        return replace(within, world=LearntSuccess(within.world, fitted.world))


class WithoutFailures(ImaginedEdit):
    """`ImaginedEdit` whose dynamics never see what the policy's failed episodes did; value and starts do."""

    name = "without_failures"

    @override
    def fit_world(self, generator: torch.Generator) -> FittedWorld:
        fitted, cache = super().fit_world(generator), self.data.cache
        failed = np.array([episode.success is False and episode.policy_version >= 0 for episode in cache.episodes])
        kept = self.data.tensor(~failed[cache.episode_index])
        left = Transitions(*(part[kept] for part in self.transitions()))
        return fitted._replace(world=self.learn_world(left, generator, before=self._accepted))


def simulator_of(learner: ChunkCriticLearner, truth: TruthConfig) -> "Simulator":
    """Return the simulator as a world model in a learner's features, which knows all of its episodes."""
    cache = learner.data.cache
    text = learner.model.tokenize([cache.tasks[0]]).to(learner.data.device)

    def look(images: dict[str, Tensor], state: Tensor) -> Tensor:
        return flat_features(*learner.model.features(images, state, text.expand(len(state), -1)))

    simulator = Simulator(open_robot(TaskConfig(env=truth.env, difficulty=truth.difficulty)), look)
    simulator.remember(cache, learner.every_row()[:, : len(example_row(learner.model))])
    return simulator


class SimulatorState(NamedTuple):
    """Where B rows are: MuJoCo's states [B, X], and what is seen there. ``member`` is carried for learned heads."""

    physics: Tensor
    features: Tensor
    pictures: Tensor
    proprioception: Tensor
    member: Tensor | None


class Simulator:
    """The `WorldModel` that is the truth: it goes on from any real step of simulated episodes.

    Args:
        robot: an environment that can go to a state (``get_state``, ``set_state``) and draw when asked.
        look: pictures by camera [B, H, W, 3] and states [B, S] -> the policy's features [B, F].
    """

    members = 1

    def __init__(self, robot: EnvRobot, look: Callable[[dict[str, Tensor], Tensor], Tensor]) -> None:
        self._robot, self._env, self._look = robot, robot.env.unwrapped, look
        robot.draws_always = False

    def remember(self, cache: FrameCache, features: Tensor) -> None:
        """Play the simulated episodes again, and keep the state behind each of their steps.

        Args:
            cache: the episodes.
            features: [N, F], what the policy saw at every step.

        Raises:
            UserError: if the simulator now answers otherwise.
        """
        self._features, self._cameras = features, tuple(cache.images)
        self._physics = np.full((cache.total_frames, len(self._env.get_state())), np.nan)
        for episode in (each for each in cache.episodes if each.origin is Origin.SIM):
            self._robot.reset(episode.seed or 0)
            for step, frame in enumerate(range(episode.start, episode.start + episode.length)):
                if not np.allclose(self._robot.read().state, cache.state[frame], rtol=0, atol=1e-5):
                    raise UserError(
                        f"the episode of seed {episode.seed} goes another way at step {step}; measure its run anew"
                    )
                self._physics[frame] = self._env.get_state()
                if step + 1 < episode.length:
                    self._robot.write(cache.action_sent[frame])

    def encode(self, observations: Observations, member: Tensor | None = None) -> SimulatorState:
        steps, frames = observations
        physics = torch.from_numpy(self._physics[frames])
        seen = observations.pictures(self._cameras)
        state = torch.from_numpy(np.asarray(steps.state[frames]))
        return SimulatorState(physics, self._features[torch.from_numpy(frames)], seen, state, member)

    @torch.no_grad()
    def predict(self, state: SimulatorState, actions: Tensor) -> Prediction[SimulatorState]:
        """Send the actions to each row; those behind a success are left out."""
        shots, seen, physics, success = [], [], [], []
        self._env.drawing = False
        for row, chunk in zip(state.physics.numpy(), actions.cpu().numpy(), strict=True):
            self._env.set_state(row)
            for action in chunk:
                observed, _, won, _, _ = self._env.step(action)
                if won:
                    break
            shots.append(self._env.draw_now())
            seen.append(observed["agent_pos"])
            physics.append(self._env.get_state())
            success.append(float(won))
        images = {name: torch.from_numpy(np.stack([shot[name] for shot in shots])) for name in self._cameras}
        proprioception = torch.from_numpy(np.stack(seen))
        later = SimulatorState(
            torch.from_numpy(np.stack(physics)),
            self._look(images, proprioception),
            torch.stack(list(images.values()), 1),
            proprioception,
            state.member,
        )
        return Prediction(later, torch.tensor(success), lambda: torch.zeros(len(success)))

    def decode(self, state: SimulatorState) -> Tensor:
        return state.pictures


@dataclass(frozen=True)
class LearntSuccess:
    """The `WorldModel` whose states are true, and whose success is the learned head's prediction."""

    true: WorldModel[SimulatorState]
    learnt: FeatureWorld

    @property
    def members(self) -> int:
        return self.learnt.members

    def encode(self, observations: Observations, member: Tensor | None = None) -> SimulatorState:
        return self.true.encode(observations, member)

    def predict(self, state: SimulatorState, actions: Tensor) -> Prediction[SimulatorState]:
        predicted = self.learnt.predict(FeatureState(state.features, state.member), actions)
        return Prediction(self.true.predict(state, actions).state, predicted.success, predicted.disagreement)

    def decode(self, state: SimulatorState) -> Tensor:
        return self.true.decode(state)


def open_cells(out: Path, part: str = "ladder") -> Cells:
    """The runs of a part, ``ladder`` or ``ablations``, that have been measured. Each has its own options beside it, so
    that a rung more orphans none of them.

    Raises:
        UserError: if one was measured with other options than its rung has.
    """
    cells = Cells(out / part, part)
    for name, cell in cells.by_name().items():
        _, expected = PARTS[part].get(cell["rung"], ("", None))
        if cell["options"] != (expected and as_measured(expected)):
            raise UserError(
                f"{cells.folder / name}.json was measured with the options {cell['options']}, and its rung has "
                f"{expected}; move it away to measure anew"
            )
    return cells


def measure(out: Path, runs: Path, seeds: list[int], part: str = "ladder") -> None:
    """Do the runs of a part on each seed's supervised policy; what has been measured stays."""
    cells, runs = open_cells(out, part), runs / outcomes.open_cells(out).digest
    for seed in seeds:
        for rung, (_, changes) in PARTS[part].items():
            round_of = _TD_ROUND if PARTS[part] is TD else _EDIT_ALONE
            cells.once(f"{seed}-{rung}", functools.partial(_climb, runs, seed, rung, changes, round_of))


def _climb(runs: Path, seed: int, rung: str, changes: list[str], round_of: list[str]) -> dict[str, Any]:
    cell = Cell(outcomes.TASKS[0], seed, f"ladder-{rung}")
    truth = [f"learning.truth.env={cell.task}"] if {_TRUE, _TRUE_BUT_SUCCESS, _TRUE_TD}.intersection(changes) else []
    outcomes.run_base(cell, runs)
    cpu_s = outcomes.practise_from(cell, runs, [*changes, *round_of, *truth])
    first, last = evaluations(runs / cell.base)[-1], evaluations(runs / cell.name)[-1]
    return {
        "seed": seed,
        "rung": rung,
        "options": as_measured(changes),
        "supervised": first["successes"] / first["episodes"],
        "practised": last["successes"] / last["episodes"],
        "evaluation_episodes": last["episodes"],
        "cpu_s": round(cpu_s, 1),
    }


def table(found: list[dict[str, Any]]) -> str:
    """Markdown: one row per rung of the ladder and per ablation, and a second table of temporal differences."""
    tables = [("the edit alone", RUNGS | ABLATIONS), ("temporal differences", TD)]
    return "\n\n".join(filter(None, (_table(found, head, rungs) for head, rungs in tables)))


def _table(found: list[dict[str, Any]], head: str, rungs: dict[str, tuple[str, list[str]]]) -> str:
    found = [cell for cell in found if cell["rung"] in rungs]
    if not found:
        return ""
    seeds = sorted({cell["seed"] for cell in found})
    rows = [
        f"| one round of practice, {head} | " + " | ".join(f"seed {seed}" for seed in seeds) + " |",
        "|---|" + "---|" * len(seeds),
    ]
    before = {cell["seed"]: cell["supervised"] for cell in found}
    rows.append("| supervised policy | " + " | ".join(f"{before[seed]:.1%}" for seed in seeds) + " |")
    for rung, (words, _) in rungs.items():
        practiced = {cell["seed"]: f"{cell['practised']:.1%}" for cell in found if cell["rung"] == rung}
        if practiced:
            rows.append(f"| {words} | " + " | ".join(practiced.get(seed, "") for seed in seeds) + " |")
    return "\n".join(rows)
