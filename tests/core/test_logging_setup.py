"""What other people's code prints, warns and logs appears once, on stderr, and not between our lines."""

import re
import subprocess
import sys
from pathlib import Path

LIBRARY = """
import logging, warnings
logger = logging.getLogger("toys")

def work():
    logger.info("looking for a backend")
    logger.warning("a default is used, attempt %d", work.calls)
    warnings.warn(f"\\x1b[33mWARN: deprecated {work.calls}\\x1b[0m", DeprecationWarning)
    work.calls += 1

work.calls = 0

class Context:
    def __del__(self):
        raise RuntimeError("the context was not current")
"""
PROGRAM = """
import logging, sys
from vla_rl.core.logging_setup import log_to_stderr, library_output_once
log_to_stderr()
import toys
for _ in range(3):
    with library_output_once():
        print("hello")
        print("for a log", file=sys.stderr)
    toys.work()
    toys.Context()
logging.getLogger("vla_rl.acting").info("ours")
logging.getLogger("vla_rl.acting").info("ours")
logging.getLogger("__main__").info("the user's")
print("result")
"""


def test_lines_of_others_appear_once_and_on_stderr(tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "toys.py").write_text(LIBRARY)
    code = f"import sys; sys.path.append({str(library)!r})\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "result\n"
    assert re.sub(r"0x\w+", "0x", done.stderr).splitlines() == [
        "hello",
        "for a log",
        "a default is used, attempt 0",
        f"DeprecationWarning: WARN: deprecated 0 ({library}/toys.py:8)",
        "ignored in <function Context.__del__ at 0x>: RuntimeError: the context was not current",
        "ours",
        "ours",
        "the user's",
    ]


def test_a_worker_leaves_the_lines_to_its_parent() -> None:
    code = """
import multiprocessing
from vla_rl.core.logging_setup import library_output_once

def build():
    with library_output_once():
        print("hello")

if __name__ == "__main__":
    build()
    worker = multiprocessing.get_context("fork").Process(target=build)
    worker.start()
    worker.join()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "hello\n")
