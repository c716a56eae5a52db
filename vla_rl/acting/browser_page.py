"""The web server of `vla_rl.acting.browser`: it sends pictures to the person and takes keys and sticks."""

import io
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from vla_rl.acting.browser import BrowserPage, Input
from vla_rl.report.loopback import PageHandler, serve_page

_FRAME_S = 0.04
_STREAM = "/stream/"


@contextmanager
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
