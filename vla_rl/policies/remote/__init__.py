"""Base policies on another computer: clients of policy servers, without torch. `vla_rl.acting.serve` is the server."""

from vla_rl.policies.remote.connect import connect
from vla_rl.policies.remote.interface import RemoteInterface
from vla_rl.policies.remote.policy import RemoteError, RemotePolicy

__all__ = ["RemoteError", "RemoteInterface", "RemotePolicy", "connect"]
