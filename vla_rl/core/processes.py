"""Child processes that do not outlive their parent and leave its signals to it; how many threads a process may use."""

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Collection, Iterator
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

from vla_rl.core.signals import deferred_signals

logger = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1
_MOST_THREADS = 8  # batches of a hundred small pictures keep no more busy
_OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def starting_children() -> Iterator[None]:
    """Let processes started inside leave Ctrl-C and the end of the terminal to their parent, from their first moment
    until they call `belong_to_parent`. An interrupt waits until all are started and registered.
    """
    resource_tracker.ensure_running()  # it unblocks signals when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TERMINALS)
    with deferred_signals() as asked_to_stop:
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if stop := asked_to_stop():
        raise stop


def belong_to_parent() -> None:
    """Let this child process die with its parent, also with one that is killed, and leave Ctrl-C and the end of the
    terminal to it. SIGTERM ends it, whatever the parent does with its own. Linux only.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it died before that call, which then waits for another's death
        os._exit(1)
    for number in _OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_OF_TERMINALS, signal.SIGTERM))


def end_processes(processes: Collection[BaseProcess], within_s: float = 1.5) -> None:
    """Send SIGTERM to child processes, and kill those that have not ended in time."""
    for process in processes:
        process.terminate()
    until_s = time.monotonic() + within_s
    for process in processes:
        process.join(max(until_s - time.monotonic(), 0.0))
    for process in processes:
        process.kill()
        process.join()


def learner_threads(asked: int, others: int = 0) -> int:
    """Return the threads of a learner: at most one for each core that this process may use, since more would wait for
    each other. 0 means one for each core, up to eight, less those of ``others`` that work meanwhile. The number depends
    on the machine and not on what else runs on it, so that a run repeated there is the same run.
    """
    cores = len(os.sched_getaffinity(0))
    if asked > cores:
        logger.info(
            "torch_threads is %d, but this process may use only %d cores: the learner gets one thread for each core",
            asked,
            cores,
        )
    return min(asked, cores) or max(1, min(_MOST_THREADS, cores - others))
