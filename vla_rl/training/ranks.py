"""Processes that torchrun starts for one learner. Rank 0 carries out the run; the others share its gradient steps."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed

_PATIENCE = timedelta(days=1)  # while rank 0 takes data in or makes the report


def rank_and_count() -> tuple[int, int]:
    """This process's rank, and the number of processes that torchrun started; (0, 1) without torchrun."""
    if not distributed.is_torchelastic_launched():
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextmanager
def process_group() -> Iterator[None]:
    """Join the other processes of torchrun, on CUDA with one GPU for each. Nothing happens without torchrun."""
    if rank_and_count()[1] == 1:
        yield
        return
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    distributed.init_process_group(backend, timeout=_PATIENCE)
    try:
        yield
    finally:
        distributed.destroy_process_group()
