"""rtc_identity: real-time chunking with the identity in place of the Jacobian. It needs no gradient."""

from typing import ClassVar

from vla_rl.execution.strategies.rtc import RTC


class RTCIdentity(RTC):
    """The cheap variant of `RTC`."""

    requires: ClassVar[frozenset[str]] = frozenset({"guidance"})
    preference: ClassVar[int] = 10
    exact_gradient = False
