"""A gymnasium environment as a robot, so that the one loop drives simulators, imagined worlds and real arms alike."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from robot_io.disturbances import Disturbance
from robot_io.env_interface import EnvDeclaration, read_actions, read_dimensions, read_rate, read_sentence
from robot_io.faults import Detector
from robot_io.images import LazyImages
from robot_io.observation_space import ObservationReader
from robot_io.success import Judge, as_flag
from vla_rl.core.clock import Clock, VirtualClock
from vla_rl.core.errors import UserError, raised
from vla_rl.core.types import Float32Array, Observation, Uint8Array

_GRAPHICS = re.compile(r"(?i:opengl|libgl|\bglx?\b|\begl|glfw|osmesa|gladload|mujoco_gl)|DISPLAY|NoSuchDisplay")
_ONE_AGENT = "A task is one environment with one agent: wrap it so that step() returns one flag."
_UNNAMED = "the numbers of the {what} have no names, so they are matched by position: declare {what}_names"


class EnvRobot:
    """Wraps any environment with a bounded Box of actions.

    `ObservationReader` finds cameras and state in the observation space. All other properties are declared, read from
    the environment, or assumed (`EnvDeclaration`). Observations are new arrays at every
    step. Time is virtual unless another clock is given: a tick takes no longer than the environment needs to compute
    it. ``write`` steps the environment, so it takes one command a tick; the loop's deadlines move its clock.

    Args:
        env: a gymnasium environment.
        clock: the time that the environment lives in.
        declared: what the environment does not say itself.
        image_size: see `ObservationReader`.

    Attributes:
        control_hz: steps per second.
        task: the task sentence, read anew at every reset: an environment may draw it.
        actions: bounds, kinds, grippers.
        reader: cameras and state.
        state_dimensions: Names and units of the state, as declared.
        action_dimensions: Names and units of the action, as declared.
        assumed: what the environment does not say itself, in sentences.
        judged: Whether the environment, or a person, gave the outcome of the last episode.
        judge: Judges every step, see `robot_io.success.Judge`.
        draws_always: Every observation has its pictures. False, set before `reset`, draws pictures on access. The
            camera must be ``render()``, or the environment able to leave them out (``drawing``, ``draw_now``, see
            `sim.interface.CameraEnv`).
        disturbance: what the sensors say goes through it, see `robot_io.faults`; None: they are sound.
        world: State from which the world goes on at the next `reset`, if the environment takes
            ``options={"world": ...}``; None: the environment draws a start.

    Raises:
        UserError: if the environment's spaces or metadata do not fit.
    """

    world_ends = True
    """No command reaches an environment after its episode, see `vla_rl.execution.loop.EpisodicRobot`."""

    detectors = (Detector.AGES, Detector.POLICY)
    disturbance: Disturbance | None = None
    terminated = truncated = judged = False
    success: bool | None = None

    def __init__(
        self,
        env: Any,
        clock: Clock | None = None,
        declared: EnvDeclaration | None = None,
        image_size: int | None = None,
    ) -> None:
        self.env = env
        self.clock = clock or VirtualClock()
        self._declared = declared = declared or EnvDeclaration()
        self.judge = Judge(declared.success)
        self.control_hz, about_rate = read_rate(env, declared)
        self.task, about_task = read_sentence(env, declared)
        self.actions = read_actions(env, declared)
        self._raw: Any = None
        self._seed = self._tick = 0
        self.reader = self._read_space(image_size)
        self.state_dimensions = read_dimensions(env, declared, "state", self.reader.state_dim)
        self.action_dimensions = read_dimensions(env, declared, "action", self.actions.size)
        pairs = {"state": self.state_dimensions, "action": self.action_dimensions}
        self._unnamed = [_UNNAMED.format(what=what) for what, dimensions in pairs.items() if not dimensions]
        self.assumed = [*filter(None, (about_rate, about_task)), *self.actions.notes]
        self._measured = self._measured_targets()
        self._middle = np.asarray((self.actions.low + self.actions.high) / 2, np.float32)
        self._steps = np.array([kind == "delta" for kind in self.actions.kind])  # [A]
        self._images: Mapping[str, Uint8Array] | None = None
        self._observed: Observation | None = None
        self._last: Float32Array | None = None
        self._called: list[bool | None] = []
        self._ended = self.draws_always = True
        self.world: Any = None
        self._leaves_out = all(hasattr(env.unwrapped, name) for name in ("drawing", "draw_now"))

    @property
    def notes(self) -> list[str]:
        """What was assumed, changed or left out, in sentences."""
        return [*self.assumed, *self.reader.notes, *self._unnamed]

    @property
    def action_kind(self) -> tuple[str, ...]:
        """Of each of the A dimensions, "absolute" (a target) or "delta" (a step)."""
        return self.actions.kind

    @property
    def action_names(self) -> tuple[str, ...]:
        """Of the A numbers of a command: their declared names, else their numbers."""
        return self.action_dimensions.names or tuple(f"action.{dim}" for dim in range(self.actions.size))

    @property
    def draws_on_demand(self) -> bool:
        """Whether pictures can be left out until they are looked at."""
        return self._leaves_out or self.reader.renders

    def connect(self) -> None:
        """Do nothing: an environment is always there."""

    def reset(self, seed: int) -> None:
        """Start an episode of the environment with this seed.

        Raises:
            UserError: if it observes something else than its space says, or raises.
        """
        if self._leaves_out:
            self.env.unwrapped.drawing = self.draws_always
        self._seed, self._tick = seed, 0
        with self._errors_of("reset"):
            options = None if self.world is None else {"world": self.world}
            self._raw, _ = self.env.reset(seed=seed, options=options)
        self.reader.check(self._raw)
        self.task, _ = read_sentence(self.env, self._declared)
        if isinstance(self.clock, VirtualClock):  # so that an episode does not depend on the ones before it
            self.clock.restart()
        self._images = self._last = self._observed = None
        self._called.clear()
        self.judge.restart()
        self._ended = self.terminated = self.truncated = False
        self.success, self.judged = None, False

    def read(self) -> Observation:
        """Return the observation after the last step, captured now.

        Raises:
            UserError: if it is something else than the environment's space says.
        """
        now_ns = self.clock.now_ns()
        if self._images is None:
            self.reader.check(self._raw)
            self._images = self._pictures()
        captured_ns = dict.fromkeys(self._images, now_ns)
        captured_ns["state"] = now_ns
        observation = Observation(self._images, self.reader.state_of(self._raw), self.task, self._tick, captured_ns)
        self._observed = (
            observation if self.disturbance is None else self.disturbance.observation(observation, self._observed)
        )
        return self._observed

    def rest_command(self) -> Float32Array:
        """Return the action that keeps everything still, float32 [A]: see `EnvDeclaration.rest_action`."""
        if self.actions.rest is not None:
            return self.actions.rest.copy()
        state = self.reader.state_of(self._raw)
        rest_action = getattr(self.env.unwrapped, "rest_action", None)
        if rest_action is not None:
            return np.asarray(rest_action(state), np.float32)
        targets: Float32Array = self._middle
        posture, low, high = state[self._measured], self.actions.low, self.actions.high
        if self._last is not None:
            targets = self._last
        elif posture.shape == targets.shape and bool(((low <= posture) & (posture <= high)).all()):
            targets = posture
        return np.where(self._steps, np.float32(0), targets)

    def write(self, action: Float32Array) -> Float32Array:
        """Step the environment. Returns the action: an environment sends what it is given.

        Raises:
            UserError: if the episode has ended, or the environment raises.
        """
        if self._ended:
            raise UserError("the episode has ended; reset before the next command")
        if isinstance(self._images, LazyImages):
            self._images.end()
        with self._errors_of("step"):
            # A copy: an environment may scale or clip what it is given in place, and the record is of what was sent.
            self._raw, reward, terminated, truncated, info = self.env.step(action.copy())
        self._images, self._last = None, action
        self._tick += 1
        self.terminated = as_flag(terminated, "terminated", _ONE_AGENT)
        self.truncated = as_flag(truncated, "truncated", _ONE_AGENT)
        self._ended = self.terminated or self.truncated
        self.judge.step(info, reward, self.terminated, self._ended)
        if self._ended:
            self.success, self.judged = self.judge.success, self.judge.reported
        elif self._called:
            self._ended = self.judged = True
            self.success = self._called[-1]
            self.terminated, self.truncated = self.success is not None, self.success is None
        return action

    def end(self, success: bool | None) -> None:
        """End the attempt with the next command, with or without an outcome, for a person. From any thread."""
        self._called.append(success)

    def last_command(self) -> Float32Array:
        """Return the command that was sent last, float32 [A]; at first the one that keeps everything still."""
        return self.rest_command() if self._last is None else self._last

    def outside_space(self) -> str:
        """Name the parts of the last observation outside its space, in a sentence; empty if there are none."""
        return self.reader.outside_space(self._raw)

    def stop(self) -> None:
        """Fail a stopped attempt, unless the environment has already judged it."""
        if not self._ended:
            self._ended = True
            self.success = False

    def close(self) -> None:
        self.env.close()

    @contextmanager
    def _errors_of(self, call: str) -> Iterator[None]:
        """Report what an environment raises in a call with the place, the seed and the step."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            remedy = renderer_remedy(error)
            if isinstance(error, OSError | MemoryError) and not remedy:
                raise
            at, remedy = f"step {self._tick} of seed {self._seed}", remedy or " Correct it there."
            raise UserError(f"{call}() of {self.env} raised {raised(error)}, in {at}.{remedy}") from error

    def _measured_targets(self) -> list[int]:
        """Return the numbers of the state that measure the A targets: by name, else the first A.

        None if names or units contradict.
        """
        state, action = self.state_dimensions, self.action_dimensions
        if not (state and action):
            return list(range(min(self.actions.size, self.reader.state_dim)))
        index = [state.names.index(name) for name in action.names if name in state.names]
        return index if state.take(index).agrees(action) else []

    def _read_space(self, image_size: int | None) -> ObservationReader:
        declared, env = self._declared, self.env
        draw = self._draw if getattr(env, "render_mode", None) == "rgb_array" else None
        try:
            return ObservationReader(env.observation_space, declared.cameras, declared.state, image_size, draw)
        except UserError as error:
            if str(env) in str(error):
                raise
            raise type(error)(f"{env}: {error}") from error

    def _pictures(self) -> Mapping[str, Uint8Array]:
        if self.draws_always or not self.draws_on_demand:
            return self.reader.images_of(self._raw)
        pictures = LazyImages(self.reader.camera_names, self._draw_now)
        if self._tick == 0:
            pictures.draw()  # what is repeated until the next one is drawn
        return pictures

    def _draw_now(self) -> dict[str, Uint8Array]:
        if self.reader.renders:
            return self.reader.images_of(self._raw)
        return self.reader.images_of({**self._raw, "pixels": self.env.unwrapped.draw_now()})

    def _draw(self) -> Any:
        with self._errors_of("render"):
            if self._raw is None:  # asked for its size before the first episode
                self.env.reset(seed=0)
            return self.env.render()


def renderer_remedy(error: BaseException) -> str:
    """Return a sentence that says how to load another renderer, if that is what failed; else empty."""
    if not any(_GRAPHICS.search(f"{type(each).__module__} {type(each).__name__} {each}") for each in _chain(error)):
        return ""
    tried = os.environ.get("MUJOCO_GL", "")
    if tried.lower() == "egl":
        return " MUJOCO_GL=egl did not load: install Mesa or a graphics driver, or start with MUJOCO_GL=osmesa."
    found = f"MUJOCO_GL={tried} did not load" if tried else "A renderer did not load"
    return f" {found}: start again without a screen, MUJOCO_GL=egl vla-rl ... (or MUJOCO_GL=osmesa)."


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
