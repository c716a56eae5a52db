"""What a policy is to those who train it, judge it, save it and let it act: all that algorithms, critics and runs know
of one.

A kind of policy is a subclass of `TrainablePolicy`, found by the name in ``policy.kind``: an entry point of the group
``vla_rl.policies``, or ``module:Name``. See `vla_rl.core.registry`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from vla_rl.core.capabilities import of_training
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.flow_sampling import hash_words
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.protocols import Policy
from vla_rl.policies.acting import ActingPolicy
from vla_rl.policies.checkpoint import load_checkpoint, save_checkpoint
from vla_rl.policies.encoders import VOCABULARY, TextConfig


@dataclass(frozen=True)
class PolicyConfig:
    """What every policy's config has; most add ``horizon``, the actions in a chunk.

    Attributes:
        kind: the name of the kind of policy.
    """

    kind: str = ""


class Indicator(IntEnum):
    """The advantage indicator of RECAP: unknown or dropped, negative, positive."""

    NONE = 0
    NEGATIVE = 1
    POSITIVE = 2


@dataclass
class PolicyBatch:
    """A training batch.

    Attributes:
        images: camera -> uint8 [B, H, W, 3].
        state: float32 [B, S], raw units.
        text: int64 [B, L], from `TrainablePolicy.tokenize`.
        actions: float32 [B, horizon, A], raw units.
        valid: bool [B, horizon, A] (or one that broadcasts to it), what has a loss: not the steps past the end of the
            episode, nor dimensions that nobody commanded.
        indicator: int64 [B], values of `Indicator`; None: NONE everywhere.
    """

    images: dict[str, Tensor]
    state: Tensor
    text: Tensor
    actions: Tensor
    valid: Tensor
    indicator: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same batch with every tensor changed."""
        columns = {
            field.name: change(value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, images={name: change(image) for name, image in self.images.items()}, **columns)


class TrainablePolicy(nn.Module, ABC):
    """A policy as a torch module. Everything that goes in and comes out is in raw units.

    A subclass says its `config_class` and implements `loss` and `draw`; the rest has defaults. It may be deep-copied
    (an average of its weights acts) and what it must keep is in its ``state_dict``.
    Its config has ``horizon``, the actions in a chunk, and may have ``indicator`` and ``future_state_max``: see the
    properties of these names.

    Args:
        config: of the class `config_class`.
        spec: the robot's interface.
        statistics: of the demonstrations.
    """

    config_class: ClassVar[type[PolicyConfig]]
    config: Any

    def __init__(self, config: PolicyConfig, spec: PolicySpec, statistics: Statistics) -> None:
        super().__init__()
        self.config, self.spec, self.statistics = config, spec, statistics

    @abstractmethod
    def loss(self, batch: PolicyBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """The loss of each sample, unweighted, [B], 0 where nothing is valid, and what to log.

        Args:
            batch: see `PolicyBatch`.
            generator: of the CPU, source of everything random, so that a resumed run equals an uninterrupted one.
        """

    @abstractmethod
    def draw(
        self, images: dict[str, Tensor], state: Tensor, text: Tensor, noise: Tensor, committed: Tensor | None = None
    ) -> Tensor:
        """A chunk for each observation, [B, H, A]: the best that the policy knows.

        Args:
            images: camera -> uint8 [B, height, width, 3], or float in [0, 255].
            state: float32 [B, S].
            text: int64 [B, L], from `tokenize`.
            noise: [B, horizon, A], standard normal: all that is random. A policy that is not ignores it.
            committed: [B, d, A], the first d actions, which will be executed anyway. A policy that cannot go on from
                them ignores them: whoever acts with it puts them in front.
        """

    def draw_several(
        self,
        images: dict[str, Tensor],
        state: Tensor,
        text: Tensor,
        noise: Tensor,
        committed: Tensor | None = None,
        seen: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """N chunks for each observation, [B, N, H, A].

        Args:
            images, state, text, committed: as of `draw`.
            noise: [B, N, horizon, A]; what is drawn equals what `draw` gives for its noise.
            seen: what `features` gave for these observations; a policy that can goes on from it and does not look at
                them once more.
        """
        del seen
        count = noise.shape[1]

        def repeated(tensor: Tensor) -> Tensor:
            return tensor.repeat_interleave(count, 0)

        chunks = self.draw(
            {name: repeated(image) for name, image in images.items()},
            repeated(state),
            repeated(text),
            noise.flatten(0, 1),
            None if committed is None else repeated(committed),
        )
        return chunks.unflatten(0, (-1, count))

    @classmethod
    def build(cls, config: Any, spec: PolicySpec, statistics: Statistics, pretrained: bool = True) -> Self:
        """A policy of that config, on the CPU; its first weights follow from torch's generator.

        Args:
            pretrained: read parts that somebody else has trained; False where all weights follow from elsewhere.

        Raises:
            UserError: if there can be no such policy.
        """
        del pretrained
        return cls(config, spec, statistics)

    @classmethod
    def check(cls, config: Any, spec: PolicySpec) -> None:
        """Refuse a config before anything is run.

        Raises:
            UserError: if no policy can be built from it for this robot.
        """
        cls.laid_out(config, spec)

    @classmethod
    def planned(cls, config: Any, spec: PolicySpec) -> int:
        """Return H, the actions in a chunk of a policy of that config, without building it."""
        del spec
        return int(config.horizon)

    @classmethod
    def laid_out(cls, config: Any, spec: PolicySpec) -> Self:
        """A policy of that config without memory for its weights, on torch's device ``meta``: all that it has are
        shapes.

        Raises:
            UserError: if no policy can be built from it for this robot.
        """
        blank = Statistics.from_arrays(np.zeros((1, spec.state_dim)), np.zeros((1, spec.action_dim)))
        try:
            with torch.device("meta"):
                return cls.build(config, spec, blank, pretrained=False).to("meta")
        except (RuntimeError, ValueError, TypeError) as error:
            raise ConfigError(
                f"no policy can be built from the section 'policy': {' '.join(str(error).split())}"
            ) from error

    @classmethod
    def provides(cls, config: Any, spec: PolicySpec) -> frozenset[str]:  # noqa: ARG003
        """Return the capabilities of a policy of that config, see `vla_rl.core.capabilities`: several draws, offsets on
        them, and those that options bring. Arguments as of `check`.
        """
        return of_training(vars(config)) | {"several_draws", "offsets"}

    @property
    def capabilities(self) -> frozenset[str]:
        """Capabilities that it provides, as its folder says them."""
        return self.provides(self.config, self.spec)

    @property
    def horizon(self) -> int:
        """H, actions in a chunk."""
        return int(self.config.horizon)

    @property
    def indicator(self) -> bool:
        """It heeds the indicator of a batch, and asks for positive actions when it acts."""
        return bool(getattr(self.config, "indicator", False))

    @property
    def future_state_max(self) -> int:
        """By how many steps the state and the actions of a training sample may be ahead of its images."""
        return int(getattr(self.config, "future_state_max", 0))

    @property
    def text_config(self) -> TextConfig:
        """The numbers that `tokenize` gives, for critics that read them."""
        return TextConfig()

    @property
    def vocabulary(self) -> int:
        """How many these numbers are."""
        return VOCABULARY

    def tokenize(self, sentences: Sequence[str]) -> Tensor:
        """Task sentences -> int64 [B, L]."""
        return torch.from_numpy(hash_words(sentences, self.text_config.max_words, VOCABULARY))

    def features(
        self,
        images: dict[str, Tensor],  # noqa: ARG002
        state: Tensor,  # noqa: ARG002
        text: Tensor,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Tokens [B, N, width] and their mask, bool [B, N]: what critics see through its eyes. Arguments as of `draw`.

        Raises:
            UserError: if it has none to give.
        """
        raise UserError(
            f"the policy {self.config.kind!r} gives no features to others; set the critic's backbone to 'own' or "
            "'state'"
        )

    def draw_from(
        self,
        tokens: Tensor,  # noqa: ARG002
        mask: Tensor,  # noqa: ARG002
        noise: Tensor,  # noqa: ARG002
    ) -> Tensor:
        """What `draw` gives, [B, H, A], for observations of which only the features are known: imagined ones.

        Args:
            tokens, mask: [B, N, width] and bool [B, N], of `features`.
            noise: as of `draw`.

        Raises:
            UserError: if it cannot act from features.
        """
        raise UserError(f"the policy {self.config.kind!r} cannot act from features alone; it needs observations")

    def acting(self, device: str = "cpu", version: int = 0) -> Policy:
        """The policy as the loop asks it, with these very weights; one thread's own."""
        return ActingPolicy(self, device, version)

    def save(self, folder: Path | str, meta: dict[str, Any] | None = None) -> None:
        """Write the policy's folder, its config.json last.

        Args:
            folder: made if missing; a policy in it is replaced.
            meta: plain data to keep beside it (policy version, step, seed...).
        """
        save_checkpoint(Path(folder), self, meta or {})

    @classmethod
    def load(cls, folder: Path) -> tuple[Self, dict[str, Any]]:
        """The policy of a folder, on the CPU, in evaluation mode, and the meta data that was saved with it.

        Raises:
            CheckpointError: for a missing, damaged or foreign folder, in one line; nothing in it is ever executed.
        """
        return load_checkpoint(folder, cls)

    @classmethod
    def config_in(cls, folder: Path, config: Any) -> Any:
        """The config that a folder holds, with the paths of what travels in the folder; here there is nothing such."""
        del folder
        return config
