"""The page of a run that goes on: the story so far, and at its end the report in its place."""

import html
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import numpy as np

from vla_rl.report import charts
from vla_rl.report.images import encode_webp, film_strip, webp_uri
from vla_rl.report.loopback import PageHandler, serve_page
from vla_rl.report.players import camera_figures
from vla_rl.report.story import Story
from vla_rl.report.wording import count

_STRIP_FRAMES = 8
_STRIP_FRAME_PX = 128
_WATCHED_WITHIN_S = 3.0
_FAREWELL_S = 5.0
_TITLES = {False: "The last failure", True: "The last success"}


@contextmanager
def story_page(story: Story, port: int = 0) -> Iterator[str]:
    """Serve the page on the loopback while a run goes on; yields its address. At the end somebody who looks at it has
    the time to get the report.

    Raises:
        UserError: if the port is taken.
    """
    handler = type("Handler", (_Handler,), {"story": story, "asked_s": -np.inf, "left": threading.Event()})
    with serve_page(handler, port) as address:
        yield address
        if story.finished and time.monotonic() < handler.asked_s + _WATCHED_WITHIN_S:  # type: ignore[attr-defined]
            handler.left.wait(_FAREWELL_S)  # type: ignore[attr-defined]


class _Handler(PageHandler):
    story: Story
    asked_s: float
    left: threading.Event

    def do_GET(self) -> None:
        report = self.story.run / "report.html" if self.story.run else None
        if self.path == "/":
            self.answer_page("vla_rl.report", "story.html")
        elif self.path == "/story":
            type(self).asked_s = time.monotonic()
            self.story.look()
            self.answer(json.dumps(parts(self.story)).encode(), "application/json")
        elif self.path == "/report" and report and report.exists():
            self.answer(report.read_bytes(), "text/html; charset=utf-8")
            self.left.set()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)


def parts(story: Story) -> dict[str, str]:
    """What the page shows now: id of an element -> HTML."""
    moment = story.moment
    loss = f", loss {moment.loss[-1]:.3f}" if moment.loss else ""
    stage = f"Stage {moment.number} of {moment.of}: {moment.stage}" if moment.number else "Starting"
    done = f"{moment.done:,} of {moment.total:,}{loss}" if moment.total else ""
    share = moment.done / moment.total if moment.total else 0
    shown = {
        "title": html.escape(story.title),
        "sentence": html.escape(story.sentence),
        "stage": html.escape(stage),
        "doing": html.escape(moment.doing),
        "done": f'{done}<div class="bar"><span class="fill-policy" style="width:{100 * share:.1f}%"></span></div>',
        "pictures": camera_figures(story.pictures),
        "success": _success(story),
    }
    for outcome, title in _TITLES.items():
        shown["last-success" if outcome else "last-failure"] = _attempt(story, outcome, title)
    return shown | {"finished": "yes" if story.finished else ""}


def _success(story: Story) -> str:
    run = story.read()
    if run is None or not run.policies:
        return '<p class="missing">No policy has been measured yet.</p>'
    return charts.success_chart(run.policies, (), ())


def _attempt(story: Story, outcome: bool, title: str) -> str:
    episode = story.newest.get(outcome)
    if episode is None or not episode.images:
        return ""
    camera, images = next(iter(episode.images.items()))
    uri = webp_uri(encode_webp(film_strip(images, _STRIP_FRAMES, _STRIP_FRAME_PX / images.shape[2])))
    who = "an expert" if episode.policy_version < 0 else f"policy version {episode.policy_version}"
    words = f"{episode.episode_id}, {who}: {count(len(episode), 'step')}, from left to right"
    strip = f'<img src="{uri}" alt="{_STRIP_FRAMES} pictures along {html.escape(episode.episode_id)}">'
    return f'<h2>{title}</h2><p class="lead">{html.escape(words)}; camera "{html.escape(camera)}"</p>{strip}'
