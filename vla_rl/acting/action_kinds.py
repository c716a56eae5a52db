"""What kind of number each action dimension is: a target or a step, continuous or discrete. Several parts may say so
(the config, the policy, the robot's gate or environment); the first one that names any dimension is believed.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Episode, Float32Array
from vla_rl.execution.strategies import ExecutionConfig


def first_named(*dims: Sequence[int]) -> tuple[int, ...]:
    """Return the first of several declarations that names a dimension; empty if none does."""
    return next((tuple(map(int, named)) for named in dims if len(named)), ())


def delta_dims(kinds: Sequence[str]) -> tuple[int, ...]:
    """Return the action dimensions that are steps, of what an environment declares as ``action_kind``."""
    return tuple(dim for dim, kind in enumerate(kinds) if kind == "delta")


def with_action_kinds(execution: ExecutionConfig, policy: PolicySpec, *discrete_dims: Sequence[int]) -> ExecutionConfig:
    """Return the section with the kinds of dimensions that it does not name itself.

    Dimensions that only a larger robot has are none. ``policy`` says which are steps; ``discrete_dims`` are
    declarations of the grippers, the most believable one first.
    """

    def present(dims: Sequence[int]) -> list[int]:
        return [dim for dim in dims if dim < policy.action_dim]

    return replace(
        execution,
        discrete_dims=first_named(*map(present, (execution.discrete_dims, *discrete_dims))),
        delta_dims=first_named(*map(present, (execution.delta_dims, policy.delta_dims))),
    )


def recorded_as_steps(episode: Episode, added_steps: Sequence[int], rest: Float32Array) -> Episode:
    """Return an episode of targets with the actions in the policy's own kind, where its steps were added up to targets.

    ``rest`` is the command before the first one, float32 [A].
    """
    dims = list(added_steps)
    if not dims:
        return episode
    before = np.concatenate([rest[None], episode.action_sent[:-1]])[:, dims]
    policy, sent = episode.action_policy.copy(), episode.action_sent.copy()
    policy[:, dims] -= before
    sent[:, dims] -= before
    return replace(episode, action_policy=policy, action_sent=sent)
