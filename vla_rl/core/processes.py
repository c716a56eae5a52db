"""Child processes that neither outlive their parent nor take its Ctrl-C, and how many threads a process may use."""

import ctypes
import multiprocessing
import os
import signal

_PR_SET_PDEATHSIG = 1
_MOST_THREADS = 8  # batches of a hundred small pictures keep no more busy


def belong_to_parent() -> None:
    """Called at the start of a child process: it dies with its parent, even with one that is killed, and leaves Ctrl-C
    to it. Linux only.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it died before that call, which then waits for another's death
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def learner_threads(asked: int, others: int = 0, sharing: int = 1) -> int:
    """Threads of a learner: as many as asked for, or, for 0, one for each core that this process may use, up to eight,
    but for those of ``others`` that work meanwhile, and shared with those that are ``sharing`` its batches. It depends
    on the machine and not on what else runs on it, so that a run repeated there is the same run.
    """
    return asked or max(1, min(_MOST_THREADS, (len(os.sched_getaffinity(0)) - others) // sharing))
