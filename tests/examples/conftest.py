"""Tests of other packages' tasks use the blind environments of the tests of the simulator."""

from tests.sim.conftest import blind_env  # noqa: F401
