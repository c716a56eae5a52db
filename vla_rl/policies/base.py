"""What a policy is to the math: a loss to train by, chunks to draw, features to see through. Algorithms, critics and
residuals know no more of one. How a kind of policy is built, saved and acts is in `vla_rl.policies.trainable`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Self

import torch
from torch import Tensor, nn

from vla_rl.core.errors import UserError
from vla_rl.core.flow_sampling import hash_words
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.policies.encoders import VOCABULARY, TextConfig

_MOST_CONCATENATED_TOKENS = 16
_DRAWN_AT_ONCE = 256  # rows on a CPU, whose intermediate results fit in the cache of a core

Inputs = tuple[dict[str, Tensor], Tensor, Tensor]
"""Images, state and text of B observations: what policies and critics read."""


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
        images: camera -> uint8 [B, H, W, 3]; of several observations [B, n_obs_steps, H, W, 3].
        state: float32 [B, S], raw units; of several observations [B, n_obs_steps, S].
        text: int64 [B, L], from `BasePolicy.tokenize`.
        actions: float32 [B, horizon, A], raw units.
        valid: Numbers with a loss, bool [B, horizon, A] or broadcast to it: no steps past the end of the episode, no
            dimensions without a command.
        indicator: int64 [B], values of `Indicator`; None: NONE everywhere.
        earlier: Commands of the observations before the newest, float32 [B, n_obs_steps - 1, A], raw units; None: it
            is the only one.
    """

    images: dict[str, Tensor]
    state: Tensor
    text: Tensor
    actions: Tensor
    valid: Tensor
    indicator: Tensor | None = None
    earlier: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Apply a function to every tensor of the batch."""
        columns = {
            field.name: change(value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, images={name: change(image) for name, image in self.images.items()}, **columns)


class BasePolicy(nn.Module, ABC):
    """A policy as a torch module. Everything that goes in and comes out is in raw units.

    It may be deep-copied (an average of its weights acts), and what it must keep is in its ``state_dict``. Its config
    has ``horizon``, the actions in a chunk, and may have ``indicator`` and ``future_state_max``: see the properties of
    these names.

    Args:
        config: of the policy's kind.
        spec: the robot's interface.
        statistics: of the demonstrations.
    """

    config: Any

    def __init__(self, config: PolicyConfig, spec: PolicySpec, statistics: Statistics) -> None:
        super().__init__()
        self.config, self.spec, self.statistics = config, spec, statistics

    @abstractmethod
    def loss(self, batch: PolicyBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of each sample, unweighted, [B], 0 where nothing is valid, and what to log.

        Everything random is of the CPU's generator, so that a resumed run equals an uninterrupted one.
        """

    @abstractmethod
    def draw(
        self, images: dict[str, Tensor], state: Tensor, text: Tensor, noise: Tensor, committed: Tensor | None = None
    ) -> Tensor:
        """Return a chunk for each observation, [B, H, A]: the best that the policy knows.

        Args:
            images: camera -> uint8 [B, height, width, 3], or float in [0, 255].
            state: float32 [B, S].
            text: int64 [B, L], from `tokenize`.
            noise: [B, horizon, A], standard normal: all that is random. A policy that is not ignores it.
            committed: [B, d, A], the first d actions, which will be executed anyway. A policy that cannot go on from
                them ignores them: the caller puts them in front.
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
        """N chunks for each observation, [B, N, H, A]. Other arguments as of `draw`.

        Args:
            noise: [B, N, horizon, A]; what is drawn equals what `draw` gives for its noise.
            seen: What `features` gave for these observations; a policy that can goes on from it and does not look at
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

    @property
    def max_words(self) -> int:
        """Words of a sentence that `tokenize` reads."""
        return TextConfig().max_words

    @property
    def vocabulary(self) -> int:
        """How many different numbers `tokenize` gives."""
        return VOCABULARY

    def tokenize(self, sentences: Sequence[str]) -> Tensor:
        """Task sentences -> int64 [B, L]."""
        return torch.from_numpy(hash_words(sentences, self.max_words, VOCABULARY))

    @property
    def horizon(self) -> int:
        """H, actions in a chunk."""
        return int(self.config.horizon)

    @property
    def n_obs_steps(self) -> int:
        """Number of observations, of consecutive ticks, that the policy reads. With several, the tensors of
        observations have a second dimension, the oldest first.
        """
        return 1

    @property
    def indicator(self) -> bool:
        """It heeds the indicator of a batch, and asks for positive actions when it acts."""
        return bool(getattr(self.config, "indicator", False))

    @property
    def future_state_max(self) -> int:
        """By how many steps the state and the actions of a training sample may be ahead of its images."""
        return int(getattr(self.config, "future_state_max", 0))

    def features(self, images: dict[str, Tensor], state: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, N, width] and their mask, bool [B, N], which critics read. Arguments as of `draw`.

        Raises:
            UserError: if it has none to give.
        """
        del images, state, text
        raise UserError(
            f"the policy {self.config.kind!r} gives no features to others; set the critic's backbone to 'own' or "
            "'state'"
        )

    def draw_from(self, tokens: Tensor, mask: Tensor, noise: Tensor) -> Tensor:
        """Draw chunks [B, H, A] for observations of which only the features are known: imagined ones.

        A policy may integrate in fewer steps than in `draw`.

        Tokens [B, N, width] and mask bool [B, N] are as `features` gives them.

        Raises:
            UserError: if it cannot act from features.
        """
        del tokens, mask, noise
        raise UserError(f"the policy {self.config.kind!r} cannot act from features alone; it needs observations")


def flat_features(tokens: Tensor, mask: Tensor) -> Tensor:
    """Return a policy's tokens [B, N, W] and mask [B, N] as one row per observation, [B, F]. Few tokens stand side by
    side, others become their mean.
    """
    if tokens.shape[1] <= _MOST_CONCATENATED_TOKENS:
        return tokens.flatten(1)
    present = mask[..., None].to(tokens.dtype)
    return (tokens * present).sum(1) / present.sum(1)


def draw_from_flat(model: BasePolicy, features: Tensor, noise: Tensor) -> Tensor:
    """Return the policy's chunks [B, H, A] for flat features [B, F] of which it has no observation; ``noise`` as of
    `BasePolicy.draw`.

    Raises:
        UserError: if it cannot act from them, or has too many tokens for them to stand side by side.
    """
    tokens, mask = _blank(model)
    if tokens.shape[1] > _MOST_CONCATENATED_TOKENS:
        raise UserError(
            f"the policy {model.config.kind!r} sees {tokens.shape[1]} tokens; it can act from imagined features if it "
            f"has at most {_MOST_CONCATENATED_TOKENS}"
        )
    at_once = _DRAWN_AT_ONCE if features.device.type == "cpu" else max(1, len(features))
    parts = zip(features.split(at_once), noise.split(at_once), strict=True)
    return torch.cat(
        [model.draw_from(seen.unflatten(1, tokens.shape[1:]), mask.expand(len(seen), -1), some) for seen, some in parts]
    )


def example_row(model: BasePolicy) -> Tensor:
    """Return the flat features of an observation of nothing, [F], for their size; UserError if there are none."""
    return flat_features(*_blank(model))[0]


@torch.no_grad()
def _blank(model: BasePolicy) -> tuple[Tensor, Tensor]:
    device, spec = next(model.parameters()).device, model.spec
    image = torch.zeros(1, *spec.image_size, 3, dtype=torch.uint8, device=device)
    state = torch.zeros(1, spec.state_dim, device=device)
    text = model.tokenize([""]).to(device)
    return model.features(dict.fromkeys(spec.cameras, image), state, text)


def random_shift(images: dict[str, Tensor], pixels: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Shift every image by up to ``pixels`` in each direction, edges repeated (DrQ, arXiv 2004.13649).

    Images are uint8 [B, H, W, 3] by camera. Cameras of a sample shift independently. 0 returns the images unchanged.
    """
    if pixels == 0:
        return images
    shifted = {}
    for camera, image in images.items():
        batch, height, width, _ = image.shape
        offsets = torch.randint(0, 2 * pixels + 1, (batch, 2), generator=generator).tolist()
        padded = image.new_empty(batch, height + 2 * pixels, width + 2 * pixels, 3)
        inside = slice(pixels, -pixels)
        padded[:, inside, inside] = image
        padded[:, :pixels, inside], padded[:, -pixels:, inside] = image[:, :1], image[:, -1:]
        padded[:, :, :pixels] = padded[:, :, pixels : pixels + 1]
        padded[:, :, -pixels:] = padded[:, :, -pixels - 1 : -pixels]
        shifted[camera] = torch.stack([padded[i, y : y + height, x : x + width] for i, (y, x) in enumerate(offsets)])
    return shifted
