"""Scripts with ROS 2 in processes of their own: without ROS 2 the tests skip them. A script mostly waits, so those of a
file run side by side.
"""

import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.fakes.ros2_rig import RMWS, ros_environment
from vla_rl.core.errors import UserError

_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_session = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
_calls = itertools.count()
side_by_side = ThreadPoolExecutor(4)


def ros_or_skip(rmw: str = RMWS[0]) -> dict[str, str]:
    """As `ros_environment`, in a domain that neither the test before nor another process of tests uses."""
    try:
        return ros_environment(rmw, 1 + (_session + 33 * _worker + next(_calls)) % 100)
    except UserError as missing:
        pytest.skip(str(missing))


def said_by(script: str, *arguments: str, environment: dict[str, str]) -> Any:
    """What a script says: the JSON value that its last line of output is."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def begin(script: str, *arguments: str, environment: dict[str, str]) -> Future[Any]:
    """Start a script beside others; the future holds what `said_by` returns."""
    return side_by_side.submit(said_by, script, *arguments, environment=environment)


def begin_on_each(script: str) -> dict[str, Future[Any]]:
    """Start a script on each middleware."""
    return {rmw: begin(script, environment=ros_or_skip(rmw)) for rmw in RMWS}
