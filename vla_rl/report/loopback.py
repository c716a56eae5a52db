"""A web server on the loopback, for pages of this machine only."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from vla_rl.core.errors import UserError, one_line
from vla_rl.core.json_files import parse_json

HOST = "127.0.0.1"
_LONGEST_MESSAGE = 10_000  # bytes


class PageHandler(BaseHTTPRequestHandler):
    """Base of the request handlers. Requests are not logged, since each page sends several a second."""

    timeout = 10.0  # seconds, for a client that connects and sends nothing

    def parse_request(self) -> bool:
        """Accept requests of this page only: another site in the same browser has another host or origin."""
        if not super().parse_request():
            return False
        host, port = self.headers.get("Host", ""), str(self.connection.getsockname()[1])
        known = {f"{name}:{port}" for name in (HOST, "localhost")}
        if host in known and self.headers.get("Origin", f"http://{host}") == f"http://{host}":
            return True
        self.send_error(HTTPStatus.FORBIDDEN)
        return False

    def do_POST(self) -> None:
        """Take a message of the page. One that is no message is refused."""
        try:
            length = int(self.headers.get("Content-Length", 0))
            if not 0 <= length <= _LONGEST_MESSAGE:
                raise ValueError("too long")
            reply = self.take(parse_json(self.rfile.read(length)))
        except (ValueError, KeyError, TypeError):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        self.answer(json.dumps(reply).encode(), "application/json")

    def take(self, message: Any) -> Any:
        """Take a message of the page, and return the reply, both as JSON.

        Raises:
            ValueError, KeyError, TypeError: If it is no message of this page.
        """
        raise ValueError(f"{self.path} takes no message, and got {message!r}")

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, content: bytes, kind: str) -> None:
        """Send a whole answer, which browsers do not cache."""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def answer_page(self, package: str, name: str) -> None:
        """Send a page of a package, with the style of the report."""
        page = resources.files(package).joinpath(name).read_text()
        style = resources.files("vla_rl.report").joinpath("style.css").read_text()
        self.answer(page.replace("/* style.css */", style).encode(), "text/html; charset=utf-8")


@contextmanager
def serve_page(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[str]:
    """Serve on the loopback at a port (0: any), each request in its own thread; yields the address."""
    try:
        server = ThreadingHTTPServer((HOST, port), handler)
    except (OSError, OverflowError) as error:
        raise UserError(f"port {port} cannot be used ({one_line(error)}); choose another --port") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="page", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
