"""Recordings that are killed: a process records episodes with the recorder and saves each, and is killed with kill -9
at a random moment. Every episode that it had reported as saved must be there, whole.

Run as a module, this file is the recording process. It imports everything once, then forks a recorder for every line
that it reads. A trial costs milliseconds and no torch.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from robot_io.recorder import Recorder
from vla_rl.core.errors import StoreError
from vla_rl.core.progress import track
from vla_rl.core.types import Observation, Origin, Source, Step
from vla_rl.data.doctor import Defect, diagnose
from vla_rl.data.episode_file import SUFFIX, verify_file
from vla_rl.data.store import EpisodeStore

_STEPS, _PIXELS = 20, 16
_LONGEST_DELAY_S = 0.03


def measure(trials: int) -> dict[str, Any]:
    """`run_trials` in a temporary store."""
    with tempfile.TemporaryDirectory() as folder:
        return run_trials(Path(folder) / "store", trials)


def run_trials(folder: Path, trials: int, seed: int = 0) -> dict[str, Any]:
    """Record, kill, and look what is left, so many times on one store.

    Returns:
        ``kill_trials``; ``episodes_saved`` (reported as saved before the kill) and ``episodes_lost`` (of these, missing
        or not whole). ``episodes_damaged`` (visible and not whole, reported or not). ``killed_writing`` (trials that
        left a half-written file: the kill met a write).
    """
    store = EpisodeStore(folder)
    chance = random.Random(seed)
    reported: list[str] = []
    command = [sys.executable, "-m", __name__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for trial in track(range(trials), "kill -9", "trial"):
            process.stdin.write(f"trial{trial:05d}\n")
            line = process.stdout.readline()
            while not line.startswith("started "):  # what the last recorder reported before it was killed
                reported.append(line.split()[1])
                line = process.stdout.readline()
            recorder = int(line.split()[1])
            reported.append(process.stdout.readline().split()[1])
            time.sleep(chance.uniform(0.0, _LONGEST_DELAY_S))
            os.kill(recorder, signal.SIGKILL)
        process.stdin.close()
        reported += [line.split()[1] for line in process.stdout]
    damaged = {name for name in store.ids() if not _is_whole(store, name)}
    lost = [name for name in reported if name not in store or name in damaged]
    leftovers = [finding for finding in diagnose(folder) if finding.defect is Defect.LEFTOVER]
    return {
        "kill_trials": trials,
        "episodes_saved": len(reported),
        "episodes_lost": len(lost),
        "episodes_damaged": len(damaged),
        "killed_writing": len(leftovers),
    }


def _is_whole(store: EpisodeStore, name: str) -> bool:
    try:
        verify_file(store.episodes_dir / (name + SUFFIX))
    except StoreError:
        return False
    return True


def _record_until_killed(store: EpisodeStore, prefix: str) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (_STEPS, _PIXELS, _PIXELS, 3), dtype=np.uint8)
    state, action = np.zeros(3, np.float32), np.zeros(2, np.float32)
    recorder = Recorder(Origin.REAL, "bench", 20.0)
    number = 0
    while True:
        recorder.begin(f"{prefix}-{number:05d}", seed=None, policy_version=0)
        for tick, picture in enumerate(pictures):
            images = {"front": picture, "wrist": picture}
            observation = Observation(images, state, "push", tick, {"state": tick, "front": tick, "wrist": tick})
            last = tick == _STEPS - 1
            recorder.on_step(Step(observation, action, action, Source.POLICY, last, False, last or None))
        assert recorder.episode is not None
        store.add(recorder.episode)
        os.write(1, f"saved {recorder.episode.episode_id}\n".encode())
        number += 1


def _serve(folder: Path) -> None:
    """Fork a recorder for every line on standard input, one after the other."""
    import zarr.codecs
    import zarr.storage  # noqa: F401  # before the fork, not in every trial

    store = EpisodeStore(folder)
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            os.write(1, f"started {os.getpid()}\n".encode())
            try:
                _record_until_killed(store, line.strip())
            finally:
                os._exit(1)
        os.waitpid(process, 0)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
