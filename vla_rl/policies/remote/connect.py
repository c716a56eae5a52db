"""A server's URL -> the policy behind it."""

from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.types import Observation
from vla_rl.policies.remote.interface import RemoteInterface
from vla_rl.policies.remote.policy import RemotePolicy

_OPTIONS = ("interface", "timeout_s")


def connect(url: str) -> RemotePolicy:
    """Connect to a policy server and plan one chunk, so that what does not fit is found before anything moves.

    Args:
        url: ``openpi://HOST:PORT``, or ``groot://HOST:PORT`` for a server of GR00T. After a ``?``,
            ``interface=NAME_OR_FILE`` describes the policy of a server that does not, and ``timeout_s=2`` is the
            longest wait for a chunk.

    Returns:
        The policy, with its interface complete.

    Raises:
        UserError: If the URL is wrong.
        RemoteError: If there is no server, or its policy does not fit the interface.

    Example:
        >>> connect(address).spec.action_dim  # of `vla-rl serve runs/dot`, such as openpi://127.0.0.1:8000
        2
    """
    parts, options = urlsplit(url), dict(parse_qsl(urlsplit(url).query))
    if parts.scheme not in ("openpi", "openpis", "groot") or not parts.hostname:
        raise UserError(f"{url!r} names no policy server; expected openpi://HOST:PORT or groot://HOST:PORT")
    if unknown := next((name for name in options if name not in _OPTIONS), None):
        raise UserError(f"{url}: there is no option {unknown!r}.{did_you_mean(unknown, _OPTIONS)}")
    try:
        timeout_s = float(options.get("timeout_s", "2"))
        has_port = parts.port is not None
    except ValueError as error:
        raise UserError(f"{url}: {error}") from error
    if parts.scheme == "groot" and not has_port:  # ZeroMQ has no default
        raise UserError(f"{url!r} names no port; expected groot://HOST:PORT")
    if not 0 < timeout_s <= 3600:
        raise UserError(f"{url}: timeout_s is {timeout_s:g}; expected is a number of seconds in (0, 3600]")
    interface = RemoteInterface.read(options["interface"]) if "interface" in options else None
    policy = _client(parts.scheme)(url, interface, timeout_s)
    try:
        chunk = policy.infer(_blank(policy.interface))
    except BaseException:
        policy.close()
        raise
    policy.timings.clear()  # the first chunk is warm-up
    policy.interface = replace(policy.interface, horizon=policy.horizon or len(chunk.actions))
    return policy


def _client(scheme: str) -> type[RemotePolicy]:
    if scheme == "groot":
        from vla_rl.policies.remote.groot import GrootPolicy

        return GrootPolicy
    from vla_rl.policies.remote.openpi import OpenpiPolicy

    return OpenpiPolicy


def _blank(interface: RemoteInterface) -> Observation:
    spec = interface.spec
    images = {camera: np.zeros((*spec.image_size, 3), np.uint8) for camera in spec.cameras}
    blank = Observation(images, np.zeros(spec.state_dim, np.float32), "", 0)
    return replace(blank, past=(blank,) * (interface.n_obs_steps - 1))
