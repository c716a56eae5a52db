"""Drive a task, and a world model of it beside the task, with keyboard and mouse in a browser page.

Example: vla-rl play --world runs/world
"""

import argparse
import io
import json
import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_rl.core.errors import UserError, one_line
from vla_rl.core.outside import parse_json

if TYPE_CHECKING:
    from vla_rl.runs.play_session import PlaySession

HOST = "127.0.0.1"  # nobody else may drive
_LONGEST_BODY = 10_000
_FRAME_S = 0.04
logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--world", type=Path, help="folder of a world model, which then also gives the task")
    parser.add_argument("--task", default="vla_rl/PegInsert-v0", help="the task, where there is no world model")
    parser.add_argument("--difficulty", type=float, default=0.3)
    parser.add_argument("--port", type=int, default=8600, help="0: any free one")


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.runs.config import TaskConfig
    from vla_rl.runs.play_session import PlayConfig, PlaySession
    from vla_rl.runs.task import open_robot

    if arguments.world is None:
        real, imagined = open_robot(TaskConfig(env=arguments.task, difficulty=arguments.difficulty)), None
    else:
        from vla_rl.runs.imagination.rollouts import open_imagined_env
        from vla_rl.runs.imagination.world_evaluation import WorldFolder

        folder = WorldFolder(arguments.world)
        real = open_robot(folder.task())
        imagined = open_imagined_env(folder.model, folder.held_out, folder.held_out_cache)
    session = PlaySession(real, imagined, PlayConfig())
    try:
        with serve(session, imagined is not None, arguments.port) as address:
            print(f"open {address} in a browser; Ctrl-C ends it")
            session.run()
    except KeyboardInterrupt:
        logger.info("bye")
    finally:
        real.close()
    return 0


@contextmanager
def serve(session: "PlaySession", imagined: bool, port: int) -> Iterator[str]:
    """Serve the page on the loopback; gives its address.

    Raises:
        UserError: if the port is taken.
    """
    handler = type("Handler", (_Handler,), {"session": session, "imagined": imagined, "ended": threading.Event()})
    try:
        server = ThreadingHTTPServer((HOST, port), handler)
    except (OSError, OverflowError) as error:
        raise UserError(f"port {port} cannot be used ({one_line(error)}); choose another --port") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/"
    finally:
        handler.ended.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    session: "PlaySession"
    imagined: bool
    ended: threading.Event
    timeout = 10.0  # seconds, for one who connects and says nothing

    def parse_request(self) -> bool:
        """Only this page may drive: another site's, in the same browser, has another host or origin in its requests."""
        if not super().parse_request():
            return False
        host, port = self.headers.get("Host", ""), str(self.connection.getsockname()[1])
        known = {f"{name}:{port}" for name in (HOST, "localhost")}
        if host in known and self.headers.get("Origin", f"http://{host}") == f"http://{host}":
            return True
        self.send_error(HTTPStatus.FORBIDDEN)
        return False

    def do_GET(self) -> None:
        if self.path == "/stream":
            self._stream()
        elif self.path == "/":
            page = resources.files("vla_rl.cli").joinpath("play.html").read_bytes()
            self._answer(page, "text/html; charset=utf-8")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", 0))
            if self.path != "/controls" or not 0 <= length <= _LONGEST_BODY:
                raise ValueError("unknown address or too long")
            told: dict[str, Any] = parse_json(self.rfile.read(length))
            keys, pressed = ([str(key) for key in told[name]] for name in ("keys", "pressed"))
            across, down = (float(part) for part in told["drag"])
            if not (math.isfinite(across) and math.isfinite(down)):
                raise ValueError("a drag that is no number")
            self.session.controls.update(keys, pressed, (across, down))
        except (ValueError, KeyError, TypeError):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        _, status = self.session.newest()
        self._answer(json.dumps({**status, "imagined": self.imagined}).encode(), "application/json")

    def log_message(self, format: str, *args: Any) -> None:
        """The page reports 25 times a second; nobody wants to read that."""

    def _answer(self, content: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self) -> None:
        """Motion JPEG: a new picture replaces the one before in the page's image."""
        from PIL import Image

        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        try:
            while not self.ended.is_set():
                buffer = io.BytesIO()
                Image.fromarray(self.session.newest()[0]).save(buffer, "JPEG", quality=85)
                content = buffer.getvalue()
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(content)}\r\n\r\n"
                self.wfile.write(head.encode() + content + b"\r\n")
                time.sleep(_FRAME_S)
        except (BrokenPipeError, ConnectionResetError):  # the page was closed
            return
