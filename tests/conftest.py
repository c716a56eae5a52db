"""For all tests: one thread per process, since networks are tiny and the machine has other work; bytecode is kept."""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, and for the processes that tests start
# Containers like to set it; each process that a test starts would then compile torch anew, which takes seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
