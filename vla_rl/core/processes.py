"""Child processes that neither outlive their parent nor take its Ctrl-C."""

import ctypes
import multiprocessing
import os
import signal

_PR_SET_PDEATHSIG = 1


def belong_to_parent() -> None:
    """Called at the start of a child process: it dies with its parent, even with one that is killed, and leaves Ctrl-C
    to it. Linux only.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it died before that call, which then waits for another's death
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
