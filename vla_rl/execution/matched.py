"""Policies and residual heads on a robot that has the same dimensions in another order or in other units.

Everything on the robot's side (executor, gate, recorder, takeover) works in the robot's order and units; everything on
the policy's side in the policy's.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from vla_rl.core.protocols import Policy
from vla_rl.core.robot_matching import RobotMatch
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.execution.strategies import ActionCorrector
from vla_rl.execution.strategies.rtc import GuidedPolicy


class MatchedPolicy(Policy):
    """Reorder and convert the robot's states for a policy, and the policy's chunks for the robot, as they match."""

    def __init__(self, policy: Any, found: RobotMatch) -> None:
        self._policy, self._state, self._action = policy, found.state, found.action
        self._to_policy = found.action.inverse()
        self.spec = found.robot

    @property
    def version(self) -> int:
        """Version of the weights that planned last."""
        return int(self._policy.version)

    def reset(self, seed: int) -> None:
        """Begin an attempt (`vla_rl.core.protocols.Policy.reset`)."""
        self._policy.reset(seed)

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan a chunk in the robot's order and units (`vla_rl.core.protocols.Policy.infer`)."""
        fixed = None if committed is None else self._to_policy.apply(committed)
        return self._for_robot(self._policy.infer(self._for_policy(observation), fixed))

    @property
    def refines(self) -> bool:
        """Whether the policy refines its chunks as they enter (`vla_rl.core.protocols.RefiningPolicy`)."""
        return getattr(self._policy, "refines", False)

    def plan(self, observation: Observation) -> ActionChunk:
        """Plan a chunk that is not refined yet, in the robot's order and units."""
        return self._for_robot(self._policy.plan(self._for_policy(observation)))

    def refine(self, chunk: ActionChunk, observation: Observation, index: int) -> ActionChunk:
        """Refine a chunk in the robot's order and units."""
        planned = replace(chunk, actions=self._to_policy.apply(chunk.actions))
        return self._for_robot(self._policy.refine(planned, self._for_policy(observation), index))

    def _for_policy(self, observation: Observation) -> Observation:
        past = tuple(self._for_policy(each) for each in observation.past)
        return replace(observation, state=self._state.apply(observation.state), past=past)

    def _for_robot(self, chunk: ActionChunk) -> ActionChunk:
        return replace(chunk, actions=self._action.apply(chunk.actions))


class MatchedGuidedPolicy(MatchedPolicy):
    """A `MatchedPolicy` whose sampling can be guided towards an earlier plan."""

    def infer_guided(
        self, observation: Observation, previous: Float32Array, delay_ticks: int, exact_gradient: bool
    ) -> ActionChunk:
        """Plan a guided chunk in the robot's order and units
        (`vla_rl.execution.strategies.rtc.GuidedPolicy.infer_guided`)."""
        scheduled = self._to_policy.apply(previous)
        seen = self._for_policy(observation)
        return self._for_robot(self._policy.infer_guided(seen, scheduled, delay_ticks, exact_gradient))


class MatchedCorrector:
    """An `ActionCorrector` for the robot, around one that works in the policy's order and units."""

    def __init__(self, corrector: ActionCorrector, found: RobotMatch) -> None:
        self._corrector, self._state, self._action = corrector, found.state, found.action
        self._to_policy = found.action.inverse()

    def correct(
        self, observation: Observation, action: Float32Array, chunk_index: int, discrete_dims: Sequence[int]
    ) -> Float32Array:
        """Correct an action in the robot's order and units (`vla_rl.execution.strategies.ActionCorrector.correct`)."""
        seen = replace(observation, state=self._state.apply(observation.state))
        dims = [int(self._action.index[dim]) for dim in discrete_dims]
        return self._action.apply(
            self._corrector.correct(seen, self._to_policy.apply(action), chunk_index, discrete_dims=dims)
        )


def matched_loader(load: Callable[[], Policy], found: RobotMatch) -> Callable[[], Policy]:
    """Return what loads the policy for the robot; ``load`` itself if nothing has to be reordered or converted."""
    return functools.partial(_load_matched, load, found) if found.changes else load


def matched_corrector(corrector: ActionCorrector | None, found: RobotMatch) -> ActionCorrector | None:
    """Return the residual head for the robot; None if there is none."""
    return MatchedCorrector(corrector, found) if corrector is not None and found.changes else corrector


def _load_matched(load: Callable[[], Policy], found: RobotMatch) -> MatchedPolicy:
    policy = load()
    return (MatchedGuidedPolicy if isinstance(policy, GuidedPolicy) else MatchedPolicy)(policy, found)
