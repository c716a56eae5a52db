"""Look at a task before anything is trained on it: what was found, what is assumed, and whether it behaves."""

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import sim
from robot_io.env_robot import EnvRobot
from robot_io.observation_space import dotted
from vla_rl.acting.demonstrations import check_demonstrations, one_step_demonstrations
from vla_rl.acting.task import episode_limit, open_robot, spec_of_robot
from vla_rl.acting.task_config import TaskConfig
from vla_rl.acting.task_play import Player, Session
from vla_rl.acting.task_rules import RULES, Finding, short
from vla_rl.core.errors import UserError, raised
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Observation
from vla_rl.data.sources import find_store

logger = logging.getLogger(__name__)
_PICTURE_PIXELS = 256
_MOST_ONE_STEP = 0.1  # of the demonstrations; more are a mistake of the recorder
_READ_DEMONSTRATIONS = 5  # episodes whose actions are compared with the action space


@dataclass
class TaskReport:
    """What a check has found.

    Attributes:
        found: What the task is, in lines.
        assumed: What is not declared, in sentences that say how to declare it.
        warnings, problems: What costs something and may be meant so, and what makes the task untrainable.
        seen: What a policy sees after some random actions; None: the check did not come that far.
    """

    found: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seen: Observation | None = None

    def add(self, finding: Finding) -> None:
        """Add a sentence under its kind, once."""
        lines = {"problem": self.problems, "warning": self.warnings, "assumed": self.assumed}[finding.kind]
        if finding.sentence not in lines:
            lines.append(finding.sentence)


def check_task(task: TaskConfig, seconds: float | None = None) -> TaskReport:
    """Open the task and play it at random and at rest.

    A short episode lasts ``seconds`` of the task's own time; None: 5, or less for a slow task.
    """
    report = TaskReport()
    try:
        logger.info("opening %s", task.env)
        with closing(open_robot(task)) as robot:
            _describe(robot, task, report)
            session = Player(robot, episode_limit(robot.env) or 0, seconds).session()
            report.seen = session.random.last
            report.found.append(_speed(session))
            for rule in RULES:
                for finding in rule(robot, session):
                    report.add(finding)
            spec = spec_of_robot(task.env, robot)
            if task.demonstrations is not None:
                for finding in _of_demonstrations(robot, spec, Path(task.demonstrations)):
                    report.add(finding)
        logger.info("building a policy for it")
        from vla_rl.policies.flow_vla import FlowVLAConfig  # torch: after everything that is quick
        from vla_rl.policies.folders import policy_class

        policy_class(FlowVLAConfig().kind).check(FlowVLAConfig(), spec)
    except UserError as error:
        report.problems.append(str(error))
    except Exception as error:  # an environment may raise anything
        report.problems.append(f"the environment raised {raised(error)}")
    return report


def save_picture(seen: Observation, file: Path) -> None:
    """Save the pictures of all cameras side by side, enlarged without smoothing, as PNG."""
    from PIL import Image

    picture = Image.fromarray(np.concatenate(list(seen.images.values()), axis=1))
    factor = max(_PICTURE_PIXELS // picture.height, 1)
    larger = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    larger.save(file, format="PNG")


def _describe(robot: EnvRobot, task: TaskConfig, report: TaskReport) -> None:
    reader, actions = robot.reader, robot.actions
    height, width = reader.size
    sources = {name: f"{dotted(camera.path) or 'the observation'}" for name, camera in reader.cameras.items()}
    cameras = ", ".join(f"{name} ({sources.get(name, 'render()')})" for name in reader.camera_names)
    state = ", ".join(f"{name or 'the observation'} ({size})" for name, size in reader.state.items()) or "none"
    kinds = actions.kind[:1] if len(set(actions.kind)) == 1 else actions.kind
    report.found += [
        f"environment   {robot.env}",
        f"sentence      {robot.task!r}",
        f"cameras       {f'{cameras}, {height}x{width}' if cameras else 'none'}",
        f"state         {state}",
        f"actions       {actions.size}: {', '.join(kinds)}, from {short(actions.low)} to {short(actions.high)}",
        f"names         {robot.state_dimensions.words() or 'none'}; {robot.action_dimensions.words() or 'none'}",
        f"grippers      {', '.join(map(str, actions.gripper_dims)) or 'none'}",
        f"time          {robot.control_hz:g} steps a second, at most {episode_limit(robot.env)} steps",
        f"success       {task.declare.success}",
        f"expert        {_expert(robot)}",
    ]
    report.assumed += robot.notes


def _of_demonstrations(robot: EnvRobot, spec: PolicySpec, source: Path) -> Iterator[Finding]:
    """Return what is wrong with the demonstrations of the config; UserError if they do not fit the task."""
    lengths, limit = check_demonstrations(source, {spec.env_id: spec}), episode_limit(robot.env) or 0
    if sentence := one_step_demonstrations(lengths, source):
        rate = lengths.count(1) / len(lengths)
        yield Finding("problem" if rate >= _MOST_ONE_STEP else "warning", sentence)
    if max(lengths) > limit:
        longer = f"a demonstration has {max(lengths)} steps, an episode at most {limit}"
        yield Finding("warning", f"{longer}: set task.declare.max_episode_steps={max(lengths)}")
    store = find_store(source)
    names = [] if store is None else store.ids()[:_READ_DEMONSTRATIONS]
    actions = [store.read(name).action_sent for name in names] if store is not None else []
    if actions:
        every, slack = np.concatenate(actions), 1e-3 * (robot.actions.high - robot.actions.low)
        outside = (every < robot.actions.low - slack) | (every > robot.actions.high + slack)
        if outside.any():
            dims, share = np.flatnonzero(outside.any(axis=0)).tolist(), outside.any(axis=1).mean()
            what = f"{share:.0%} of the demonstrated actions leave the action space (dimensions {dims})"
            yield Finding("warning", f"{what}: convert their units, or declare action_low and action_high")
        if not np.ptp(every, axis=0).any():
            yield Finding("problem", "all demonstrated actions are the same: record what was commanded")


def _speed(session: Session) -> str:
    step_s, draw_s = session.random.seconds_per_step
    return f"speed         {1e3 * step_s:.3g} ms a step, and {1e3 * draw_s:.3g} ms for the pictures of an observation"


def _expert(robot: EnvRobot) -> str:
    try:
        return type(sim.make_expert(robot.env)).__name__
    except UserError:
        return "none: record demonstrations (vla-rl record), and let it practice alone or name a supervisor"
