"""Policies under a name: ``openpi://HOST:PORT`` or ``module:Name``. No torch."""

import re
import zlib

import numpy as np

from vla_rl.core.errors import UserError, raised
from vla_rl.core.policy_spec import PolicySpec, with_still_end
from vla_rl.core.protocols import BasePolicy
from vla_rl.core.registry import find
from vla_rl.core.types import Float32Array, Observation
from vla_rl.core.validation import check_chunk

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_name(source: object) -> bool:
    """Return whether a policy is named by the URL of its server or as ``module:Name``, and not by its folder."""
    return isinstance(source, str) and ("://" in source or bool(_NAME.fullmatch(source)))


def load_named(name: str) -> BasePolicy:
    """Connect to the policy of a server, or make that of a class: ``openpi://HOST:PORT``, ``module:Name``.

    Raises:
        UserError: if there is none, or it is no `vla_rl.core.protocols.BasePolicy`.
    """
    if "://" in name:
        try:
            from vla_rl.policies.remote import connect

            return connect(name)
        except ModuleNotFoundError as error:
            raise UserError(f"{name} needs the package {error.name!r}; install vla-rl[serve]") from error
    make = find("policies", name)
    try:
        policy = make()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{name}() raised {raised(error)}. It is made without arguments; correct it there") from error
    if not isinstance(policy, BasePolicy) or not isinstance(policy.spec, PolicySpec):
        raise UserError(f"{name} makes a {type(policy).__name__}, which lacks reset, infer, version, spec or horizon")
    numbers = policy.version, policy.horizon
    if not all(isinstance(number, int | np.integer) for number in numbers) or policy.horizon < 1:
        raise UserError(f"{name} has the version and horizon {numbers}; expected integers, and horizon >= 1")
    return policy


class SeededPolicy:
    """A policy under a name whose chunks follow from given noise: the noise is its seed. It keeps its version.

    Args:
        name: As of `load_named`.

    Attributes:
        policy: The policy.
        version: Of its weights.
        horizon: H, number of actions in a chunk.
    """

    def __init__(self, name: str) -> None:
        self._name, self._seed = name, -1
        self.policy = load_named(name)
        self.version = int(self.policy.version)
        self.horizon = int(self.policy.horizon)

    def chunk(self, observation: Observation, noise: Float32Array) -> Float32Array:
        """Ask for a chunk, float32 [H, A]. Behind a shorter one the robot holds still: steps are 0, targets repeat.

        Args:
            observation: What it plans for.
            noise: float32 [H, A].

        Raises:
            UserError: For a chunk of another shape, or of another version of the policy.
        """
        seed = zlib.crc32(np.ascontiguousarray(noise)) >> 1
        if seed != self._seed:
            self.policy.reset(seed)
            self._seed = seed
        spec = self.policy.spec
        actions = check_chunk(self.policy.infer(observation.copied()), spec.action_dim).actions
        if self.policy.version != self.version:  # a server may have been restarted with other weights
            raise UserError(
                f"{self._name} is now version {self.policy.version}, it was version {self.version}; bring the earlier "
                "one back, or begin anew"
            )
        return with_still_end(actions, self.horizon, spec.delta_dims)[: self.horizon]
