"""A person at a browser page: drives a task, or watches a policy practice and takes over. An entry of
``vla_rl.takeovers``, so that whatever asks a supervisor can ask a person: `vla-rl play`, `train`, `rollout`, `record`.

Threads: the thread that runs the episode calls `BrowserSupervisor`; the threads of the web server touch only the
`BrowserPage`.
"""

import atexit
import contextlib
import functools
import io
import math
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, override

import numpy as np
from numpy.typing import NDArray

from robot_io.env_interface import EnvDeclaration, read_actions, read_rate, read_sentence
from robot_io.motion import MotionSteps
from sim.env import large_pictures
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.protocols import TakeoverSource
from vla_rl.core.types import Float32Array
from vla_rl.report.loopback import PageHandler, serve_page
from vla_rl.report.media import tile_cameras

MOVES = {
    "ArrowLeft": (0, -1.0),
    "ArrowRight": (0, 1.0),
    "ArrowDown": (1, -1.0),
    "ArrowUp": (1, 1.0),
    "s": (2, -1.0),
    "w": (2, 1.0),
}
"""Key -> (axis, direction) of the chosen arm."""
_FRAME_S = 0.04  # between pictures of the page's stream
_STREAM = "/stream/"
_DEAD_ZONE = 0.15  # of a gamepad's sticks
_END = {(False, False): "", (True, False): "success", (False, True): "nothing certain from here on"}
"""What a world model says of a tick, by success and by whether it is lost."""


@dataclass(frozen=True)
class BrowserConfig:
    """How a person supervises.

    Attributes:
        port: of the page; 0: any free one.
        size_px: height of the pictures, of a task that can draw itself at any size.
        speed: of a held key or a full deflection, see `robot_io.motion.MotionSteps`.
        pace: how fast the task goes, 1: real time.
        alone: no policy acts; each attempt waits for the person to begin it.
        world: folder of a world model that imagines the same actions beside the task; empty: none.
    """

    port: int = 8600
    size_px: int = 256
    speed: float = 0.3
    pace: float = 1.0
    alone: bool = False
    world: str = ""

    def __post_init__(self) -> None:
        if not (self.speed > 0 and self.pace > 0 and self.size_px > 0):
            raise ConfigError(f"speed {self.speed}, pace {self.pace} and size_px {self.size_px} must be positive")


class Input(NamedTuple):
    """What a person did since the last tick: keys that are down, keys that went down, drag and axes.

    The mouse's drag is in picture widths to the right and down. A gamepad's axes are right, away and up, -1 to 1.
    """

    held: frozenset[str] = frozenset()
    pressed: tuple[str, ...] = ()
    drag: tuple[float, float] = (0.0, 0.0)
    axes: tuple[float, float, float] = (0.0, 0.0, 0.0)


class BrowserPage:
    """Exchanges input and pictures between the web server and the episode."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._input = Input()
        self._pressed_any = threading.Event()
        self._pictures: dict[str, NDArray[np.uint8]] = {}
        self._status: dict[str, Any] = {}

    def add(self, new: Input) -> None:
        """What the page reports."""
        with self._lock:
            drag = self._input.drag[0] + new.drag[0], self._input.drag[1] + new.drag[1]
            self._input = Input(new.held, self._input.pressed + new.pressed, drag, new.axes)
        if new.pressed:
            self._pressed_any.set()

    def take(self) -> Input:
        """What is held, and what happened since the last call."""
        with self._lock:
            taken = self._input
            self._input = Input(taken.held, axes=taken.axes)
            return taken

    def wait_for_key(self) -> None:
        """Return at the next key or button; what was pressed before does not count."""
        self._pressed_any.clear()
        while not self._pressed_any.wait(0.2):  # so that Ctrl-C is heard
            pass
        self.take()

    def show(self, pictures: Mapping[str, NDArray[np.uint8]], status: Mapping[str, Any]) -> None:
        """Replace the pictures, each uint8 [h, w, 3], and the status."""
        with self._lock:
            self._pictures, self._status = dict(pictures), dict(status)

    def newest(self) -> tuple[dict[str, NDArray[np.uint8]], dict[str, Any]]:
        """What is shown now."""
        with self._lock:
            return dict(self._pictures), dict(self._status)


@contextlib.contextmanager
def serve_browser_page(page: BrowserPage, port: int) -> Iterator[str]:
    """Serve the page on the loopback; yields its address. UserError if the port is taken."""
    ended = threading.Event()
    with serve_page(type("Handler", (_Handler,), {"page": page, "ended": ended}), port) as address:
        try:
            yield address
        finally:
            ended.set()


class _Handler(PageHandler):
    page: BrowserPage
    ended: threading.Event

    def do_GET(self) -> None:
        if self.path.startswith(_STREAM):
            self._stream(self.path.removeprefix(_STREAM))
        elif self.path == "/":
            self.answer_page("vla_rl.acting", "browser.html")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def take(self, message: Any) -> dict[str, Any]:
        self.page.add(_read_input(message))
        pictures, status = self.page.newest()
        return {**status, "pictures": sorted(pictures)}

    def _stream(self, name: str) -> None:
        """Motion JPEG: a new picture replaces the one before in the page's image."""
        from PIL import Image

        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        try:
            while not self.ended.is_set():
                picture = self.page.newest()[0].get(name)
                if picture is not None:
                    buffer = io.BytesIO()
                    Image.fromarray(picture).save(buffer, "JPEG", quality=88)
                    content = buffer.getvalue()
                    head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(content)}\r\n\r\n"
                    self.wfile.write(head.encode() + content + b"\r\n")
                time.sleep(_FRAME_S)
        except (BrokenPipeError, ConnectionResetError):  # the page was closed
            return


def _read_input(message: dict[str, Any]) -> Input:
    """Read a message of the page. Raises KeyError, TypeError or ValueError if it is not of this form."""
    keys, pressed = ([str(key) for key in message[name]] for name in ("keys", "pressed"))
    across, down = (float(part) for part in message["drag"])
    right, away, up = (min(max(float(part), -1.0), 1.0) for part in message["axes"])
    if not all(map(math.isfinite, (across, down, right, away, up))):
        raise ValueError("a motion that is no number")
    return Input(frozenset(keys), tuple(pressed), (across, down), (right, away, up))


@functools.cache
def browser_page_at(port: int) -> BrowserPage:
    """Return the page at a port of this process, served until the process ends; UserError if the port is taken."""
    page, stack = BrowserPage(), contextlib.ExitStack()
    try:
        address = stack.enter_context(serve_browser_page(page, port))
    except UserError as error:
        raise UserError(
            f"{error}. One person supervises one episode at a time: with takeover.supervisor=browser set workers=1"
        ) from error
    atexit.register(stack.close)
    print(f"open {address} in a browser; Ctrl-C ends it", file=sys.stderr)
    return page


class BrowserSupervisor(TakeoverSource):
    """Supervision in a browser page.

    The policy acts until the person moves something or takes over with t, and again after t.

    A task whose pictures cannot be drawn is driven blind. While the person acts, the policy goes on planning, and the
    page shows what it would do.
    """

    config_class: ClassVar[type] = BrowserConfig
    wants_proposals = True

    def __init__(self, env: Any, config: BrowserConfig | None = None) -> None:
        self._env, self._config = env, config or BrowserConfig()
        declared: EnvDeclaration = getattr(env, "declared", EnvDeclaration())
        self._actions, self._sentence = read_actions(env, declared), read_sentence(env, declared)[0]
        self._hz = read_rate(env, declared)[0] * self._config.pace
        self._steps = MotionSteps(self._actions, self._hz, self._config.speed)
        self._delta = np.array([kind == "delta" for kind in self._actions.kind])
        self._draw: Any = None
        self._imagined: Any = None
        self._attempts = 0

    @override
    def reset(self, seed: int) -> None:
        """Show the task, and wait for a key: before the first attempt, or before each if no policy acts."""
        page = self._page = browser_page_at(self._config.port)
        self._last: Float32Array | None = None
        self._engaged, self._open, self._due_s = False, dict.fromkeys(range(len(self._steps.groups)), True), 0.0
        self._seen, self._predicts = self._begin_imagining(), ""
        if self._config.alone or not self._attempts:
            self._show(page, 0, None, waiting=True)
            page.wait_for_key()
        self._attempts += 1

    @override
    def command(self, tick: int, proposed: Float32Array) -> Float32Array | None:
        """Return the person's command of this tick, or None. Returns no earlier than the tick is due."""
        page = self._page
        command = self._decide(page.take(), proposed)
        self._last = command
        if self._imagined is not None:
            seen, _, _, _, info = self._imagined.step(proposed if command is None else command)
            self._seen = seen["pixels"]
            self._predicts = self._predicts or _END[info["is_success"], info["is_lost"]]
        self._show(page, tick, proposed)
        self._due_s = max(self._due_s + 1 / self._hz, time.monotonic())
        time.sleep(max(self._due_s - time.monotonic(), 0))
        return command

    def _decide(self, new: Input, proposed: Float32Array) -> Float32Array | None:
        gripper = 0.0
        for key in new.pressed:
            if key == "t" and not self._config.alone:
                self._engaged = not self._engaged
            elif key == " ":
                self._open[self._steps.group] = not self._open[self._steps.group]
                gripper = 1.0 if self._open[self._steps.group] else -1.0
            elif key.isascii() and key.isdigit() and 0 < int(key) <= len(self._steps.groups):
                self._steps.group = int(key) - 1
        direction = self._direction(new)
        moves = bool(direction.any() or gripper)
        self._engaged = self._engaged or (moves and not self._config.alone)
        if not (moves or self._engaged):
            return None
        still = proposed if self._last is None else self._last
        return self._steps(np.where(self._delta, np.float32(0), still), direction, gripper)

    def _direction(self, new: Input) -> Float32Array:
        direction = np.array([axis if abs(axis) > _DEAD_ZONE else 0 for axis in new.axes], np.float32)
        for key in new.held & MOVES.keys():
            axis, sign = MOVES[key]
            direction[axis] += sign
        direction = direction.clip(-1, 1)
        # Across the whole picture is across the whole range; the page's y points down.
        direction[:2] += np.array((new.drag[0], -new.drag[1])) * self._hz / self._config.speed
        return direction

    def _begin_imagining(self) -> Mapping[str, NDArray[np.uint8]]:
        if not self._config.world:
            return {}
        if self._imagined is None:
            from vla_rl.acting.world_folder import WorldFolder

            self._imagined = WorldFolder(Path(self._config.world)).open_env()
        inner = self._env.unwrapped
        if not hasattr(inner, "get_state"):
            raise UserError(f"a world model begins beside a task that says its state; {type(inner).__name__} does not")
        begun = self._imagined.begin_at(inner.set_state(inner.get_state()))
        pictures: Mapping[str, NDArray[np.uint8]] = begun["pixels"]
        return pictures

    def _show(self, page: BrowserPage, tick: int, proposed: Float32Array | None, waiting: bool = False) -> None:
        if self._draw is None:
            self._draw = large_pictures(self._env, self._config.size_px)
        rows = {"task": self._draw(), "imagined": self._seen}
        pictures = {
            name: tile_cameras({camera: image[None] for camera, image in row.items()}, self._config.size_px)[0]
            for name, row in rows.items()
            if row
        }
        span = np.maximum(self._actions.high - self._actions.low, 1e-6)
        acts = self._engaged or (self._config.alone and self._last is not None)
        page.show(
            pictures,
            {
                "task": self._sentence,
                "cameras": list(rows["task"]),
                "tick": tick,
                "attempt": self._attempts + waiting,
                "waiting": waiting,
                "predicts": self._predicts,
                "alone": self._config.alone,
                "person": bool(acts),
                "arm": self._steps.group + 1,
                "arms": len(self._steps.groups),
                "policy": _shares(proposed, self._actions.low, span),
                "command": _shares(self._last, self._actions.low, span),
            },
        )


def _shares(action: Float32Array | None, low: NDArray[Any], span: NDArray[Any]) -> Sequence[float]:
    """Return where each number of an action is in its range, 0 to 1; empty without an action."""
    return [] if action is None else [round(float(share), 4) for share in ((action - low) / span).clip(0, 1)]
