"""A kind of policy: what the math knows of one (`vla_rl.policies.base`), and how it is built, saved, loaded and acts.

A kind is a subclass of `TrainablePolicy`, found by the name in ``policy.kind``: an entry point of the group
``vla_rl.policies``, or ``module:Name``. See `vla_rl.core.registry`.
"""

from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch

from vla_rl.core.capabilities import of_training
from vla_rl.core.errors import ConfigError, UserError, one_line
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec, spec_difference
from vla_rl.core.protocols import Policy
from vla_rl.policies.acting import ActingPolicy
from vla_rl.policies.base import BasePolicy, PolicyConfig
from vla_rl.policies.checkpoint import load_checkpoint, save_checkpoint


class Summarized(Protocol):
    """Episodes that a policy can be made for, such as an episode store."""

    def summary(self) -> tuple[PolicySpec, Statistics]: ...


class HasSpec(Protocol):
    """An environment or robot with the interface of its policies."""

    @property
    def spec(self) -> PolicySpec: ...


def summary_for(data: Summarized, robot: HasSpec | None) -> tuple[PolicySpec, Statistics]:
    """Return the interface of a policy and the statistics of some episodes. The robot has the interface; None: they do.

    Raises:
        UserError: If the episodes have other states or actions than the robot, or none can share a policy.
    """
    spec, statistics = data.summary()
    if robot is None:
        return spec, statistics
    seen = ("cameras", "image_size", "control_hz", "delta_dims", "sizes")  # what statistics do not depend on
    if differs := spec_difference(spec, robot.spec, but=("env_id", *seen)):
        raise UserError(
            f"the episodes have the {differs.name} {differs.found}, the robot has {differs.expected}; give episodes "
            "of this robot"
        )
    return robot.spec, statistics


class TrainablePolicy(BasePolicy):
    """A policy that can be built from a config, saved and loaded, and that acts.

    A subclass says its `config_class` and implements `loss` and `draw`; the rest has defaults.
    """

    config_class: ClassVar[type[PolicyConfig]]

    @classmethod
    def build(cls, config: Any, spec: PolicySpec, statistics: Statistics, pretrained: bool = True) -> Self:
        """Return a policy of that config, on the CPU; its first weights follow from torch's generator.

        With ``pretrained`` it reads the weights of pretrained parts; not where all weights come from a checkpoint.

        Raises:
            UserError: if there can be no such policy.
        """
        del pretrained
        return cls(config, spec, statistics)

    @classmethod
    def check(cls, config: Any, spec: PolicySpec) -> None:
        """Refuse a config of which no policy can be built for this robot, by a UserError, before anything is run."""
        cls.on_meta_device(config, spec)

    @classmethod
    def planned(cls, config: Any, spec: PolicySpec) -> int:
        """Return H, the actions in a chunk of a policy of that config, without building it."""
        del spec
        return int(config.horizon)

    @classmethod
    def on_meta_device(cls, config: Any, spec: PolicySpec) -> Self:
        """Return a policy of that config without memory for its weights, on torch's device ``meta``: all that it has
        are shapes.

        Raises:
            UserError: if no policy can be built from it for this robot.
        """
        blank = Statistics.from_arrays(np.zeros((1, spec.state_dim)), np.zeros((1, spec.action_dim)))
        try:
            with torch.device("meta"):
                return cls.build(config, spec, blank, pretrained=False).to("meta")
        except (RuntimeError, ValueError, TypeError) as error:
            raise ConfigError(f"no policy can be built from the section 'policy': {one_line(error, 2000)}") from error

    @classmethod
    def provides(cls, config: Any, spec: PolicySpec) -> frozenset[str]:  # noqa: ARG003
        """Return the capabilities of a policy of that config, see `vla_rl.core.capabilities`: several draws, offsets on
        them, and those that options bring. Arguments as of `check`.
        """
        return of_training(vars(config)) | {"several_draws", "offsets"}

    @property
    def encoder(self) -> "TrainablePolicy":
        """The policy whose features these are: itself, unless another one gives them."""
        return self

    @property
    def capabilities(self) -> frozenset[str]:
        """Capabilities that it provides, as its folder says them."""
        return self.provides(self.config, self.spec)

    def acting(self, device: str = "cpu", version: int = 0) -> Policy:
        """Return the policy as the loop asks it, with these very weights; one thread's own."""
        return ActingPolicy(self, device, version)

    def save(self, folder: Path | str, meta: dict[str, Any] | None = None) -> None:
        """Write the policy's folder, its config.json last, with plain ``meta`` data (policy version, step, seed...).

        A policy in it is replaced.
        """
        save_checkpoint(Path(folder), self, meta or {})

    @classmethod
    def load(cls, folder: Path) -> tuple[Self, dict[str, Any]]:
        """Return the policy of a folder, on the CPU, in evaluation mode, and the meta data that was saved with it.

        Raises:
            CheckpointError: for a missing, damaged or foreign folder, in one line; nothing in it is ever executed.
        """
        return load_checkpoint(folder, cls)

    @classmethod
    def config_in(cls, folder: Path, config: Any) -> Any:
        """Return the config that a folder holds, with the paths of what travels in the folder, if anything."""
        del folder
        return config
