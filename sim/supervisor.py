"""A scripted stand-in for the person who supervises a robot: watches, sees trouble late, takes over, drives badly.

The supervisor decides when; how, decides an expert with a few errors, or an operator (`sim.operators`). It reads the
true state of the simulator. It is a takeover source: the control loop asks it for a command at every tick.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from sim.operators import Operator, check_recovers, operator_config
from sim.registration import ScriptedExpert, make_expert
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.types import OPERATOR, Episode, Source
from vla_rl.core.validation import check_ranges

_NEEDED = ("expert_steps", "max_episode_steps", "gripper_dims")
_STREAM = 7  # keeps the supervisor's draws apart from the environment's, which has the same seed
MAX_STEP_M = 0.030  # largest change of a target from one tick to the next
_NOISE_M = 0.003  # standard deviation of the hand's noise
_SETBACK = 0.12  # loss of progress (0 to 1, on the expert's scale) that is trouble at once, such as a dropped object
_REPAIRED = 0.08  # progress beyond the best before the trouble, after which control may be handed back
_REACTION_S = (0.2, 0.6)  # shortest and longest time between seeing trouble and taking over
_PACE = 0.9  # speed relative to the expert's
_FUMBLE_PROBABILITY = 0.15  # share of the takeovers that begin with a badly aimed stretch
_FUMBLE_M, _FUMBLE_S = 0.012, 1.0  # how far off a fumble is aimed, and how long it lasts
_MOST_TAKEOVERS = 3  # in one episode
_TOUCH_S = (0.15, 0.4)  # how long a touch lasts
_NEVER = -1


@dataclass(frozen=True)
class SupervisorConfig:
    """How attentive, how quick and how skilled the person is.

    Args:
        rescue_probability: share of the episodes in trouble that are rescued at all; drawn once per episode.
        hand_back_probability: share of the takeovers that end as soon as the trouble is repaired; the others go on to
            the end of the episode.
        stall_s: time without progress after which the person judges that the policy is stuck.
        operators: Names of `sim.operators.OPERATORS` that take turns, one per episode (by its seed). Their habits
            replace those of the scripted supervisor: they take over too early or too late, touch objects, and set their
            marks with jitter. Empty: the scripted supervisor.
        mark_jitter_s: by how much the operators' marks are off at most, in place of what is the habit of each.
    """

    rescue_probability: float = 0.5
    hand_back_probability: float = 0.5
    stall_s: float = 1.0
    operators: tuple[str, ...] = ()
    mark_jitter_s: float | None = None

    def __post_init__(self) -> None:
        check_ranges(self, "", rescue_probability="[0, 1]", hand_back_probability="[0, 1]")
        for name in self.operators:
            operator_config(name)
        if self.mark_jitter_s is not None and not (self.operators and 0 <= self.mark_jitter_s < float("inf")):
            raise ConfigError(
                f"mark_jitter_s is {self.mark_jitter_s}; it must be seconds, not negative, and is of operators, of "
                f"whom there are {len(self.operators)}."
            )


class ScriptedSupervisor:
    """Scripted supervisor of one environment: an entry of ``vla_rl.takeovers``.

    Args:
        env: an environment that declares an expert (see `sim.make_expert`), wrapped or not. Like those of this
            package it says ``expert_steps``, ``max_episode_steps``, ``gripper_dims`` and ``metadata["render_fps"]``.
        config: see `SupervisorConfig`.

    Raises:
        UserError: there is no expert for this environment, or it does not say one of these. Or its expert says that
            its progress misleads: it follows a script, or it makes no progress for longer than ``stall_s``.
    """

    config_class: ClassVar[type] = SupervisorConfig

    def __init__(self, env: gymnasium.Env[Any, Any], config: SupervisorConfig | None = None) -> None:
        self.config = config = config or SupervisorConfig()
        self._expert: ScriptedExpert = make_expert(env, 0.0 if config.operators else _NOISE_M)
        check_recovers(self._expert)
        self._env = self._expert.env
        stall_s = getattr(self._expert, "stall_s", 0.0)
        if config.stall_s < stall_s:
            raise UserError(
                f"stall_s is {config.stall_s:g}, but the expert of {type(self._env).__name__} makes no progress for "
                f"up to {stall_s:g} s. That would look like trouble. Set takeover.options.stall_s={stall_s:g}."
            )
        missing = [name for name in _NEEDED if not hasattr(self._env, name)]
        if missing:
            raise UserError(
                f"{type(self._env).__name__} does not say its {missing[0]}, by which this supervisor judges."
            )
        self._expert.pace = _PACE
        people = [operator_config(name) for name in config.operators]
        if config.mark_jitter_s is not None:
            people = [replace(habits, mark_jitter_s=config.mark_jitter_s) for habits in people]
        self._people = [Operator(self._expert, habits) for habits in people]
        self._unit_m = self._expert.meters_per_action
        self._hz = float(self._env.metadata["render_fps"])
        self._motion = np.ones(self._env.action_space.shape)  # [A], 0 for grippers
        self._motion[list(self._env.gripper_dims)] = 0.0
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Begin an episode: the seed determines every draw of it. Call it after the environment's reset."""
        self._rng = np.random.default_rng([seed, _STREAM])
        self._person: Operator | None = None
        if self._people:
            self._number = seed % len(self._people)
            self._expert = self._person = self._people[self._number]
        self._expert.reset(int(self._rng.integers(2**31)))
        self._would_rescue = bool(self._rng.random() < self.config.rescue_probability)
        self._takeovers = 0
        self._start_tick: int | None = None  # when the hand moves in; None while there is no trouble
        self._driving = False
        self._hands_back = False
        self._marks: list[tuple[int, int]] = []  # first tick of each takeover, and by how much its mark is off
        self._needless_tick = self._touch_tick = _NEVER
        self._touch_until = 0
        if self._person is not None:
            self._plan_needless(self._person)
        self._watch_from(0, 0.0)

    def _plan_needless(self, person: Operator) -> None:
        """Draw what this person does in this episode although nothing is wrong."""
        rng, when = person.rng, person.rng.integers(self._env.expert_steps, size=2)
        if rng.random() < person.config.needless_probability:
            self._needless_tick = int(when[0])
        if rng.random() < person.config.touch_probability:
            self._touch_tick = int(when[1])
            self._touch_until = self._touch_tick + max(round(rng.uniform(*_TOUCH_S) * self._hz), 1)

    def command(self, tick: int, proposed: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """Return the person's command of this tick of the episode, float32 [A]; None leaves control with the policy.

        A person does not see the proposed action, and neither does this one.
        """
        del proposed
        progress = self._expert.progress()
        if self._driving:
            if self._hands_back and progress > self._goal:
                self._driving = False
                self._watch_from(tick, progress)
                return None
            return self._drive(tick)
        if tick == self._needless_tick:
            self._take_over(tick)
            return self._drive(tick)
        if self._person is not None and self._touch_tick <= tick < self._touch_until:
            return self._person.held().astype(np.float32)
        if self._start_tick is None:
            if not self._in_trouble(tick, progress):
                return None
            late_s = 0.0 if self._person is None else self._person.rng.uniform(0.0, self._person.config.late_s)
            self._start_tick = tick + round((self._rng.uniform(*_REACTION_S) + late_s) * self._hz)
        if tick < self._start_tick or not self._would_rescue or self._takeovers >= _MOST_TAKEOVERS:
            return None
        self._take_over(tick)
        return self._drive(tick)

    def _watch_from(self, tick: int, progress: float) -> None:
        self._best, self._best_tick, self._start_tick = progress, tick, None

    def _in_trouble(self, tick: int, progress: float) -> bool:
        """Stuck, thrown back, or too slow to finish in time."""
        if progress > self._best + 0.01:
            self._best, self._best_tick = progress, tick
        stuck = tick - self._best_tick > self.config.stall_s * self._hz
        needed = (1.0 - progress) * self._env.expert_steps / self._expert.pace
        late = self._env.max_episode_steps - tick < needed
        return stuck or late or progress < self._best - _SETBACK

    def _take_over(self, tick: int) -> None:
        self._driving = True
        self._takeovers += 1
        self._hands_back = bool(self._rng.random() < self.config.hand_back_probability)
        self._goal = self._best + _REPAIRED
        if self._person is not None:
            self._person.begin()
            jitter = round(self._person.config.mark_jitter_s * self._hz)
            self._marks.append((tick, int(self._person.rng.integers(-jitter, jitter + 1))))
        fumbles = self._rng.random() < _FUMBLE_PROBABILITY
        self._fumble_until = tick + fumbles * _FUMBLE_S * self._hz
        self._fumble = self._motion * self._rng.normal(0.0, _FUMBLE_M / self._unit_m, len(self._motion))

    def _drive(self, tick: int) -> NDArray[np.float32]:
        """Return the expert's action with the hand's errors, within one bounded step of what was sent last."""
        wanted = self._expert.act()[1].astype(np.float64)
        if tick < self._fumble_until and self._person is None:
            wanted += self._fumble
        last, limit = self._expert.last_sent(), MAX_STEP_M / self._unit_m
        action = last + np.clip(wanted - last, -limit, limit)
        space = self._env.action_space
        return np.clip(action, space.low, space.high).astype(np.float32)

    def signed(self, episode: Episode) -> Episode:
        """Return the newest episode with this person's marks: the column of a named operator, and the beginnings of
        takeovers at the person's marks.
        """
        if self._person is None:
            return episode
        by_person = (episode.source == Source.HUMAN).astype(np.uint8)
        name = OPERATOR + self.config.operators[self._number]
        return replace(episode, source=marked(episode.source, self._marks), extras={**episode.extras, name: by_person})


def marked(source: NDArray[np.uint8], marks: list[tuple[int, int]]) -> NDArray[np.uint8]:
    """Return the sources of commands, uint8 [T] of `Source`, with the beginnings of takeovers moved.

    A late mark leaves a person's first steps to the policy, an early one takes the policy's last.

    ``marks`` has the first step of a takeover, and by how many steps its mark is later (or, negative, earlier).
    """
    moved = source.copy()
    for start, off in marks:
        if off > 0:
            late = moved[start : start + off]
            late[late == Source.HUMAN] = Source.POLICY
        else:
            early = moved[max(start + off, 0) : start]
            early[early == Source.POLICY] = Source.HUMAN
    return moved
