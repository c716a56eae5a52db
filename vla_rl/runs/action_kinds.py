"""What kind of number each action dimension is: a target or a step, continuous or discrete. Several parts may say so
(the config, the policy, the robot's gate or environment); the first one that names any dimension is believed.
"""

from collections.abc import Sequence
from dataclasses import replace

from robot_io.gate import GateConfig
from vla_rl.core.types import PolicySpec
from vla_rl.execution.strategies import ExecutionConfig


def first_named(*dims: Sequence[int]) -> tuple[int, ...]:
    """The first of several declarations that names a dimension; empty if none does."""
    return next((tuple(map(int, named)) for named in dims if len(named)), ())


def delta_dims(kinds: Sequence[str]) -> tuple[int, ...]:
    """The action dimensions that are steps, of what an environment declares as ``action_kind``."""
    return tuple(dim for dim, kind in enumerate(kinds) if kind == "delta")


def with_action_kinds(execution: ExecutionConfig, policy: PolicySpec, *discrete_dims: Sequence[int]) -> ExecutionConfig:
    """The section with its kinds of dimensions filled in, where it names none itself.

    Args:
        execution: of the run, or of an override.
        policy: says which dimensions are steps.
        discrete_dims: declarations of the grippers, the most believable one first.
    """
    return replace(
        execution,
        discrete_dims=first_named(execution.discrete_dims, *discrete_dims),
        delta_dims=first_named(execution.delta_dims, policy.delta_dims),
    )


def with_steps(gate: GateConfig, policy: PolicySpec) -> GateConfig:
    """The limits, which know the steps among the actions of the policy where they name none themselves."""
    return replace(gate, delta_dims=first_named(gate.delta_dims, policy.delta_dims))
