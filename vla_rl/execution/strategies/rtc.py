"""rtc: real-time chunking (2506.07339). Flow sampling is guided towards what is already scheduled.

The guidance itself belongs to the policy, which knows its velocity field: see `GuidedPolicy`.
"""

from typing import ClassVar, Protocol, override, runtime_checkable

from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Policy
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.execution.plan import PlanRequest
from vla_rl.execution.strategies.base import ChunkStrategy


@runtime_checkable
class GuidedPolicy(Policy, Protocol):
    """A policy whose sampling can be guided towards an earlier plan.

    Example:
        >>> from vla_rl.policies.flow_vla import FlowVLAPolicy
        >>> acting, seen = FlowVLAPolicy(policy), env.observe()
        >>> previous = acting.infer(seen).actions[:-4]
        >>> acting.infer_guided(seen, previous, delay_ticks=2, exact_gradient=True).actions.shape
        (16, 2)
    """

    def infer_guided(
        self, observation: Observation, previous: Float32Array, delay_ticks: int, exact_gradient: bool
    ) -> ActionChunk:
        """Plan a chunk that goes on from an earlier one.

        Args:
            observation: the newest observation.
            previous: float32 [K, A], what is scheduled from the observation's tick on; K = H - s.
            delay_ticks: d, how many of them will be executed before this plan is used: weight 1; the others fade.
            exact_gradient: True for the true vector-Jacobian product, False for the identity in its place.
        """
        ...


class RTC(ChunkStrategy):
    """Guidance with the true vector-Jacobian product of the flow."""

    provides: ClassVar[frozenset[str]] = frozenset()
    requires: ClassVar[frozenset[str]] = frozenset({"gradient"})
    preference: ClassVar[int] = 20
    exact_gradient = True

    @override
    def infer(self, policy: Policy, request: PlanRequest) -> ActionChunk:
        if len(request.scheduled) == 0:
            return policy.infer(request.observation)
        if not isinstance(policy, GuidedPolicy):
            raise UserError(
                f"execution strategy {self.config.strategy!r} needs a flow policy with guidance (infer_guided), "
                f"{type(policy).__name__} has none; use 'naive'"
            )
        return policy.infer_guided(request.observation, request.scheduled, request.delay_ticks, self.exact_gradient)
