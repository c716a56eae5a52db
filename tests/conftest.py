"""For all tests: one thread per process, since networks are tiny and the machine has other work; bytecode is kept; the
videos of reports are small; processes that tests start have the default signals; the root logger is put back.
"""

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, and for the processes that tests start
os.environ.setdefault("RAY_worker_niceness", "0")  # at Ray's own 15, another process of tests starves its workers
# Containers like to set it; each process that a test starts would then compile torch anew, which takes seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A child inherits what is ignored or blocked (nohup, a shell's background job), but not a handler.
for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that hold slow tests, so that several processes end at about the same time. Sorted by name,
    files that wait (ROS) run beside files that compute.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, item.path.name, item.path))


def pytest_collection_finish() -> None:
    """Take all imported modules out of garbage collection, which needs a twentieth of the time otherwise."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def small_videos() -> Iterator[None]:
    """Those of reports and of TensorBoard: to draw them in full is a third of a tiny run."""
    from vla_rl.report import episode_list, media, sinks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(media, "MAX_FRAMES", 4)
        patch.setattr(media, "CAMERA_PX", 32)
        patch.setattr(episode_list, "_FILM_PX", 32)
        patch.setattr(sinks, "_CLIP_FRAMES", 4)
        patch.setattr(sinks, "_CLIP_PX", 32)
        yield


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Put back the root logger after each test: lerobot's programs take its handlers and let every line through."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
