"""What a detector's policy reads of an observation: the state by name, in its units and size. Threading law: no torch.

The policy that acts gets the same treatment, see `vla_rl.core.robot_matching` and `padded_with_mean`.
"""

from dataclasses import replace

from vla_rl.core.dimensions import Dimensions, match
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec, padded_with_mean
from vla_rl.core.types import Float32Array, Observation

_REMEDY = "Fit a detector on episodes of this robot, or use one of the policy that acts"


def readable(
    observation: Observation, dimensions: Dimensions, spec: PolicySpec, mean_state: Float32Array
) -> Observation:
    """Return an observation with the state that the policy of a detector reads.

    Args:
        observation: Observation of a robot.
        dimensions: What the robot declares of its state.
        spec: Interface of the policy.
        mean_state: Mean over its data, float32 [S], for the numbers that a smaller robot lacks.

    Raises:
        UserError: If a camera or a name is missing, a size differs, or a unit cannot be converted.
    """
    try:
        spec.check(observation)
    except UserError as error:
        raise UserError(f"the success detector reads the features of a policy: {error}. {_REMEDY}") from error
    size = len(observation.state)
    expected = spec.dimensions_of(size)[0]
    found = match(expected, dimensions, size, "the policy of the success detector", "the robot", "state", _REMEDY)
    return replace(observation, state=padded_with_mean(found.apply(observation.state), mean_state))
