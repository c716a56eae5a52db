"""The story of a run in a terminal: a panel below the log. In a log file there is no panel, only the log's lines."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.text import Text

from vla_rl.report.story import Story, success_lines
from vla_rl.report.wording import count

_LOSSES = "▁▂▃▄▅▆▇█"
_SHOWN_LOSSES = 40


@contextmanager
def story_panel(story: Story, address: str) -> Iterator[None]:
    """Show the panel on the standard error while a run goes on, where that is a terminal.

    Args:
        story: of the run.
        address: of its page.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler)]
    before = [handler.stream for handler in handlers]
    panel = Live(get_renderable=lambda: draw(story, address), console=console, refresh_per_second=2, transient=True)
    with panel:
        for handler in handlers:
            handler.setStream(sys.stderr)  # the panel's, which writes lines above it
        try:
            yield
        finally:
            for handler, stream in zip(handlers, before, strict=True):
                handler.setStream(stream)


def draw(story: Story, address: str) -> RenderableType:
    """The panel of this moment."""
    story.look()
    moment, run = story.moment, story.read()
    stage = f"{moment.number}/{moment.of} {moment.stage}" if moment.number else "starting"
    rows: list[RenderableType] = [Text(story.sentence, style="bold"), Text(f"{stage}: {moment.doing}")]
    if moment.total:
        rows.append(ProgressBar(total=moment.total, completed=moment.done, width=48))
        rows.append(Text(f" {moment.done:,} of {moment.total:,}"))  # behind the bar, which ends no line
    if moment.loss:
        rows.append(Text(f"loss {moment.loss[-1]:.3f}  {_sparkline(moment.loss[-_SHOWN_LOSSES:])}"))
    if run is not None and run.policies:
        lines = ["", "success on seeds that training never sees", *success_lines(run)]
        rows.append(Text("\n".join(lines), style="green"))
    if (failure := story.newest.get(False)) is not None:
        rows.append(Text(f"\nlast failure: {failure.episode_id} after {count(len(failure), 'step')}", style="red"))
    rows.append(Text(f"see it: {address}"))
    return Panel(Group(*rows), title=story.title, width=min(96, Console(stderr=True).width))


def _sparkline(values: tuple[float, ...]) -> str:
    low, high = min(values), max(values)
    return "".join(_LOSSES[round((value - low) / ((high - low) or 1) * (len(_LOSSES) - 1))] for value in values)
