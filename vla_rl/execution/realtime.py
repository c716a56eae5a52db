"""Best-effort real time for the control process: first-come scheduling, locked memory, no garbage collection.

Nothing here is needed for correctness. What the system does not grant (it needs CAP_SYS_NICE and CAP_IPC_LOCK, or the
limits ``rtprio`` and ``memlock``) is reported and left out.
"""

import ctypes
import gc
import logging
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_log = logging.getLogger(__name__)

_MCL_CURRENT, _MCL_FUTURE = 1, 2


@dataclass(frozen=True)
class RealtimeConfig:
    """What to ask for.

    Attributes:
        priority: of SCHED_FIFO, 1 to 99; 0 leaves the scheduling unchanged.
        cpu: the processor to run on alone; None for any.
        lock_memory: keep every page in memory.
    """

    priority: int = 50
    cpu: int | None = None
    lock_memory: bool = True


@dataclass(frozen=True)
class RealtimeReport:
    """What was granted."""

    fifo: bool
    pinned: bool
    memory_locked: bool


@contextmanager
def realtime(config: RealtimeConfig | None = None) -> Iterator[RealtimeReport]:
    """Run the body of the ``with`` as close to real time as the system allows; afterwards everything is as before.

    Start processes and threads before: they would inherit the priority.
    """
    config = config or RealtimeConfig()
    policy, parameters, affinity = os.sched_getscheduler(0), os.sched_getparam(0), os.sched_getaffinity(0)
    collecting = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    report = RealtimeReport(
        fifo=config.priority > 0 and _set_fifo(config.priority),
        pinned=config.cpu is not None and _pin(config.cpu),
        memory_locked=config.lock_memory and _lock_memory(),
    )
    try:
        yield report
    finally:
        if report.memory_locked:
            ctypes.CDLL(None).munlockall()
        if report.pinned:
            os.sched_setaffinity(0, affinity)
        if report.fifo:
            os.sched_setscheduler(0, policy, parameters)
        gc.unfreeze()
        if collecting:
            gc.enable()


def _set_fifo(priority: int) -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except (OSError, ValueError) as error:
        _log.warning("no real-time scheduling (%s); the control loop may be delayed by other processes", error)
        return False
    return True


def _pin(cpu: int) -> bool:
    try:
        os.sched_setaffinity(0, {cpu})
    except (OSError, ValueError) as error:
        _log.warning("cannot run on processor %d alone (%s)", cpu, error)
        return False
    return True


def _lock_memory() -> bool:
    # Under a limit the lock itself may succeed and a later allocation fail: that would be worse than no lock.
    unlimited = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY
    if not unlimited or ctypes.CDLL(None).mlockall(_MCL_CURRENT | _MCL_FUTURE) != 0:
        _log.warning("memory is not locked (raise the limit 'memlock'); a page fault may delay the control loop")
        return False
    return True
