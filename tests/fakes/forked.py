"""The command line in processes that start at once: forked by a server that has imported everything a single time.

For tests of what happens to a process, such as `kill -9`; what starting one does is for tests of the true executable.
The server has neither threads nor simulators, so that its forks may have both.
"""

import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from vla_rl.cli.main import main

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([__name__, "torch._dynamo", "mujoco", "vla_rl.data.store", "vla_rl.training.practice"])


def start(said: Path, *arguments: str) -> ForkServerProcess:
    """A process of its own that runs ``vla-rl ARGUMENTS``; what it says goes to the file `said`."""
    process = _SERVER.Process(target=_run, args=(said, arguments))
    process.start()
    return process


def _run(said: Path, arguments: tuple[str, ...]) -> None:
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.exit(main(arguments))
