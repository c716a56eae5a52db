"""What is wrong with a task, by the episodes that a check has played on it. Each rule is one generator."""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from robot_io.env_robot import EnvRobot
from vla_rl.acting.task import episode_limit
from vla_rl.acting.task_play import Played, Session
from vla_rl.core.types import Float32Array

_STILL = 0.1  # of what random actions move
_SHORT_EPISODE = 8  # steps; shorter than any chunk
_BLANK = 2  # levels between the darkest and the brightest pixel of a picture that shows nothing
_WIDE_ACTIONS = 1e4  # a range that no robot has, in whatever unit
_LARGE_STATE = 1000  # numbers; more are pictures or grids
_SLOW_S = 0.1  # per step
_OUTCOME = re.compile(r"(^|[._])(is_)?(success|solved|reward|terminated|done)($|[._])")
_LEAVE_OUT = "leave it out, task.declare.state=[PATH] of the others"


class Finding(NamedTuple):
    """A sentence about a task, with its remedy."""

    kind: Literal["problem", "warning", "assumed"]
    sentence: str


def short(numbers: Float32Array) -> str:
    """Numbers with three digits; one if all are the same."""
    values = [f"{number:.3g}" for number in numbers.tolist()]
    return values[0] if len(set(values)) == 1 else "[" + ", ".join(values) + "]"


def _of_interface(robot: EnvRobot, _: Session) -> Iterator[Finding]:
    """What shows without playing: ranges, sizes and names."""
    widest = float((robot.actions.high - robot.actions.low).max())
    if widest > _WIDE_ACTIONS:
        reach = "declare what the robot can reach, action_low and action_high"
        yield Finding("warning", f"an action has a range of {widest:.3g}: {reach}")
    names = ", ".join(robot.reader.state)
    if robot.reader.state_dim > _LARGE_STATE:
        remedy = "name those that a policy needs, task.declare.state=[PATH]"
        yield Finding("warning", f"the state has {robot.reader.state_dim} numbers ({names}): {remedy}")
    for name in filter(_OUTCOME.search, robot.reader.state):
        yield Finding(
            "warning", f"the state holds the outcome {name!r}, which a real robot does not know: {_LEAVE_OUT}"
        )


def _of_spaces(_: EnvRobot, session: Session) -> Iterator[Finding]:
    """Observations that are not in their space."""
    for sentence in sorted(session.random.strange.union(*(each.strange for each in session.resting))):
        yield Finding("warning", sentence)


def _of_seeds(_: EnvRobot, session: Session) -> Iterator[Finding]:
    """Return episodes that do not follow from their seed, or do not differ with it."""
    first, again = session.random, session.again
    outcomes = [(each.solved, each.terminated, each.truncated) for each in (first, again)]
    if outcomes[0] != outcomes[1] or not first.same_states(again):
        yield Finding(
            "warning",
            "the same seed and actions give another episode: draw everything from self.np_random. Otherwise a resumed "
            "run will not equal an uninterrupted one, and policies are not compared on the same starts",
        )
    elif not first.same_pictures(again):
        yield Finding("warning", "the same seed and actions give other pictures: draw everything from self.np_random")
    zero, *others = [*session.resting, *session.starts]
    if all(each.same_states(zero, 0) and each.same_pictures(zero, 0) for each in others):
        alike = all(each.same_states(zero) and each.same_pictures(zero) for each in session.resting)
        yield Finding(
            "problem" if alike else "warning",
            f"all of {len(others) + 1} seeds give the same start, state and pictures, so success would be that of one "
            "start: draw it from self.np_random, after super().reset(seed=seed)",
        )


def _of_outcomes(_: EnvRobot, session: Session) -> Iterator[Finding]:
    """Successes that need no policy, and outcomes that contradict each other."""
    resting, playing = session.resting, [session.random, *session.resting]
    solved = [each for each in resting if each.solved_after is not None]
    if solved:
        seeds = ", ".join(f"{each.seed} after {each.solved_after}" for each in solved)
        yield Finding(
            "problem" if len(solved) == len(resting) else "warning",
            f"a robot at rest succeeds in {len(solved)} of {len(resting)} episodes (seed {seeds} steps): start further "
            "from the goal, or correct the success (task.declare.success)",
        )
    elif session.random.solved_after is not None:
        what = f"random actions succeed after {session.random.solved_after} steps"
        yield Finding("warning", f"{what}: if that is wrong, correct the success (task.declare.success)")
    if any(True in each.solved[:-1] for each in playing):
        yield Finding(
            "warning",
            "the task goes on after a success. Its last step decides, and steps to success show its time limit: "
            "terminate the episode at a success",
        )
    if wrong := [each.seed for each in playing if each.terminated and each.success is False and each.pays_at_end]:
        yield Finding(
            "warning",
            f"the episodes of seeds {sorted(set(wrong))} end as failures by their info, with the only positive reward: "
            "declare which one is right, task.declare.success=KEY or =reward",
        )
    if any(each.ended and not each.judged for each in playing):
        yield Finding(
            "assumed",
            "an episode without info['is_success'], info['success'] or a positive reward at its end has failed: "
            "declare success if another key reports it",
        )


def _of_lengths(robot: EnvRobot, session: Session) -> Iterator[Finding]:
    """Return episodes that end at once, or never."""
    playing = [session.random, *session.resting]
    longest = max(each.steps for each in playing)
    if all(each.ended for each in playing) and longest < _SHORT_EPISODE:
        yield Finding(
            "problem" if longest == 1 else "warning",
            f"every episode ends within {longest} step{'s' * (longest > 1)}, which is shorter than a chunk of actions: "
            "correct what ends it, or raise its limit, task.declare.max_episode_steps",
        )
    limit, resting = episode_limit(robot.env) or 0, session.resting[0]
    if resting.steps > limit and not resting.ended:
        yield Finding("problem", f"an episode at rest goes on after {limit} steps: truncate it, or declare a limit")


def _of_motion(robot: EnvRobot, session: Session) -> Iterator[Finding]:
    """Return whether actions move the state and the pictures, and rest does not."""
    random, resting = session.random, session.resting[0]
    shared = min(random.steps, resting.steps)
    moved, swung = (np.ptp(np.stack(played.states[: shared + 1]), axis=0) for played in (resting, random))
    restless = np.flatnonzero(moved > _STILL * swung + 1e-6)
    if len(restless):
        yield Finding(
            "warning",
            f"at rest the state moves (numbers {restless.tolist()}, by {short(moved[restless])}). A robot without a "
            "plan holds still. If only the robot should move, declare action_kind or rest_action",
        )
    if not session.again.same_states(random):
        return  # then nothing follows from a difference
    states, pictures = random.same_states(resting), random.same_pictures(resting)
    if states and pictures:
        what = f"random actions and rest give the same states and pictures over {shared} steps"
        yield Finding("problem", f"{what}: apply the action in step(), and observe what it moves")
    elif states and robot.reader.state:
        yield Finding("warning", "the state does not depend on the actions: observe the joints of the robot too")
    elif pictures:
        yield Finding("warning", "the pictures do not depend on the actions: draw them at every step, with the robot")


def _of_pictures(robot: EnvRobot, session: Session) -> Iterator[Finding]:
    """Cameras that show nothing, or always the same."""
    every = [session.random, *session.resting, *session.starts]
    for name in robot.reader.camera_names:
        images = [np.asarray(images[name]) for played in every for images in played.pictures.values()]
        if all(int(image.max()) - int(image.min()) <= _BLANK for image in images):
            yield Finding(
                "problem",
                f"camera {name!r} shows one color in all of {len(images)} pictures (level {images[0].max()} of 255). "
                "Correct its renderer, or leave it out: task.declare.cameras={NAME: PATH} of the others",
            )
        elif all(np.array_equal(image, images[0]) for image in images):
            yield Finding(
                "warning",
                f"camera {name!r} shows the same picture in every episode: draw it at every step, or leave it out, "
                "task.declare.cameras={NAME: PATH} of the others",
            )


def _of_state(robot: EnvRobot, session: Session) -> Iterator[Finding]:
    """Return a state that never changes, or that holds the success itself."""
    every = [session.random, *session.resting, *session.starts]
    if robot.reader.state and not np.ptp(np.concatenate([played.states for played in every]), axis=0).any():
        yield Finding("warning", "the state never changes: observe the joints of the robot, task.declare.state=[PATH]")
    leaks = _leaks([played for played in every if played.steps])
    if leaks:
        yield Finding("warning", f"numbers {leaks} of the state equal the success at every step: {_LEAVE_OUT}")


def _leaks(every: list[Played]) -> list[int]:
    """Return the numbers of the state that equal the success at every step; none if it was always the same."""
    solved = [solved for played in every for solved in played.solved]
    if not {True, False} <= set(solved):
        return []
    states = np.concatenate([played.states[1:] for played in every])  # [N, S]
    known = np.array([each is not None for each in solved])
    flags = np.array([each is True for each in solved], np.float32)
    found: list[int] = np.flatnonzero((states[known] == flags[known, None]).all(axis=0)).tolist()
    return found


def _of_speed(robot: EnvRobot, session: Session) -> Iterator[Finding]:
    step_s, draw_s = session.random.seconds_per_step
    if step_s + draw_s > _SLOW_S:
        step = "step()" if robot.draws_on_demand else "step(), which draws too,"
        episode_s = (step_s + draw_s) * (episode_limit(robot.env) or 0)
        yield Finding(
            "warning",
            f"{'drawing' if draw_s > step_s else step} is slow: an episode to the limit takes {episode_s:.0f} s "
            f"({1e3 * step_s:.0f} ms a step, {1e3 * draw_s:.0f} ms for its pictures). Draw smaller pictures, without "
            "shadows, or with EGL (MUJOCO_GL=egl)",
        )


RULES = (
    _of_interface,
    _of_spaces,
    _of_seeds,
    _of_outcomes,
    _of_lengths,
    _of_motion,
    _of_pictures,
    _of_state,
    _of_speed,
)
