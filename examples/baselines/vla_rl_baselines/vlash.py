"""vlash: the policy is run on the state that the robot will have when its plan takes over (VLASH, 2512.01031)."""

from dataclasses import replace
from typing import ClassVar, override

from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Policy
from vla_rl.core.types import ActionChunk
from vla_rl.execution.plan import PlanRequest
from vla_rl.execution.strategies.base import ChunkStrategy


class Vlash(ChunkStrategy):
    """Rolls the state forward by the committed motion; the chunk starts d ticks after its observation.

    For actions that are absolute targets of the first A numbers of the state. The state moves by as much as its
    targets do, which keeps the lag of the position controllers. Discrete dimensions stay as they were observed: a
    closing gripper stops at what it holds, and never reaches its target.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    requires: ClassVar[frozenset[str]] = frozenset({"future_state", "target_actions", "state_of_targets"})

    @override
    def infer(self, policy: Policy, request: PlanRequest) -> ActionChunk:
        observation, committed = request.observation, request.committed
        if committed is None:
            return policy.infer(observation)
        if self.config.delta_dims:
            raise UserError(
                "execution strategy 'vlash' needs actions that are targets, by whose motion the state moves on; here "
                f"dimensions {list(self.config.delta_dims)} are steps"
            )
        action_size = committed.shape[1]
        if len(observation.state) < action_size:
            raise UserError(
                f"execution strategy 'vlash' needs a state that begins with the {action_size} commanded positions; "
                f"this state has {len(observation.state)} numbers. Use another strategy"
            )
        state = observation.state.copy()
        motion = committed[-1] - request.last_command
        motion[list(self.config.discrete_dims)] = 0.0
        state[:action_size] += motion
        return policy.infer(replace(observation, state=state, tick=observation.tick + request.delay_ticks))
