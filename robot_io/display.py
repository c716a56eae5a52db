"""A live panel in the terminal: rate, ages, delays, what the gate changed, who acts. A subscriber of the loop.

Threading: the control thread counts steps. In the slack after a command it builds a frame, at most five times a second.
Only the write to the terminal, which may block, happens in another thread. A thread that did more would hold the
interpreter while the control thread waits for it.
"""

import logging
import os
import re
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Self, TextIO

import numpy as np

from robot_io.reasons import Reason
from vla_rl.core.protocols import Subscriber
from vla_rl.core.types import Source, Step

_WINDOW = 512  # steps of which the panel shows rate and percentiles
_FRAME_NS = 200_000_000
_SPARKS = 32  # chunks whose delays are drawn
_BLOCKS = "▁▂▃▄▅▆▇█"
_CLEAR_LINE, _HIDE_CURSOR, _SHOW_CURSOR = "\x1b[K", "\x1b[?25l", "\x1b[?25h"
_RED, _YELLOW, _GREEN, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[0m"
_LIMITING = Reason.RATE | Reason.JOINT_LIMIT | Reason.WORKSPACE | Reason.SELF_COLLISION
_COLORS = {str(reason.name): _YELLOW if reason in _LIMITING else _RED for reason in Reason} | {
    "POLICY": _GREEN,
    "DEMO": _GREEN,
    "HUMAN": _YELLOW,
    "HOLD": _RED,
    "SMOOTHED": _PLAIN,
}
_WORD = re.compile(rf"\b({'|'.join(_COLORS)})\b")


class LoopStatistics(Subscriber):
    """What the loop has done lately, from its steps. Costs about two microseconds a step.

    Attributes:
        ticks: commands sent, in all attempts.
        missed: ticks that were skipped.
        held: steps that only held.
        takeovers: how often a person took over.
        reasons: gate flags -> steps with exactly these flags.
        last: the newest step.
    """

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._periods_ns, self._delays = deque[int](maxlen=_WINDOW), deque[int](maxlen=_WINDOW)
        self._ages_ms = deque[float](maxlen=_WINDOW)
        self._step_ns = 0
        self._chunk_id = -1
        self.ticks = self.missed = self.held = self.takeovers = 0
        self.reasons: Counter[int] = Counter()
        self._last_ns: dict[int, int] = {}
        self.last: Step | None = None

    def on_step(self, step: Step) -> None:
        """Count one step."""
        now_ns, extras, before = self._now_ns(), step.extras, self.last
        skipped = 0 if before is None else step.observation.tick - before.observation.tick - 1
        if before is None or skipped < 0:  # an attempt begins
            self._chunk_id = -1
            was_human = False
        else:
            self._periods_ns.append(now_ns - self._step_ns)
            self.missed += skipped
            was_human = before.source is Source.HUMAN
        self._step_ns, self.last = now_ns, step
        self.ticks += 1
        self.held += step.source is Source.HOLD
        self.takeovers += step.source is Source.HUMAN and not was_human
        self._ages_ms.append(extras["observation_age_ms"])
        chunk_id = int(extras["chunk_id"])
        if chunk_id > self._chunk_id:
            self._delays.append(int(extras["chunk_index"]))
            self._chunk_id = chunk_id
        reasons = int(extras["gate_reasons"])
        if reasons:
            self.reasons[reasons] += 1
            self._last_ns[reasons] = now_ns

    def periods_ms(self) -> np.ndarray:
        """float [N], the time between steps, of the last ones."""
        return np.array(tuple(self._periods_ns)) * 1e-6

    def ages_ms(self) -> np.ndarray:
        """float [N], ages of the observations when they were used."""
        return np.array(tuple(self._ages_ms))

    def delays(self, last: int) -> np.ndarray:
        """int [N], the index at which each of the last chunks was entered: its delay in ticks, the newest last."""
        return np.array(tuple(self._delays)[max(len(self._delays) - last, 0) :], np.int64)

    def recent_reasons(self, within_s: float) -> Reason:
        """Why the gate changed any action of the last while. Called from any thread."""
        since_ns = self._now_ns() - within_s * 1e9
        recent = Reason(0)
        for flags, last_ns in tuple(self._last_ns.items()):
            if last_ns >= since_ns:
                recent |= Reason(flags)
        return recent

    def reason_counts(self) -> dict[Reason, int]:
        """Return how many steps the gate changed for each reason."""
        counts: Counter[Reason] = Counter()
        for flags, steps in self.reasons.items():
            for reason in Reason(flags):
                counts[reason] += steps
        return dict(counts.most_common())


class LiveDisplay(Subscriber):
    """Shows `LoopStatistics` while it is entered. Messages of `logging` appear above the panel meanwhile.

    Args:
        title: the robot.
        control_hz: what the rate should be.
        stream: the terminal.
        columns: width of the panel; default: the terminal's.
    """

    def __init__(self, title: str, control_hz: float, stream: TextIO = sys.stderr, columns: int | None = None) -> None:
        self.statistics = LoopStatistics()
        self._title, self._control_hz, self._stream = title, control_hz, stream
        self._columns = columns
        self._drawn_ns = 0
        self._frame = ""
        self._ready = threading.Semaphore(0)
        self._closing = False
        self._handler = _LinesAbove()

    def __enter__(self) -> Self:
        if self._columns is None:
            self._columns = os.get_terminal_size(self._stream.fileno()).columns
        root = logging.getLogger()
        self._handlers, root.handlers = root.handlers, [self._handler]
        self._writer = threading.Thread(target=self._write, name="display", daemon=True)
        self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._frame = self._compose()
        self._ready.release()
        self._writer.join(timeout=1.0)  # a terminal that takes nothing stays unchanged
        logging.getLogger().handlers = self._handlers

    def on_step(self, step: Step) -> None:
        """Count the step; now and then put a frame together for the writer."""
        self.statistics.on_step(step)
        now_ns = time.monotonic_ns()
        if now_ns - self._drawn_ns >= _FRAME_NS:
            self._drawn_ns = now_ns
            self._frame = self._compose()
            self._ready.release()

    def _compose(self) -> str:
        lines = panel(self.statistics, self._title, self._control_hz)
        return "\n".join(
            _WORD.sub(lambda word: f"{_COLORS[word[0]]}{word[0]}{_PLAIN}", line[: self._columns]) for line in lines
        )

    def _write(self) -> None:
        """Write the newest frame over the previous one, in the writer thread, until the end or a closed terminal."""
        height = 0
        try:
            self._stream.write(_HIDE_CURSOR)
            while not self._closing:
                self._ready.acquire()
                above = [self._handler.lines.popleft() for _ in range(len(self._handler.lines))]
                lines = self._frame.split("\n")
                up = f"\x1b[{height}A\r" if height else ""
                self._stream.write(up + "".join(f"{line}{_CLEAR_LINE}\n" for line in [*above, *lines]))
                self._stream.flush()
                height = len(lines)
            self._stream.write(_SHOW_CURSOR)
            self._stream.flush()
        except OSError:
            return


class _LinesAbove(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines = deque[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def panel(statistics: LoopStatistics, title: str, control_hz: float) -> list[str]:
    """Return the lines of the panel, without colors."""
    step = statistics.last
    if step is None:
        return [f"{title}: no step yet"]
    extras = step.extras
    periods, ages = statistics.periods_ms(), statistics.ages_ms()
    delays = statistics.delays(_SPARKS)
    gate = ", ".join(f"{reason.name} {steps}" for reason, steps in statistics.reason_counts().items())
    rate = f"{1e3 / periods.mean():.1f}" if len(periods) else "-"
    return [
        f"{title}   tick {step.observation.tick}   {step.source.name}   policy version {extras['policy_version']:.0f}",
        f"  rate         {rate} of {control_hz:g} Hz   period {_spread(periods)} ms   missed {statistics.missed}",
        f"  observation  {extras['observation_age_ms']:.1f} ms old   {_spread(ages)} ms",
        f"  chunk delay  {delays[-1] if len(delays) else '-'} ticks   {_sparkline(delays)}"
        f"   action {extras['action_age_ms']:.0f} ms old   held {statistics.held}",
        f"  gate         {gate or 'changed nothing'}",
        f"  takeovers    {statistics.takeovers}",
    ]


def _spread(values: np.ndarray) -> str:
    if len(values) == 0:
        return "-"
    middle, high = np.percentile(values, (50, 99))
    return f"p50 {middle:.2f}  p99 {high:.2f}  max {values.max():.2f}"


def _sparkline(values: np.ndarray) -> str:
    return "".join(_BLOCKS[min(int(value), len(_BLOCKS) - 1)] for value in values)
