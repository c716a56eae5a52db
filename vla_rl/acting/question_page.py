"""The queue of questions as a browser page: a film of the last seconds of an episode, and three keys.

A question is a stored episode whose outcome is unknown (`vla_rl.outcomes.labeling.open_questions`). An answer is a
label in the store, so practice that goes on in another process uses it from its next round on.
"""

import base64
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import numpy as np

from vla_rl.core.types import Episode
from vla_rl.data.store import EpisodeStore
from vla_rl.outcomes.labeling import is_person, open_questions
from vla_rl.report.loopback import PageHandler, serve_page
from vla_rl.report.media import encode_gif, tile_cameras

ANSWERS: dict[str, bool | None] = {"s": True, "f": False, "n": None}
"""Key -> outcome; None: the person is not sure, so nothing learns from the outcome."""
_LAST_S, _HEIGHT_PX = 4.0, 256


def last_seconds(episode: Episode) -> bytes:
    """Return the film of an episode's last seconds, all cameras side by side, as a GIF: it needs no video codec."""
    count = round(_LAST_S * episode.control_hz)
    images = {camera: pictures[-count:] for camera, pictures in episode.images.items()}
    if episode.final_state is not None:
        images = {name: np.append(each, episode.final_images[name][None], 0) for name, each in images.items()}
    return encode_gif(tile_cameras(images, _HEIGHT_PX), round(1000 / episode.control_hz))


class QuestionQueue:
    """Asks a person about the episodes of a store, in any thread.

    Args:
        store: Store of the episodes.
        names: Episodes to ask about. None: all open questions, also those that come later.

    Attributes:
        answered: Number of answers.
        done: Set when all named episodes have an answer.
    """

    def __init__(self, store: EpisodeStore, names: Sequence[str] | None = None) -> None:
        self._store, self._lock = store, threading.Lock()
        self._names = None if names is None else list(names)
        self._shown: set[str] = set()
        self.answered, self.done = 0, threading.Event()
        if self._names == []:
            self.done.set()

    def next(self, shown: str = "") -> dict[str, Any]:
        """Return what the page shows of the oldest question: its name, how many are left, its film in base64.

        A page that shows it already gets no film: it asks every two seconds, beside practice on the same machine.
        """
        with self._lock:
            waiting = open_questions(self._store) if self._names is None else self._names
            if not waiting:
                return {"name": "", "left": 0}
            self._shown.add(waiting[0])
            question = {"name": waiting[0], "left": len(waiting)}
            if waiting[0] == shown:
                return question
            episode = self._store.read(waiting[0])
        film = base64.b64encode(last_seconds(episode)).decode() if episode.images else ""
        return {**question, "task": episode.task, "film": film}

    def answer(self, name: str, key: str) -> None:
        """Label an episode, also where a detector has judged it since it was shown.

        Raises:
            KeyError: For another key.
            ValueError: For an episode that was not asked.
        """
        outcome = ANSWERS[key]
        with self._lock:
            asked = open_questions(self._store) if self._names is None else self._names
            is_shown = name in self._shown and not is_person(self._store.edit_log(name).labeler)
            if not is_shown and name not in asked:
                raise ValueError(f"{name} is no question")
            self._store.label(name, outcome)
            self._shown.discard(name)
            self.answered += 1
            if self._names is not None and name in self._names:
                self._names.remove(name)
                if not self._names:
                    self.done.set()


@contextmanager
def question_page(queue: QuestionQueue, port: int = 0) -> Iterator[str]:
    """Serve the page on the loopback; yields its address. UserError if the port is taken."""
    with serve_page(type("Handler", (_Handler,), {"queue": queue}), port) as address:
        yield address


class _Handler(PageHandler):
    queue: QuestionQueue

    def do_GET(self) -> None:
        address, _, shown = self.path.partition("?shown=")
        if address == "/":
            self.answer_page("vla_rl.acting", "questions.html")
        elif address == "/question":
            self.answer(json.dumps(self.queue.next(shown)).encode(), "application/json")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def take(self, message: Any) -> dict[str, Any]:
        self.queue.answer(message["name"], message["key"])
        return self.queue.next()
