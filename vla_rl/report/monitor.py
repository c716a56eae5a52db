"""The monitor of a run in progress: its stage, its loss and the newest attempts, as a web page and in a terminal.

The run's thread calls `on_metrics` and `on_progress` of the monitor, which only take notes. Everything else is called
by the threads that show the monitor.
"""

import html
import json
import logging
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, override

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.text import Text

from vla_rl.core.errors import StoreError, UserError
from vla_rl.core.types import Episode
from vla_rl.report.loopback import PageHandler, serve_page
from vla_rl.report.media import camera_figures, film_strip, image_uri
from vla_rl.report.run_episodes import open_store
from vla_rl.report.run_files import Run, read_run
from vla_rl.report.sinks import MetricSink
from vla_rl.report.wording import count, percent_interval

_LOOK_EVERY_S = 1.0
_STRIP_FRAMES, _STRIP_FRAME_PX = 8, 128
_WATCHED_WITHIN_S, _FAREWELL_S = 3.0, 5.0
_BAR, _LOSSES, _SHOWN_LOSSES = 24, "▁▂▃▄▅▆▇█", 40
_DOING = {
    "demonstrate": "An expert shows the task.",
    "supervise": "The policy learns to imitate the demonstrations.",
    "evaluate": "The policy is evaluated on seeds that training never sees.",
    "collect": "The policy practices; its supervisor takes over where it goes wrong.",
    "compare": "The new policy acts with and without its critic and residual. What does better stays.",
    "check": "The new policy acts without help. If it does worse than the one before, that one stays.",
    "practice": "The policy learns from the outcomes which of its actions to repeat.",
}


@dataclass(frozen=True)
class Stage:
    """The stage that a run is in, from number 1; without a name, it is before the first stage.

    ``done`` of ``total`` episodes or steps are done (None: unknown). The actor's losses are in it, newest last.
    """

    name: str = ""
    number: int = 0
    done: int = 0
    total: int | None = None
    loss: tuple[float, ...] = ()

    @property
    def doing(self) -> str:
        """What happens in this stage, in a sentence."""
        return _DOING.get(self.name.partition(" ")[0], "The run is being prepared.")


@dataclass
class Monitor(MetricSink):
    """Collects what a run in progress shows.

    Args:
        stages: Names of the run's stages, in order; may be set later.
        run: The run folder; None while there is none yet.
        title, sentence: The name of the task, and the task in words.
        pictures: Images of the task by camera, uint8 [H, W, 3].
        newest: The newest attempt that failed (False) and that succeeded (True).
        finished: Whether the report is written.
        stage: The present stage.
    """

    stages: Sequence[str] = ()
    run: Path | None = None
    title: str = ""
    sentence: str = ""
    pictures: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    newest: dict[bool, Episode] = field(default_factory=dict)
    finished: bool = False
    stage: Stage = Stage()

    def __post_init__(self) -> None:
        self._looking = threading.Lock()
        self._seen: set[tuple[str, str]] = set()
        self._looked_s = 0.0

    @override
    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        loss = metrics.get("actor_loss")
        if metrics.get("kind") == "train" and loss is not None:
            self.stage = replace(self.stage, loss=(*self.stage.loss, float(loss)))

    def on_progress(self, name: str, done: int, total: int | None) -> None:
        """Take progress from `vla_rl.core.progress`; work inside a stage, such as decoding frames, is ignored."""
        if name in self.stages:
            loss = self.stage.loss if name == self.stage.name else ()
            self.stage = Stage(name, self.stages.index(name) + 1, done, total, loss)

    def read(self) -> Run | None:
        """Read the run folder; None while it is empty."""
        try:
            return None if self.run is None else read_run(self.run)
        except UserError:
            return None

    def look(self) -> None:
        """Look for new attempts, at most once a second."""
        with self._looking:
            if self.run is None or time.monotonic() < self._looked_s + _LOOK_EVERY_S:
                return
            self._looked_s = time.monotonic()
            for name in ("episodes", "evaluation"):
                store = open_store(self.run / name, [])
                unseen = [(name, each) for each in (store.ids() if store else ()) if (name, each) not in self._seen]
                self._seen.update(unseen)
                wanted = {False, True}
                for _, episode_id in reversed(unseen):
                    try:
                        success = store.read_header(episode_id).success if store and wanted else None
                        if store and success in wanted:
                            wanted.discard(bool(success))
                            self.newest[bool(success)] = episode = store.read(episode_id)
                            self.sentence = self.sentence or episode.task
                    except StoreError:  # the report names damaged episodes
                        continue


@contextmanager
def monitor_page(monitor: Monitor, port: int = 0) -> Iterator[str]:
    """Serve the page on the loopback while a run is in progress; yields its address. At the end, a browser that shows
    the page has some seconds to load the report.

    Raises:
        UserError: If the port is taken.
    """
    handler = type("Handler", (_Handler,), {"monitor": monitor, "asked_s": -np.inf, "left": threading.Event()})
    with serve_page(handler, port) as address:
        yield address
        if monitor.finished and time.monotonic() < handler.asked_s + _WATCHED_WITHIN_S:  # type: ignore[attr-defined]
            handler.left.wait(_FAREWELL_S)  # type: ignore[attr-defined]


class _Handler(PageHandler):
    monitor: Monitor
    asked_s: float
    left: threading.Event

    def do_GET(self) -> None:
        report = self.monitor.run / "report.html" if self.monitor.run else None
        if self.path == "/":
            self.answer_page("vla_rl.report", "monitor.html")
        elif self.path == "/parts":
            type(self).asked_s = time.monotonic()
            self.monitor.look()
            self.answer(json.dumps(page_parts(self.monitor)).encode(), "application/json")
        elif self.path == "/report" and report and report.exists():
            self.answer(report.read_bytes(), "text/html; charset=utf-8")
            self.left.set()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)


def page_parts(monitor: Monitor) -> dict[str, str]:
    """Return the present content of the page: id of an element -> HTML."""
    stage, run = monitor.stage, monitor.read()
    loss = f", loss {stage.loss[-1]:.3f}" if stage.loss else ""
    done = f"{stage.done:,} of {stage.total:,}{loss}" if stage.total else ""
    share = 100 * stage.done / stage.total if stage.total else 0
    name = f"Stage {stage.number} of {len(monitor.stages)}: {stage.name}" if stage.number else "Starting"
    success = '<p class="missing">No policy has been evaluated yet.</p>'
    if run is not None and run.policies:
        success = f"<pre>{html.escape(chr(10).join(success_lines(run)))}</pre>"
    return {
        "title": html.escape(monitor.title),
        "sentence": html.escape(monitor.sentence),
        "stage": html.escape(name),
        "doing": html.escape(stage.doing),
        "done": f'{done}<div class="bar"><span class="fill-policy" style="width:{share:.1f}%"></span></div>',
        "pictures": camera_figures(monitor.pictures),
        "success": success,
        "last-failure": _attempt(monitor.newest.get(False), "The last failure"),
        "last-success": _attempt(monitor.newest.get(True), "The last success"),
        "finished": "yes" if monitor.finished else "",
    }


def _attempt(episode: Episode | None, title: str) -> str:
    if episode is None or not episode.images:
        return ""
    camera, images = next(iter(episode.images.items()))
    uri = image_uri(film_strip(images, _STRIP_FRAMES, _STRIP_FRAME_PX / images.shape[2]))
    who = "an expert" if episode.policy_version < 0 else f"policy version {episode.policy_version}"
    words = f'{episode.episode_id}, {who}: {count(len(episode), "step")}, from left to right; camera "{camera}"'
    strip = f'<img src="{uri}" alt="{_STRIP_FRAMES} pictures along {html.escape(episode.episode_id)}">'
    return f'<h2>{title}</h2><p class="lead">{html.escape(words)}</p>{strip}'


@contextmanager
def monitor_panel(monitor: Monitor, address: str) -> Iterator[None]:
    """Show a panel below the log on the standard error, if that is a terminal, with the address of the page."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler)]
    before = [handler.stream for handler in handlers]
    panel = Live(get_renderable=lambda: draw(monitor, address), console=console, refresh_per_second=2, transient=True)
    with panel:
        for handler in handlers:
            handler.setStream(sys.stderr)  # the panel's, which writes lines above it
        try:
            yield
        finally:
            for handler, stream in zip(handlers, before, strict=True):
                handler.setStream(stream)


def draw(monitor: Monitor, address: str) -> RenderableType:
    """Draw the present panel."""
    monitor.look()
    stage, run = monitor.stage, monitor.read()
    name = f"{stage.number}/{len(monitor.stages)} {stage.name}" if stage.number else "starting"
    rows: list[RenderableType] = [Text(monitor.sentence, style="bold"), Text(f"{name}: {stage.doing}")]
    if stage.total:
        rows.append(ProgressBar(total=stage.total, completed=stage.done, width=48))
        rows.append(Text(f" {stage.done:,} of {stage.total:,}"))  # behind the bar, which ends no line
    if stage.loss:
        losses = np.array(stage.loss[-_SHOWN_LOSSES:])
        levels = (losses - losses.min()) / (np.ptp(losses) or 1) * (len(_LOSSES) - 1)
        sparkline = "".join(_LOSSES[round(level)] for level in levels)
        rows.append(Text(f"loss {stage.loss[-1]:.3f}  {sparkline}"))
    if run is not None and run.policies:
        rows.append(Text("\n".join(["", "success on held-out seeds", *success_lines(run)]), style="green"))
    if (failure := monitor.newest.get(False)) is not None:
        rows.append(Text(f"\nlast failure: {failure.episode_id} after {count(len(failure), 'step')}", style="red"))
    rows.append(Text(f"see it: {address}"))
    return Panel(Group(*rows), title=monitor.title, width=min(96, Console(stderr=True).width))


def success_lines(run: Run) -> list[str]:
    """Return a line of text per policy, then per control: a bar and the success rate with its interval."""
    named = [(policy.control or policy.label, policy) for policy in [*run.policies, *run.controls]]
    width = max((len(name) for name, _ in named), default=0)
    lines = []
    for name, policy in named:
        full = round(policy.rate * _BAR)
        bar = "█" * full + "░" * (_BAR - full)
        lines.append(f"{name:<{width}}  {bar}  {policy.rate:4.0%} {percent_interval(policy.interval)}")
    return lines
