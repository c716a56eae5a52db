"""The moving picture of docs/learn/asynchronous.md: what two strategies make of a policy that thinks for four ticks.

Drawn from the executor and the virtual clock of the package, so it shows what the code does.

Example: python -m benchmarks.docs_picture
"""

from html import escape
from pathlib import Path

import numpy as np

from vla_rl.core.clock import VirtualClock
from vla_rl.core.files import write_atomic
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.execution.executor import Executor
from vla_rl.execution.plan import NO_CHUNK, TickAction
from vla_rl.execution.strategies import execution_config
from vla_rl.execution.virtual import LatencyConfig, VirtualPlanner

PICTURE = Path("docs/images/asynchronous.svg")
ROWS = {
    "sync": "sync: executes six actions, then stands still and thinks",
    "naive": "asynchronous: thinks while it acts, and enters each chunk where time is",
}
TICKS, DELAY, HORIZON, EXECUTE, CONTROL_HZ = 48, 4, 16, 6, 20.0
_BOX, _LEFT, _ROW = 15, 12, 92  # sizes in the picture's units
_SECONDS_A_TICK = 0.25  # five times slower than the robot
_CHUNKS = ("a", "b", "c")
_STYLE = """
svg { --paper: #ffffff; --ink: #1b1f24; --muted: #5f6873; --a: #1764c8; --b: #c2571a; --c: #12805c }
text { font: 12px sans-serif }
@media (prefers-color-scheme: dark) {
  svg { --paper: #1c1c1c; --ink: #d5d9df; --muted: #9ba4ad; --a: #5b9bee; --b: #e68a50; --c: #4fc99c }
}
.paper { fill: var(--paper) } .ink { fill: var(--ink) } .muted { fill: var(--muted) }
.a { fill: var(--a) } .b { fill: var(--b) } .c { fill: var(--c) }
.hold { fill: none; stroke: var(--muted) }
.index { fill: var(--paper); font: 9px sans-serif; text-anchor: middle }
@keyframes appear { 0%, 1% { opacity: .25 } 2%, 100% { opacity: 1 } }
.tick { animation: appear CYCLEs linear infinite both }
@media (prefers-reduced-motion: reduce) { .tick { animation: none } }
"""


class _Counting:
    """A policy whose actions say nothing: only their chunks are looked at."""

    version = 0

    def reset(self, seed: int) -> None:
        del seed

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        del committed
        return ActionChunk(np.zeros((HORIZON, 1), np.float32), observation.tick, 0, self.version)


def play(strategy: str) -> list[TickAction]:
    """What a strategy does at each tick, with a first chunk that is there from the start."""
    clock = VirtualClock()
    planner = VirtualPlanner(_Counting(), clock, CONTROL_HZ, LatencyConfig(typical=DELAY))
    executor = Executor(planner, execution_config(strategy, execute_ticks=EXECUTE))
    executor.reset(0, np.zeros(1, np.float32))
    period_ns = round(1e9 / CONTROL_HZ)

    def seen(tick: int) -> Observation:
        return Observation({}, np.zeros(1, np.float32), "", tick)

    while not executor.ready(lambda: seen(0), clock.now_ns()):
        clock.sleep_until_ns(clock.now_ns() + period_ns)
    start_ns, actions = clock.now_ns(), []
    for tick in range(TICKS):
        clock.sleep_until_ns(start_ns + tick * period_ns)
        actions.append(executor.propose(seen(tick), clock.now_ns()))
        executor.sent(actions[-1].action)
    return actions


def draw() -> str:
    """The picture as SVG; it moves by CSS alone, and stands still for who prefers that."""
    width, height = 2 * _LEFT + TICKS * _BOX, len(ROWS) * _ROW + 10
    parts = [f'<rect class="paper" width="{width}" height="{height}"/>']
    for row, (strategy, words) in enumerate(ROWS.items()):
        actions, top = play(strategy), row * _ROW + 12
        done = sum(action.chunk_id != NO_CHUNK for action in actions)
        parts.append(f'<text class="ink" x="{_LEFT}" y="{top + 10}">{escape(words)}</text>')
        parts.append(f'<text class="muted" x="{_LEFT}" y="{top + 66}">{done} of {TICKS} ticks with a new action</text>')
        parts += [_tick(action, top + 22) for action in actions]
    style = _STYLE.replace("CYCLE", f"{TICKS * _SECONDS_A_TICK + 3:g}")
    title = "Two rows of ticks. With sync every chunk is followed by empty ticks; without it hardly any tick is empty."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"><title>{title}</title>'
        f"<style>{style}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _tick(action: TickAction, y: int) -> str:
    x = _LEFT + action.tick * _BOX
    box = f'x="{x + 1}" y="{y}" width="{_BOX - 2}" height="26" rx="2"'
    start = f'<g class="tick" style="animation-delay: {action.tick * _SECONDS_A_TICK:g}s"><rect {box}'
    if action.chunk_id == NO_CHUNK:
        return f'{start} class="hold"/></g>'
    index = f'<text class="index" x="{x + _BOX / 2}" y="{y + 17}">{action.chunk_index}</text>'
    return f'{start} class="{_CHUNKS[action.chunk_id % len(_CHUNKS)]}"/>{index}</g>'


if __name__ == "__main__":
    write_atomic(PICTURE, draw().encode())
