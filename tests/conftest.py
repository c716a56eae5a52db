"""For all tests: one thread per process, since the networks are tiny and the machine has other work."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, and for the processes that tests start
