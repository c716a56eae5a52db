"""Short episodes that show how a task behaves: at random and at rest."""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from robot_io.env_robot import EnvRobot
from vla_rl.core.errors import UserError
from vla_rl.core.progress import Progress
from vla_rl.core.types import Float32Array, Observation, Uint8Array

logger = logging.getLogger(__name__)
_LOOKS = 10  # pictures of an episode that are looked at: a slow renderer draws no more
_TARGET_S = 0.5  # time in which a random action reaches its next target
_SPEED_STEPS = 5  # steps after which the speed is known
_SECONDS = 5.0  # of the task's own time
_MOST_S = 60.0  # of the machine's time
_LONGEST_EPISODE = 2000  # steps; a longer one is not played to its end


@dataclass
class Played:
    """What an episode, or its beginning, showed.

    Attributes:
        seed: Of its start.
        last: Last observation; its pictures are drawn.
        states: State of every observation, float32 [S] each; one more than there were steps.
        pictures: Tick -> camera -> uint8 [H, W, 3], of the ticks that were looked at.
        solved: Per step, whether an episode that ends there is a success; None: nothing reports it.
        strange: What was not in its space, in sentences.
        terminated, truncated: How it ended; both False: it went on.
        success: Its outcome; None: it went on.
        judged: The environment reports the outcome.
        pays_at_end: The last step has a positive reward, and no other one has.
        step_s: Time of all steps without drawing, where the task can leave it out, seconds.
        draw_s: Time of drawing or converting the pictures that were looked at after the start, seconds.
    """

    seed: int
    last: Observation
    states: list[Float32Array]
    pictures: dict[int, Mapping[str, Uint8Array]] = field(default_factory=dict)
    solved: list[bool | None] = field(default_factory=list)
    strange: set[str] = field(default_factory=set)
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    judged: bool = False
    pays_at_end: bool = False
    step_s: float = 0.0
    draw_s: float = 0.0

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.solved)

    @property
    def ended(self) -> bool:
        """Whether the episode came to its end."""
        return self.terminated or self.truncated

    @property
    def solved_after(self) -> int | None:
        """Steps until it was a success for the first time; None: never."""
        return next((step for step, solved in enumerate(self.solved, 1) if solved), None)

    @property
    def seconds_per_step(self) -> tuple[float, float]:
        """Mean time of a step without drawing, and of drawing the pictures of one observation."""
        return self.step_s / max(self.steps, 1), self.draw_s / max(len(self.pictures) - 1, 1)

    def same_states(self, other: "Played", steps: int | None = None) -> bool:
        """Return whether the first states of two episodes are equal; by default all that both have."""
        end = min(self.steps, other.steps) + 1 if steps is None else steps + 1
        return all(map(np.array_equal, self.states[:end], other.states[:end]))

    def same_pictures(self, other: "Played", steps: int | None = None) -> bool:
        """Return whether the first pictures that were looked at in both episodes are equal; by default all."""
        ticks = [tick for tick in self.pictures if tick in other.pictures and (steps is None or tick <= steps)]
        pairs = [(self.pictures[tick], other.pictures[tick]) for tick in ticks]
        return all(np.array_equal(ours[name], theirs[name]) for ours, theirs in pairs for name in ours)


@dataclass(frozen=True)
class Session:
    """The episodes that a check plays.

    Attributes:
        random, again: Two with the same seed and the same random actions.
        resting: One per seed without motion. The first is played to its end, unless that takes too long.
        starts: Starts of further seeds, if those of the resting ones are all alike.
    """

    random: Played
    again: Played
    resting: list[Played]
    starts: list[Played]


class Player:
    """Plays episodes of a task, of ``limit`` steps at most, with progress.

    A short episode lasts ``seconds`` of the task's own time; None: 5, or less if all would take over a minute.
    """

    SEEDS, MORE_SEEDS = (0, 1, 2), (3, 4, 5, 6, 7)

    def __init__(self, robot: EnvRobot, limit: int, seconds: float | None = None) -> None:
        self._robot, self._seconds = robot, seconds
        self._steps = max(round((seconds or _SECONDS) * robot.control_hz), 2)
        self._longest = max(limit + 1 if limit <= _LONGEST_EPISODE else 0, self._steps)
        robot.draws_always = False

    def session(self) -> Session:
        """Play all episodes."""
        first, *others = self.SEEDS
        with Progress("looking at its speed", _SPEED_STEPS, "step") as progress:
            self._plan(*self._play(first, _SPEED_STEPS, progress).seconds_per_step)
        with Progress("playing", (2 + len(others)) * self._steps + self._longest, "step") as progress:
            random, again = (self._play(first, self._steps, progress, self._random_actions()) for _ in range(2))
            resting = [self._play(first, self._longest, progress)]
            steps = self._longest if resting[0].solved_after else self._steps
            resting += [self._play(seed, steps, progress) for seed in others]
            alike = all(each.same_states(resting[0], 0) and each.same_pictures(resting[0], 0) for each in resting)
            starts = [self._play(seed, 0, progress) for seed in self.MORE_SEEDS if alike]
        return Session(random, again, resting, starts)

    def _plan(self, step_s: float, draw_s: float) -> None:
        """Shorten the episodes of a slow task, and say how long they take."""
        episodes = 1 + len(self.SEEDS)  # short ones; one of the resting ones is long
        looking_s = (episodes + 1) * _LOOKS * draw_s
        if self._seconds is None:
            self._steps = min(self._steps, max(round(_MOST_S / (episodes * step_s)), 2 * _SPEED_STEPS))
        if self._longest * step_s > _MOST_S:
            self._longest = self._steps
        logger.info(
            "playing at random and at rest, %d steps at a time: about %.0f s (%.2g s a step, %.2g s to draw)",
            self._steps,
            (episodes * self._steps + self._longest) * step_s + looking_s,
            step_s,
            draw_s,
        )

    def _random_actions(self) -> Iterator[Float32Array]:
        """Return actions on the way to random ones: no policy jumps through the whole space at every step."""
        robot, rng = self._robot, np.random.default_rng(self.SEEDS[0])
        low, high = robot.actions.low, robot.actions.high
        hold = max(round(_TARGET_S * robot.control_hz), 1)
        is_step = np.array([kind == "delta" for kind in robot.action_kind])
        goal = np.clip(robot.rest_command(), low, high)
        while True:
            start, goal = goal, rng.uniform(low, high).astype(np.float32)
            for tick in range(1, hold + 1):
                way = start + (goal - start) * np.float32(tick / hold)
                yield np.clip(np.where(is_step, goal, way), low, high)

    def _play(self, seed: int, steps: int, progress: Progress, actions: Iterator[Float32Array] | None = None) -> Played:
        """Play an episode, or its beginning; without actions the robot rests.

        Raises:
            UserError: A state is not finite, or the environment raises.
        """
        robot = self._robot
        robot.reset(seed)
        observation = robot.read()
        played = Played(seed, observation, [_finite(observation)])
        played.pictures[0] = dict(observation.images)
        looks = set(np.linspace(0, self._steps, _LOOKS).round().astype(int).tolist())
        for tick in range(1, steps + 1):
            begun_s = time.perf_counter()
            robot.write(robot.rest_command() if actions is None else next(actions))
            observation = robot.read()
            played.step_s += time.perf_counter() - begun_s
            played.solved.append(robot.judge.success)
            played.states.append(_finite(observation))
            if strange := robot.outside_space():
                played.strange.add(strange)
            ended = robot.terminated or robot.truncated
            if ended or tick in looks or tick == steps:
                begun_s = time.perf_counter()
                played.pictures[tick] = dict(observation.images)
                played.draw_s += time.perf_counter() - begun_s
            progress.advance()
            if ended:
                break
        played.last = observation
        played.terminated, played.truncated = robot.terminated, robot.truncated
        played.success, played.judged = robot.success, robot.judged
        played.pays_at_end = (robot.judge.reward or 0.0) > 0 and not robot.judge.paid_before
        return played


def _finite(observation: Observation) -> Float32Array:
    numbers = np.flatnonzero(~np.isfinite(observation.state)).tolist()
    if numbers:
        raise UserError(f"numbers {numbers} of the state are not finite at step {observation.tick}")
    return observation.state
