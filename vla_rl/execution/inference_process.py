"""Inference in its own process, so that nothing the policy does can delay the control loop.

The control process (the caller) has no torch. It copies an observation into shared memory and continues. Plans appear
in another mailbox when they are ready. The inference process loads the policy itself. An epoch counter, advanced by
every reset, separates plans of an earlier attempt from those of this one.
"""

import functools
import logging
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Semaphore
from typing import Self, override

import numpy as np

from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.processes import belong_to_parent, starting_children
from vla_rl.core.protocols import Policy, RefiningPolicy
from vla_rl.core.types import ActionChunk, Observation
from vla_rl.core.validation import check_chunk
from vla_rl.execution.mailbox import Arrays, Fields, Mailbox
from vla_rl.execution.plan import Inference, Plan, Planner, PlanRequest, planned, refines
from vla_rl.execution.strategies import ExecutionConfig, Strategy, make_planning_strategy

_log = logging.getLogger(__name__)

_TEXT_BYTES = 1024
_READY = -1  # the request id with which the inference process says that the policy is loaded
_MAX_PENDING, _DROPPED = 16, -1
_REFINEMENT_S = 0.5  # a control tick and a delay of the control process are shorter
_LOAD_TIMEOUT_S = 120.0  # of loading and the first inference


@dataclass(frozen=True)
class MessageLayout:
    """The sizes of what travels between the two processes.

    Cameras are (name, height, width). The policy reads ``n_obs_steps`` observations.
    """

    cameras: tuple[tuple[str, int, int], ...]
    state_size: int
    action_size: int
    max_horizon: int = 128
    n_obs_steps: int = 1

    @classmethod
    def of(cls, observation: Observation, action_size: int, max_horizon: int = 128) -> Self:
        """Return the layout for a robot's observations."""
        cameras = tuple((name, image.shape[0], image.shape[1]) for name, image in observation.images.items())
        return cls(cameras, len(observation.state), action_size, max_horizon)

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the capture times, in the order of the message."""
        return (*(name for name, _, _ in self.cameras), "state")

    def check(self, observation: Observation) -> None:
        """Refuse what the message cannot hold. Cameras that the policy does not know may be there.

        Raises:
            UserError: for a missing camera, an image or a state of another size, a sentence that is too long, or
                another number of earlier observations.
        """
        for name, height, width in self.cameras:
            if name not in observation.images:
                raise UserError(f"the robot gives no camera {name!r}.{did_you_mean(name, observation.images)}")
            image = observation.images[name]
            if image.shape != (height, width, 3) or image.dtype != np.uint8:
                raise UserError(
                    f"camera {name!r} gives {image.dtype} {list(image.shape)}, the policy takes "
                    f"uint8 {[height, width, 3]}; set the robot's image size"
                )
        if observation.state.shape != (self.state_size,):
            raise UserError(
                f"the robot's state is {list(observation.state.shape)}, the policy takes [{self.state_size}]; "
                "was it trained on this robot?"
            )
        if (size := len(observation.task.encode())) > _TEXT_BYTES:
            raise UserError(f"a task of {size} bytes; the inference process reads {_TEXT_BYTES}: say it in fewer words")
        if (found := 1 + len(observation.past)) != self.n_obs_steps:
            raise UserError(f"the policy reads {self.n_obs_steps} observations, found are {found}")

    def request_fields(self) -> Fields:
        """Everything of a `PlanRequest`, the epoch and its seed. A refinement has another observation, and the index at
        which the plan enters.
        """
        numbers = ("epoch", "seed", "request_id", "tick", "delay_ticks", "scheduled_length", "task_bytes")
        return {
            **dict.fromkeys((*numbers, "enters_at"), ((), np.int64)),
            "captured_ns": ((len(self.streams),), np.int64),
            "task": ((_TEXT_BYTES,), np.uint8),
            "state": ((self.state_size,), np.float32),
            "last_command": ((self.action_size,), np.float32),
            "scheduled": ((self.max_horizon, self.action_size), np.float32),
            **{f"image.{name}": ((height, width, 3), np.uint8) for name, height, width in self.cameras},
            "past": ((self.n_obs_steps - 1, self.state_size), np.float32),
            **{
                f"past.{name}": ((self.n_obs_steps - 1, height, width, 3), np.uint8)
                for name, height, width in self.cameras
            },
        }

    def answer_fields(self) -> Fields:
        """Return an `ActionChunk`, or the text of an error."""
        numbers = ("epoch", "request_id", "start_tick", "policy_version", "length", "final", "error_bytes")
        return {
            **dict.fromkeys(numbers, ((), np.int64)),
            "actions": ((self.max_horizon, self.action_size), np.float32),
            "error": ((_TEXT_BYTES,), np.uint8),
        }


class ProcessPlanner(Planner):
    """Its policy lives in another process. A context manager: the process runs inside the ``with``.

    Args:
        load_policy: Makes the policy; called in the inference process, so it must be importable from there (a class, a
            module-level function, or a `functools.partial` of one).
        layout: Sizes of the messages.
        config: The execution strategy decides how the policy is used.
    """

    def __init__(self, load_policy: Callable[[], Policy], layout: MessageLayout, config: ExecutionConfig) -> None:
        self._load_policy = load_policy
        self._layout = layout
        self._config = config
        self._epoch = 0
        self._seed = 0
        self._pending: dict[int, PlanRequest] = {}
        self.last_error: str | None = None

    def __enter__(self) -> Self:
        # Spawned, not forked: the inference process must not inherit the control process's locks, threads or memory.
        context = multiprocessing.get_context("spawn")
        self._requests, self._refinements = (Mailbox(self._layout.request_fields()) for _ in range(2))
        self._answers = Mailbox(self._layout.answer_fields())
        self._posted, self._seen = context.Semaphore(0), context.Semaphore(0)
        names = self._requests.name, self._refinements.name, self._answers.name
        arguments = (self._load_policy, self._layout, self._config, names, self._posted, self._seen)
        self._process = context.Process(target=serve, args=arguments, daemon=True, name="inference")
        with starting_children():
            self._process.start()
        try:
            self._await_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        for mailbox in (self._requests, self._refinements, self._answers):
            mailbox.close()

    @property
    def alive(self) -> bool:
        """Whether the inference process runs."""
        return self._process.is_alive()

    @override
    def reset(self, seed: int) -> None:
        """Begin an attempt (`Planner.reset`); UserError if the inference process has died."""
        if not self._process.is_alive():
            raise UserError(
                f"the inference process died (exit code {self._process.exitcode}); "
                f"last error: {self.last_error or 'none, it was killed'}. Start it again before the next attempt"
            )
        self._epoch += 1
        self._seed = seed
        self._pending.clear()

    @override
    def request(self, request: PlanRequest, inference: Inference) -> None:
        """Ask for a plan (`Planner.request`). The inference process makes the same strategy from the same config.

        Raises:
            UserError: see `MessageLayout.check`; at the first tick of an attempt, before anything moves. Nothing of an
                earlier message may stand in for what is missing.
        """
        self._publish(self._requests, request, request.observation)
        self._posted.release()
        self._pending[request.request_id] = request
        if len(self._pending) > _MAX_PENDING:
            self._pending.pop(min(self._pending))

    @override
    def refine(self, plan: Plan, observation: Observation, index: int) -> None:
        """Ask for the final form of a plan (`Planner.refine`): it arrives a tick later."""
        self._publish(self._refinements, plan.request, observation, index)
        self._seen.release()

    @override
    def drop(self, plan: Plan) -> None:
        """Let the inference process go on (`Planner.drop`)."""
        self._publish(self._refinements, plan.request, plan.request.observation, _DROPPED)
        self._seen.release()

    def _publish(self, mailbox: Mailbox, request: PlanRequest, observation: Observation, enters_at: int = 0) -> None:
        draft = mailbox.draft
        self._layout.check(observation)
        draft["enters_at"][()] = enters_at
        draft["epoch"][()], draft["seed"][()] = self._epoch, self._seed
        draft["request_id"][()], draft["tick"][()] = request.request_id, observation.tick
        length = min(len(request.scheduled), self._layout.max_horizon)
        draft["delay_ticks"][()], draft["scheduled_length"][()] = request.delay_ticks, length
        draft["scheduled"][:length] = request.scheduled[:length]
        draft["last_command"][:] = request.last_command
        draft["state"][:] = observation.state
        for index, stream in enumerate(self._layout.streams):
            draft["captured_ns"][index] = observation.captured_ns.get(stream, 0)
        for camera, _, _ in self._layout.cameras:
            draft[f"image.{camera}"][:] = observation.images[camera]
        for index, past in enumerate(observation.past):
            draft["past"][index] = past.state
            for camera, _, _ in self._layout.cameras:
                draft[f"past.{camera}"][index] = past.images[camera]
        _write_text(draft, "task", observation.task)
        mailbox.publish()

    @override
    def poll(self) -> list[Plan]:
        """Return a finished plan (`Planner.poll`). A policy that raised is logged and gives no chunk: the executor asks
        again."""
        answer = self._answers.take()
        if answer is None or answer["epoch"] != self._epoch:
            return []
        request = self._pending.get(int(answer["request_id"]))
        if request is None:
            return []
        final = bool(answer["final"] or answer["error_bytes"])
        if final:
            self._pending.pop(request.request_id)
        if answer["error_bytes"]:
            self.last_error = _read_text(answer, "error")
            _log.error("inference failed: %s", self.last_error)
            return [Plan(request, None)]
        actions = answer["actions"][: int(answer["length"])].copy()
        chunk = ActionChunk(actions, int(answer["start_tick"]), request.request_id, int(answer["policy_version"]))
        return [Plan(request, chunk, final)]

    @override
    def wait(self) -> int:
        raise UserError("the real world does not stand still; use execution.sync_pause 'hold' on a robot")

    def _await_ready(self) -> None:
        deadline_s = time.monotonic() + _LOAD_TIMEOUT_S
        while True:
            alive = self._process.is_alive()  # asked before: its messages until it died can be read
            answer = self._answers.take()
            if answer is not None:
                break
            if not alive:
                raise UserError(f"the inference process died while loading (exit code {self._process.exitcode})")
            if time.monotonic() > deadline_s:
                raise UserError(f"the policy was not loaded within {_LOAD_TIMEOUT_S:.0f} s")
            time.sleep(0.01)
        if answer["error_bytes"]:
            raise UserError(f"the inference process could not load the policy: {_read_text(answer, 'error')}")


def serve(
    load_policy: Callable[[], Policy],
    layout: MessageLayout,
    config: ExecutionConfig,
    names: tuple[str, str, str],
    posted: Semaphore,
    seen: Semaphore,
) -> None:
    """The inference process: load, warm up, answer the newest request, forever.

    A plan that is not final comes back with the newest observation. It goes before the next request, which would take
    as long as a plan.
    """
    belong_to_parent()
    requests, refinements = (Mailbox(layout.request_fields(), name) for name in names[:2])
    answers = Mailbox(layout.answer_fields(), names[2])
    try:
        policy = load_policy()
        strategy = make_planning_strategy(config)
        policy.reset(0)
        blank = _blank(layout)
        check_chunk(policy.infer(blank), layout.action_size)
        if refines(policy, strategy):
            policy.refine(policy.plan(blank), blank, 0)
    except Exception as error:
        _publish_error(answers, 0, _READY, error)
        raise
    answers.draft["request_id"][()], answers.draft["error_bytes"][()] = _READY, 0
    answers.publish()
    epoch = 0
    while True:
        posted.acquire()
        message = requests.take()
        if message is None:  # a newer request, answered already, replaced the one that was posted
            continue
        if message["epoch"] != epoch:
            try:
                policy.reset(int(message["seed"]))
            except Exception as error:  # reported like those of its plans; the next request tries again
                _publish_error(answers, int(message["epoch"]), int(message["request_id"]), error)
                continue
            epoch = int(message["epoch"])
        chunk = _answer(answers, layout, message, functools.partial(_plan, policy, strategy, layout, message))
        if chunk is not None and (later := _await_refinement(refinements, seen, message)):
            _answer(answers, layout, later, functools.partial(_refine, policy, chunk, layout, later))


def _plan(policy: Policy, strategy: Strategy, layout: MessageLayout, message: Arrays) -> tuple[ActionChunk, bool]:
    """Return a chunk, and whether it is final."""
    return planned(policy, strategy, _read_request(layout, message)), not refines(policy, strategy)


def _refine(policy: Policy, chunk: ActionChunk, layout: MessageLayout, message: Arrays) -> tuple[ActionChunk, bool]:
    assert isinstance(policy, RefiningPolicy)
    refined = policy.refine(chunk, _read_request(layout, message).observation, int(message["enters_at"]))
    return check_chunk(refined, layout.action_size), True


def _await_refinement(refinements: Mailbox, seen: Semaphore, planned: Arrays) -> Arrays | None:
    """Return the message with the newest observation for a plan. None if the control process has given it up."""
    deadline_s = time.monotonic() + _REFINEMENT_S
    while seen.acquire(timeout=max(deadline_s - time.monotonic(), 0)):
        message = refinements.take()
        if message is not None and all(message[name] == planned[name] for name in ("epoch", "request_id")):
            return None if message["enters_at"] == _DROPPED else message
    return None


def _answer(
    answers: Mailbox, layout: MessageLayout, message: Arrays, infer: Callable[[], tuple[ActionChunk, bool]]
) -> ActionChunk | None:
    """Publish what ``infer`` returns, or its error. Returns the chunk if it is not final."""
    epoch, request_id = int(message["epoch"]), int(message["request_id"])
    try:
        chunk, final = infer()
        length = len(chunk.actions)
        if length > layout.max_horizon:
            raise UserError(f"the chunk has {length} actions, the mailbox holds {layout.max_horizon}")
        draft = answers.draft
        draft["epoch"][()], draft["request_id"][()], draft["error_bytes"][()] = epoch, request_id, 0
        draft["start_tick"][()], draft["policy_version"][()] = chunk.start_tick, chunk.policy_version
        draft["length"][()], draft["final"][()] = length, final
        draft["actions"][:length] = chunk.actions
        answers.publish()
    except Exception as error:
        _publish_error(answers, epoch, request_id, error)
        return None
    return None if final else chunk


def _read_request(layout: MessageLayout, message: Arrays) -> PlanRequest:
    task, tick = _read_text(message, "task"), int(message["tick"])
    observation = Observation(
        {name: message[f"image.{name}"] for name, _, _ in layout.cameras},
        message["state"],
        task,
        tick,
        dict(zip(layout.streams, message["captured_ns"].tolist(), strict=True)),
        tuple(
            Observation({name: message[f"past.{name}"][index] for name, _, _ in layout.cameras}, state, task, tick)
            for index, (state, tick) in enumerate(
                zip(message["past"], range(tick - len(message["past"]), tick), strict=True)
            )
        ),
    )
    scheduled = message["scheduled"][: int(message["scheduled_length"])]
    return PlanRequest(
        int(message["request_id"]), observation, scheduled, int(message["delay_ticks"]), message["last_command"]
    )


def _blank(layout: MessageLayout) -> Observation:
    """Return an observation of nothing, so that the first inference, which is slow, is not one that counts."""
    images = {name: np.zeros((height, width, 3), np.uint8) for name, height, width in layout.cameras}
    blank = Observation(images, np.zeros(layout.state_size, np.float32), "", 0)
    return replace(blank, past=(blank,) * (layout.n_obs_steps - 1))


def _publish_error(answers: Mailbox, epoch: int, request_id: int, error: Exception) -> None:
    answers.draft["epoch"][()], answers.draft["request_id"][()] = epoch, request_id
    _write_text(answers.draft, "error", f"{type(error).__name__}: {error}")
    answers.publish()


def _write_text(arrays: Arrays, name: str, text: str) -> None:
    """Store text as UTF-8, cut to the field's size."""
    encoded = text.encode()[:_TEXT_BYTES]
    arrays[f"{name}_bytes"][()] = len(encoded)
    arrays[name][: len(encoded)] = np.frombuffer(encoded, np.uint8)


def _read_text(arrays: Arrays, name: str) -> str:
    return bytes(arrays[name][: int(arrays[f"{name}_bytes"])]).decode(errors="replace")
