"""Imports everything once, then forks a training for every folder that it reads the name of on standard input. Whatever
was imported only after the fork would cost every trial seconds, and most kills would hit imports.
"""

import os
import sys
from pathlib import Path

import torch
import torch._dynamo
import torch.utils.tensorboard

import vla_rl.acting.redraw
import vla_rl.algorithms.habc
import vla_rl.cli.finetune
import vla_rl.policies.flow_vla
import vla_rl.report.html
import vla_rl.training.finetune
import vla_rl.training.offline  # noqa: F401
from vla_rl.cli.main import main


def _serve(folder: Path) -> None:
    """A line begins a training, the next one reaps it. Until then no other process gets its id."""
    torch.set_num_threads(1)
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for line in sys.stdin:
        run = folder / line.strip()
        options = ["--data", str(folder / "data"), "--config", str(folder / "tiny.yaml"), "--out", str(run)]
        process = os.fork()
        if process == 0:
            os.dup2(log, 1)
            os.dup2(log, 2)
            os._exit(main(["finetune", *(["--resume", str(run)] if (run / "config.yaml").exists() else options)]))
        print(process, flush=True)
        sys.stdin.readline()
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
