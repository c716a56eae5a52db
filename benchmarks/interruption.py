"""Seconds that verbs take to end after a signal while environments of 2 steps/s are at work, and the processes that
they leave.

Example: python -m benchmarks interruption --out runs/interruption
"""

import argparse
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from vla_rl.cli.main import main as vla_rl
from vla_rl.core.errors import UserError
from vla_rl.core.progress import track

STEPS_LOG, MARK, STUBBORN = "INTERRUPTION_STEPS", "INTERRUPTION_CELL", "INTERRUPTION_STUBBORN"
"""Environment variables: file of the steps; the cell of a process; an environment swallows interrupts, and its worker
ignores SIGTERM."""
STEP_S, EPISODE_STEPS = 0.5, 12
_PX = 32
_START_WITHIN_S, _END_WITHIN_S, _AGAIN_AFTER_S, _SETTLE_S = 180.0, 120.0, 0.4, 0.5
_TASK = "benchmarks.interruption:SlowEnv"
_FINETUNE = """
steps: 1000000
checkpoint_every: 20
policy: {horizon: 4, vision: {widths: [4], kernels: [4], strides: [2]}, expert: {width: 16, layers: 1, heads: 2}}
learning: {actor: {batch_size: 4}}
"""
_ALONE = "{algorithm: sft, takeover: {enabled: false}}"
_WORLD = "dynamics.steps=1000000"


class SlowEnv(gymnasium.Env[dict[str, Any], np.ndarray]):
    """A dot to be driven onto a square, at 2 steps/s. Each step leaves a line with its process id in a log.

    Args:
        step_s: duration of a step.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    task_description = "drive the dot onto the square"

    def __init__(self, step_s: float = STEP_S) -> None:
        self._step_s, self._stubborn = step_s, STUBBORN in os.environ
        if self._stubborn and multiprocessing.parent_process() is not None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.action_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
        picture = gymnasium.spaces.Box(0, 255, (_PX, _PX, 3), np.uint8)
        place = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"picture": picture, "place": place})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        del options
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(0.1, 0.9, (2, 2)).astype(np.float32)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        if log := os.environ.get(STEPS_LOG):
            with open(log, "a") as stream:
                stream.write(f"{os.getpid()}\n")
        until_s = time.monotonic() + self._step_s
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                time.sleep(left_s)
            except KeyboardInterrupt:
                if not self._stubborn:
                    raise
        self._steps += 1
        self.place = np.clip(self.place + np.clip(action - self.place, -0.2, 0.2), 0, 1).astype(np.float32)
        done = self._steps == EPISODE_STEPS
        return self._observe(), 0.0, done, False, {"is_success": done}

    def _observe(self) -> dict[str, Any]:
        picture = np.zeros((_PX, _PX, 3), np.uint8)
        for (x, y), color in ((self.goal, (0, 200, 0)), (self.place, (255, 80, 0))):
            picture[int(y * (_PX - 1)), int(x * (_PX - 1))] = color
        return {"picture": picture, "place": self.place}


class Guide:
    """A scripted operator for `SlowEnv`."""

    def __init__(self, env: gymnasium.Env[Any, Any], _options: object) -> None:
        self._env: Any = env.unwrapped

    def reset(self, seed: int) -> None:
        """Nothing is kept between episodes."""

    def command(self, _tick: int, _proposed: np.ndarray) -> np.ndarray:
        goal: np.ndarray = self._env.goal
        return goal


@dataclass(frozen=True)
class Seen:
    """What a process has done so far.

    Attributes:
        log: what it has printed.
        pids: the processes that have stepped an environment.
        mark: in the environment of the process and of those that it starts.
    """

    log: str
    pids: set[str]
    mark: str


@dataclass(frozen=True)
class Cell:
    """One verb that is interrupted.

    Attributes:
        name: of the cell.
        words: the verb and its arguments.
        ready: whether the process is where it is to be interrupted.
        stubborn: see `STUBBORN`.
    """

    name: str
    words: Sequence[str]
    ready: Callable[["Seen"], bool] = lambda seen: len(seen.pids) > 0
    stubborn: bool = False


@dataclass(frozen=True)
class Way:
    """How a process is interrupted.

    Attributes:
        number: the signal.
        code: the exit code that is expected.
        group: the process group is signaled, as by a terminal, and not the process alone.
        again: a second signal follows.
    """

    number: signal.Signals
    code: int
    group: bool = False
    again: bool = False


WAYS = {
    "SIGTERM": Way(signal.SIGTERM, 143),
    "SIGTERM to the group": Way(signal.SIGTERM, 143, group=True),
    "Ctrl-C": Way(signal.SIGINT, 130, group=True),
    "SIGTERM twice": Way(signal.SIGTERM, 143, again=True),
    "kill -9": Way(signal.SIGKILL, -9),
}


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        seconds: from the signal to the end; from the second signal where there are two.
        code: exit code.
        said_s: time to the first line after the signal.
        left: command lines of the processes that it left.
    """

    seconds: float
    code: int
    said_s: float
    left: list[str]


def interrupt(cell: Cell, folder: Path, way: Way) -> Ended:
    """Start a verb and interrupt it.

    Args:
        cell: the verb.
        folder: for its logs.
        way: of interruption.

    Raises:
        UserError: if the verb ended before it was interrupted, or never came to the point of it.
    """
    log, steps, mark = folder / f"{cell.name}.log", folder / f"{cell.name}.steps", f"{cell.name}-{time.monotonic_ns()}"
    steps.write_text("")
    environment = {**os.environ, STEPS_LOG: str(steps), MARK: mark, "OMP_NUM_THREADS": "1"}
    environment |= {STUBBORN: "1"} if cell.stubborn else {}
    command = [sys.executable, "-m", "vla_rl.cli.main", *cell.words]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        until_s = time.monotonic() + _START_WITHIN_S
        while not cell.ready(Seen(log.read_text(), set(steps.read_text().split()), mark)):
            if process.poll() is not None or time.monotonic() > until_s:
                raise UserError(f"{shlex.join(cell.words)} was not interrupted: {log.read_text()[-2000:]}")
            time.sleep(0.02)
        send = os.killpg if way.group else os.kill
        size, started_s, said_s = log.stat().st_size, time.monotonic(), float("inf")
        send(process.pid, way.number)
        waited_s = _AGAIN_AFTER_S if way.again else _END_WITHIN_S
        while process.poll() is None and time.monotonic() - started_s < waited_s:
            if said_s == float("inf") and log.stat().st_size > size:
                said_s = time.monotonic() - started_s
            time.sleep(0.005)
        if way.again and process.poll() is None:
            started_s = time.monotonic()
            send(process.pid, way.number)
            process.wait(_END_WITHIN_S)
        seconds = time.monotonic() - started_s
        if said_s == float("inf") and log.stat().st_size > size:
            said_s = seconds
        return Ended(round(seconds, 3), process.wait(1.0), round(said_s, 3), left_of(mark))
    finally:
        for pid in pids_of(mark):
            os.kill(pid, signal.SIGKILL)


def left_of(mark: str) -> list[str]:
    """The command lines of processes with a mark in their environment that do not end within a moment."""
    until_s = time.monotonic() + _SETTLE_S
    while commands_of(mark) and time.monotonic() < until_s:  # multiprocessing's tracker ends after the others
        time.sleep(0.01)
    return commands_of(mark)


def commands_of(mark: str) -> list[str]:
    """The command lines of living processes with a mark in their environment."""
    lines = []
    for pid in pids_of(mark):
        try:
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [line for line in lines if line]


def pids_of(mark: str) -> list[int]:
    """Living processes with a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def prepare(folder: Path) -> Path:
    """Demonstrations and a tiny run of the same task without a pause. Returns the run, with ``step_s`` set to slow."""
    fast, demonstrations, run = "task.kwargs={step_s: 0.0}", folder / "demonstrations", folder / "base"
    words = ["record", _TASK, "--with", "benchmarks.interruption:Guide", "--episodes", "3", "--out"]
    _do(*words, str(demonstrations), fast)
    own = [f"task.env={_TASK}", f"task.demonstrations={demonstrations}", "takeover.enabled=false"]
    _do("train", "--config", "tiny", "--out", str(run), *own, fast, "budget.rounds=1")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("step_s: 0.0", f"step_s: {STEP_S}"))
    (folder / "finetune.yaml").write_text(_FINETUNE)
    (folder / "alone.yaml").write_text(_ALONE)
    return run


def _do(*words: str) -> None:
    if code := vla_rl(words):
        raise UserError(f"{shlex.join(words)} ended with code {code}")


def make_cells(folder: Path, run: Path, suffix: str) -> list[Cell]:
    """The verbs; the suffix keeps their folders apart."""

    def out(name: str) -> str:
        return str(folder / f"{name}-{suffix}")

    def two(seen: Seen) -> bool:
        return len(seen.pids) > 1

    def spawns(seen: Seen) -> bool:
        return any("spawn_main" in line for line in commands_of(seen.mark))

    def imports(_: Seen) -> bool:
        time.sleep(1.0)
        return True

    def learns(seen: Seen) -> bool:
        return any(world.glob("cache/*")) and imports(seen)

    own = [f"task.env={_TASK}", f"task.demonstrations={folder / 'demonstrations'}", "takeover.enabled=false"]
    train = ["train", "--config", "tiny", *own, "--from", str(run)]
    practice = ["budget.episodes_per_round=40", "budget.evaluation_episodes=40"]
    ahead = ["budget.staleness=1", "budget.steps_per_round=100000", *practice, "budget.evaluation_episodes=2"]
    few = ["budget.evaluation_episodes=1", "budget.episodes_per_round=9"]
    slow = f"task.kwargs={{step_s: {STEP_S}}}"
    tuned, world = Path(out("finetune")), Path(out("world"))
    return [
        Cell("spawn", [*train, slow, *practice, "workers=2", "--out", out("spawn")], spawns),
        Cell("import", [*train, slow, "--out", out("import")], imports),
        Cell("train workers=0", [*train, slow, *practice, "--out", out("train0")]),
        Cell("train workers=2", [*train, slow, *practice, "workers=2", "--out", out("train2")], two),
        Cell("stubborn workers=0", [*train, slow, *practice, "--out", out("stubborn0")], stubborn=True),
        Cell("stubborn workers=2", [*train, slow, *practice, "workers=2", "--out", out("stubborn2")], two, True),
        Cell("train staleness=1", [*train, slow, *ahead, "workers=2", "--out", out("stale")], two),
        Cell("train ray", [*train, slow, *practice, "workers=2", "ray=local", "--out", out("ray")], two),
        Cell("eval", ["eval", str(run), "--out", out("eval")]),
        Cell(
            "demo",
            ["demo", "--config", "tiny", *own, slow, *few, "--alone", str(folder / "alone.yaml"), "--out", out("demo")],
            two,
        ),
        Cell("record", ["record", _TASK, "--with", "benchmarks.interruption:Guide", "--out", out("record")]),
        Cell("rollout sim", ["rollout", str(run), "--robot", "sim", "--episodes", "9", "--out", out("rollout")]),
        Cell(
            "rollout mock realtime",
            ["rollout", str(run), "--robot", "mock", "--realtime", "--episodes", "99", "--out", out("mock")],
            lambda seen: "rollout-000000" in seen.log,
        ),
        Cell(
            "finetune",
            ["finetune", "--data", str(run), "--config", str(folder / "finetune.yaml"), "--out", str(tuned)],
            lambda _: any(tuned.glob("checkpoints/step_*")),
        ),
        Cell(
            "imagine train",
            ["imagine", "train", str(run), "--near-success", "0", "--out", str(world), _WORLD],
            learns,
        ),
        Cell("play", ["play", "--run", str(run), "--port", "0"], lambda seen: "in a browser" in seen.log),
        Cell("task check", ["task", "check", _TASK, "--picture", out("picture.png")]),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cells", nargs="*", default=[], metavar="NAME", help="only cells whose names begin so")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS, help="of interruption (default: all)")
    parser.add_argument("--scratch", type=Path, help="folder of runs and logs (default: a temporary one)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Interrupt every verb in every way."""
    ended: dict[str, Ended] = {}
    with tempfile.TemporaryDirectory(prefix="vla-rl-interruption-") as scratch:
        folder = options.scratch or Path(scratch)
        base = folder / "base"
        if not base.exists():
            base = prepare(folder)
        cells = [
            (cell, way)
            for number, way in enumerate(options.ways)
            for cell in make_cells(folder, base, f"{os.getpid()}-{number}")
            if not options.cells or any(cell.name.startswith(name) for name in options.cells)
        ]
        for cell, way in track(cells, "interruption", "cell", len(cells)):
            ended[f"{cell.name}, {way}"] = found = interrupt(cell, folder, WAYS[way])
            print(f"{cell.name}, {way}: {found}", file=sys.stderr, flush=True)
    return {
        "interrupt_seconds": {name: each.seconds for name, each in ended.items()},
        "interrupt_seconds_max": max(each.seconds for each in ended.values()),
        "line_after_s_max": max(each.said_s for each in ended.values() if each.code != -signal.SIGKILL),
        "exit_codes": {name: each.code for name, each in ended.items()},
        "exit_codes_wrong": sum(each.code != WAYS[name.rpartition(", ")[2]].code for name, each in ended.items()),
        "children_left": sum(len(each.left) for each in ended.values()),
        "left": {name: each.left for name, each in ended.items() if each.left},
    }


def table(result: dict[str, Any]) -> str:
    """Return Markdown: one row per way of interruption, and the processes that all cells left."""
    rows = []
    for way in WAYS:
        seconds = {name: each for name, each in result["interrupt_seconds"].items() if name.endswith(f", {way}")}
        if seconds:
            slowest = max(seconds, key=lambda name: seconds[name])
            rows.append(f"| {way} | {len(seconds)} | {seconds[slowest]:.1f} | {slowest.removesuffix(f', {way}')} |")
    left = f"Processes left: {result['children_left']}. Wrong exit codes: {result['exit_codes_wrong']}."
    return "\n".join(["| signal | cases | slowest end, s | in |", "|---|---|---|---|", *rows, "", left])
