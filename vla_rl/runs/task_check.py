"""Look at a task before anything is trained on it: what was found, what is assumed, and whether it behaves."""

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

import sim
from robot_io.env_robot import EnvRobot
from robot_io.observation_space import dotted
from vla_rl.core.errors import UserError, raised
from vla_rl.core.types import Float32Array, Observation
from vla_rl.policies.flow_vla import FlowVLAConfig
from vla_rl.policies.folders import policy_class
from vla_rl.runs.config import TaskConfig
from vla_rl.runs.task import episode_limit, open_robot, spec_of_robot

_SEED = 0
_STILL = 0.1  # of what random actions move
_LONGEST_EPISODE = 2000  # steps; a longer one is not played to its end
_PICTURE_PIXELS = 256


@dataclass
class TaskReport:
    """What a check has found.

    Attributes:
        found: what the task is, in lines.
        assumed: what nobody has said, in sentences that say how to declare it.
        warnings: what may be meant so, and costs something.
        problems: what makes the task untrainable.
        seen: what a policy sees after some random actions; None if it never came so far.
    """

    found: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seen: Observation | None = None


class _Played(NamedTuple):
    """An episode, or the beginning of one: float32 [T, S], the last observation, and whether it ended."""

    states: Float32Array
    last: Observation
    rewards: bytes
    ended: bool


def check_task(task: TaskConfig, seconds: float = 5.0) -> TaskReport:
    """Open the task, and play it with random actions twice and at rest once, each for some seconds of its own time."""
    report = TaskReport()
    try:
        with closing(open_robot(task)) as robot:
            _describe(robot, task, report)
            policy = FlowVLAConfig()
            policy_class(policy.kind).check(policy, spec_of_robot(task.env, robot))
            _play(robot, max(round(seconds * robot.control_hz), 2), report)
    except UserError as error:
        report.problems.append(str(error))
    except Exception as error:  # somebody's environment may raise anything
        report.problems.append(f"the environment raised {raised(error)}")
    return report


def save_picture(seen: Observation, file: Path) -> None:
    """The pictures of all cameras side by side, enlarged without smoothing, as PNG."""
    from PIL import Image

    picture = Image.fromarray(np.concatenate(list(seen.images.values()), axis=1))
    factor = max(_PICTURE_PIXELS // picture.height, 1)
    file.parent.mkdir(parents=True, exist_ok=True)
    picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST).save(file)


def _describe(robot: EnvRobot, task: TaskConfig, report: TaskReport) -> None:
    reader, actions = robot.reader, robot.actions
    height, width = reader.size
    sources = {name: f"{dotted(camera.path) or 'the observation'}" for name, camera in reader.cameras.items()}
    cameras = ", ".join(f"{name} ({sources.get(name, 'render()')})" for name in reader.camera_names)
    state = ", ".join(f"{name or 'the observation'} ({size})" for name, size in reader.state.items()) or "none"
    report.found += [
        f"environment   {robot.env}",
        f"sentence      {robot.task!r}",
        f"cameras       {cameras}, {height}x{width}",
        f"state         {state}",
        f"actions       {actions.size}: {_kinds(actions.kind)}, from {_short(actions.low)} to {_short(actions.high)}",
        f"grippers      {', '.join(map(str, actions.gripper_dims)) or 'none'}",
        f"time          {robot.control_hz:g} steps a second, at most {episode_limit(robot.env)} steps",
        f"success       {task.declare.success}",
        f"expert        {_expert(robot)}",
    ]
    report.assumed += robot.notes


def _play(robot: EnvRobot, steps: int, report: TaskReport) -> None:
    first, again = (_random_episode(robot, steps, report) for _ in range(2))
    report.seen = first.last
    if first.rewards != again.rewards or not np.array_equal(first.states, again.states):
        report.warnings.append(
            "the same seed and actions give another episode: a resumed run will not equal an uninterrupted one, and "
            "policies are not compared on the same starts; draw everything from self.np_random"
        )
    elif any((first.last.images[name] != again.last.images[name]).any() for name in first.last.images):
        report.warnings.append("the same seed and actions give other pictures")
    resting = _resting_episode(robot, steps)
    moved, swung = (np.ptp(played.states, axis=0) for played in (resting, first))
    restless = np.flatnonzero(moved > _STILL * swung + 1e-6)
    if len(restless):
        report.warnings.append(
            f"at rest the state moves (numbers {restless.tolist()}, by {_short(moved[restless])}): if nothing but the "
            "robot should, declare action_kind or rest_action, since a robot without a plan holds still"
        )
    limit = episode_limit(robot.env) or 0
    if not resting.ended and limit <= _LONGEST_EPISODE and not _resting_episode(robot, limit + 1).ended:
        report.problems.append(f"an episode at rest goes on after {limit} steps: truncate it, or declare a limit")
    if robot.success is not None and not robot.judged:
        report.assumed.append(
            "an episode without info['is_success'], info['success'] or a positive reward at its end has failed: "
            "declare success if another key says it"
        )


def _random_episode(robot: EnvRobot, steps: int, report: TaskReport) -> _Played:
    rng = np.random.default_rng(_SEED)
    low, high = robot.actions.low, robot.actions.high
    return _episode(robot, [rng.uniform(low, high).astype(np.float32) for _ in range(steps)], report)


def _resting_episode(robot: EnvRobot, steps: int) -> _Played:
    return _episode(robot, [None] * steps)


def _episode(robot: EnvRobot, actions: list[Float32Array | None], report: TaskReport | None = None) -> _Played:
    """Play from the seed; None: the action that keeps everything still. Says once what is not in its space."""
    robot.reset(_SEED)
    states, ends = [], []
    for action in actions:
        observation = robot.read()
        states.append(observation.state)
        if not np.isfinite(observation.state).all():
            numbers = np.flatnonzero(~np.isfinite(observation.state)).tolist()
            raise UserError(f"numbers {numbers} of the state are not finite at step {observation.tick}")
        if report is not None and (strange := robot.outside_space()) and strange not in report.warnings:
            report.warnings.append(strange)
        robot.write(robot.rest_command() if action is None else action)
        ends.append((robot.terminated, robot.truncated, robot.success))
        if robot.terminated or robot.truncated:
            break
    last = robot.read()
    return _Played(np.stack([*states, last.state]), last, repr(ends).encode(), robot.terminated or robot.truncated)


def _expert(robot: EnvRobot) -> str:
    try:
        return type(sim.make_expert(robot.env)).__name__
    except UserError:
        return "none: record demonstrations (vla-rl record), and let it practise alone or name a supervisor"


def _kinds(kinds: tuple[str, ...]) -> str:
    return kinds[0] if len(set(kinds)) == 1 else ", ".join(kinds)


def _short(numbers: Float32Array) -> str:
    values = [f"{number:.3g}" for number in numbers.tolist()]
    return values[0] if len(set(values)) == 1 else "[" + ", ".join(values) + "]"
