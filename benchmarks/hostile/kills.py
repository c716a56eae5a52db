"""Training that is killed: a tiny fine-tune gets kill -9 or SIGTERM at random moments, and continues. It must end in
the weights of an uninterrupted one.

`benchmarks.hostile.kill_server` forks the processes, so that a kill costs no import of torch.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.hostile.kinds import episode
from vla_rl.data.episode_file import SUFFIX, verify_file
from vla_rl.data.store import EpisodeStore

_CONFIG = """
steps: 12
checkpoint_every: 3
policy: {horizon: 4, vision: {widths: [4], kernels: [4], strides: [2]}, expert: {width: 16, layers: 1, heads: 2}}
learning: {actor: {batch_size: 4}}
"""


def measure(block: int, kills: int) -> dict[str, Any]:
    """Kill so often, over as many runs as that takes.

    Returns:
        ``kills``; ``runs``; ``other_weights``: runs that did not end as the one that was left alone; ``episodes_lost``;
        ``tracebacks``: processes that ended by themselves with another code than 0.
    """
    found: dict[str, Any] = {
        "kind": "kills",
        "kills": 0,
        "runs": 0,
        "other_weights": 0,
        "episodes_lost": 0,
        "tracebacks": 0,
    }
    chance = random.Random(block)
    with tempfile.TemporaryDirectory(prefix="vla-rl-kills-") as scratch:
        folder = Path(scratch)
        (folder / "tiny.yaml").write_text(_CONFIG)
        data = EpisodeStore(folder / "data")
        for number in range(2):
            data.add(episode(f"e{number}", number, length=8))
        command = [sys.executable, "-m", "benchmarks.hostile.kill_server", str(folder)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as server:
            _, usual_s = _run(server, "whole", None)
            while found["kills"] < kills:
                found["runs"] += 1
                code = None
                while code != 0:
                    kind = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
                    code, _ = _run(server, "killed", (kind, chance.uniform(0.0, 1.1 * usual_s)))
                    found["kills"] += code != 0
                    found["tracebacks"] += code not in (0, -signal.SIGKILL, -signal.SIGTERM, 143)
                found["other_weights"] += _weights(folder / "killed") != _weights(folder / "whole")
                found["episodes_lost"] += 2 - _whole_episodes(folder / "killed")
                shutil.rmtree(folder / "killed")
    return found


def _run(server: "subprocess.Popen[str]", name: str, kill: tuple[signal.Signals, float] | None) -> tuple[int, float]:
    """Let the server train in a folder, and maybe kill it; gives the exit code, minus the signal, and the time."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{name}\n")
    process = int(server.stdout.readline())
    started_s = time.perf_counter()
    if kill is not None:
        time.sleep(kill[1])
        os.kill(process, kill[0])  # the server has not reaped it: no other process has the id
    server.stdin.write("\n")
    return int(server.stdout.readline()), time.perf_counter() - started_s


def _weights(run: Path) -> list[str]:
    """Names hold digests."""
    return sorted(file.name for file in run.glob("policies/version_0001/*.safetensors"))


def _whole_episodes(run: Path) -> int:
    store = EpisodeStore(run / "episodes", create=False)
    return sum(verify_file(store.episodes_dir / (name + SUFFIX)).length > 0 for name in store.ids())
