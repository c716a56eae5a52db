"""Policy improvement in imagination: masked group-relative policy optimisation (WoVR, arXiv 2602.13977).

A group is G imagined episodes from one start with different noise. Their outcomes, relative to the group's, tell good
actions from bad ones:

    A_i = R_i - mean R
    L = - mean over steps of min(rho A, clip(rho, 1 - .2, 1 + .28) A),   rho = pi(a | s) / pi_old(a | s)

over the steps up to and including the first success; what an episode does after it has no gradient, not even the rest
of the chunk. Groups in which nearly all or nearly none succeed teach nothing and are left out, and so are episodes that
were cut without an outcome: they count neither in the mean nor in the gradient. There is no KL term.

Advantage-weighted updates need nothing from here: imagined episodes go into the episode store with origin = imagined,
and the algorithms of `vla_rl.algorithms` weigh them as they weigh others; those that were cut are labelled by the
pessimistic ensemble target (RAVL).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.core.errors import ConfigError
from world_model.imagined_env import ImaginedVectorEnv

# WoVR's values. The ratio may leave 1 by so much downwards and upwards.
_CLIP_LOW, _CLIP_HIGH = 0.2, 0.28
_LOWEST_SUCCESS, _HIGHEST_SUCCESS = 0.1, 0.9  # groups outside this range are left out
_EPOCHS = 2  # gradient steps on one set of groups
_GRADIENT_NORM = 1.0  # longer gradients are shortened to it


@dataclass(frozen=True)
class GroupConfig:
    """Options of masked group-relative policy optimisation, with WoVR's values.

    Attributes:
        group: G, episodes of a group.
        mask_after_success: steps after the first success have no gradient; off for the ablation: they have one up to
            the episode's own limit of time.
        learning_rate: of AdamW.
    """

    group: int = 8
    mask_after_success: bool = True
    learning_rate: float = 3e-5

    def __post_init__(self) -> None:
        if self.group < 2:
            raise ConfigError(f"a group of {self.group} has no relative advantage; set group to 2 or more")


class StochasticActor(Protocol):
    """A policy that can say how likely its own draws are."""

    @property
    def execute_ticks(self) -> int:
        """Actions of a chunk that are executed before the next one is drawn."""
        ...

    def draw(
        self, images: Mapping[str, NDArray[np.uint8]], state: NDArray[np.float32], seeds: NDArray[np.int64], tick: int
    ) -> tuple[NDArray[np.float32], Any]:
        """Draw a chunk for B observations: actions [B, H, A] in raw units, and what `log_probability` needs."""
        ...

    def log_probability(self, draws: Sequence[Any], chosen: Sequence[Tensor], counted: Sequence[Tensor]) -> Tensor:
        """log pi of earlier draws under the present weights, with a graph.

        Args:
            draws: from `draw`.
            chosen: of each draw, the rows int64 that are wanted.
            counted: of each of these rows, how many of its actions count, int64, 1 to ``execute_ticks``.

        Returns:
            [sum of rows], in that order.
        """
        ...

    def parameters(self) -> Sequence[Tensor]:
        """What is trained."""
        ...


@dataclass(frozen=True)
class ImaginedGroups:
    """B imagined episodes, whole groups one after the other, as C chunks each.

    Attributes:
        draws: of each chunk, what the actor drew for all B.
        execute_ticks: actions of a chunk that were executed.
        success: bool [B].
        cut: bool [B], episodes without an outcome.
        ended: int64 [B], actions up to and including the one that ended the episode, by success or otherwise.
        limit: int64 [B], actions up to its limit of time, whether it succeeded before or not; all that were executed
            where the others ended before that.
    """

    draws: list[Any]
    execute_ticks: int
    success: NDArray[np.bool_]
    cut: NDArray[np.bool_]
    ended: NDArray[np.int64]
    limit: NDArray[np.int64]


def collect_groups(env: ImaginedVectorEnv, actor: StochasticActor, config: GroupConfig, seed: int) -> ImaginedGroups:
    """Imagine whole groups: the environments of a group share the start of its first seed and differ in their noise.

    Args:
        env: with a multiple of ``config.group`` environments.
        actor: acts.
        config: the groups.
        seed: of starts and noise.

    Raises:
        ConfigError: if the environments cannot be divided into groups.
    """
    count = env.num_envs
    if count % config.group:
        raise ConfigError(f"{count} environments cannot be divided into groups of {config.group}")
    starts = [env.bank.choose(seed + row // config.group) for row in range(count)]
    seeds = seed * 1_000_003 + np.arange(count)
    observation, _ = env.reset(seed=[int(own) for own in seeds], options={"starts": starts})
    never = np.iinfo(np.int64).max
    success, cut = np.zeros(count, bool), np.zeros(count, bool)
    ended, limit = np.full(count, never), np.full(count, never)
    draws: list[Any] = []
    tick = 0
    while (ended == never).any():
        actions, draw = actor.draw(observation["pixels"], observation["agent_pos"], seeds, tick)
        draws.append(draw)
        for index in range(actor.execute_ticks):
            observation, _, terminated, truncated, info = env.step(actions[:, index])
            tick += 1
            success |= info["is_success"] & (ended == never)
            cut |= info["is_cut"] & (ended == never)
            ended[(terminated | truncated) & (ended == never)] = tick
            limit[truncated & (limit == never)] = tick
    return ImaginedGroups(draws, actor.execute_ticks, success, cut, ended, np.minimum(limit, tick))


def group_advantages(success: Tensor, cut: Tensor, config: GroupConfig) -> tuple[Tensor, Tensor]:
    """Advantages of B = groups x G episodes, and which of them count.

    Args:
        success: bool [B], the outcomes, whole groups one after the other.
        cut: bool [B], episodes without an outcome.

    Returns:
        float [B], and bool [B]: False in groups that are left out, and for episodes without an outcome.
    """
    known = (~cut).float().unflatten(0, (-1, config.group))
    outcome = success.float().unflatten(0, (-1, config.group)) * known
    count = known.sum(1, keepdim=True).clamp(min=1)
    mean = outcome.sum(1, keepdim=True) / count
    advantage = (outcome - mean) * known
    kept = (mean >= _LOWEST_SUCCESS) & (mean <= _HIGHEST_SUCCESS) & (known > 0)
    return advantage.flatten(), kept.flatten()


def counted_actions(groups: ImaginedGroups, config: GroupConfig) -> NDArray[np.int64]:
    """How many actions of each chunk have a gradient, int64 [C, B]: those up to the end of the episode."""
    last = groups.ended if config.mask_after_success else groups.limit
    before = groups.execute_ticks * np.arange(len(groups.draws))[:, None]
    return np.clip(last - before, 0, groups.execute_ticks)


def clipped_loss(
    log_probability: Tensor, old_log_probability: Tensor, advantage: Tensor, mask: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """The clipped surrogate, averaged over the steps of the mask; all [M]. Zero if the mask is empty."""
    ratio = (log_probability - old_log_probability.detach()).exp()
    clipped = ratio.clamp(1 - _CLIP_LOW, 1 + _CLIP_HIGH)
    gain = torch.minimum(ratio * advantage, clipped * advantage)
    count = mask.sum().clamp(min=1)
    outside = ((ratio != clipped) & mask).sum() / count
    # Where, not times: a masked step must not carry a NaN into the gradient.
    return -torch.where(mask, gain, 0.0).sum() / count, {"clipped": float(outside)}


class MaskedGroupOptimiser:
    """Improves an actor on groups of imagined episodes.

    Args:
        actor: trained in place.
        config: see `GroupConfig`.
    """

    def __init__(self, actor: StochasticActor, config: GroupConfig) -> None:
        self.actor, self.config = actor, config
        self._optimizer = torch.optim.AdamW(list(actor.parameters()), config.learning_rate, weight_decay=0.0)

    def update(self, groups: ImaginedGroups) -> dict[str, float]:
        """All epochs on one set of groups. Without a group in range nothing changes."""
        config = self.config
        success, cut = torch.from_numpy(groups.success), torch.from_numpy(groups.cut)
        advantage, kept = group_advantages(success, cut, config)
        counted = torch.from_numpy(counted_actions(groups, config)) * kept
        logs = {"imagined_success": float(groups.success.mean()), "cut": float(groups.cut.mean())}
        logs["kept"] = float(kept.float().mean())
        if not counted.any():
            return logs
        rows = [own.nonzero()[:, 0] for own in counted]  # of each chunk, the episodes with a gradient
        actions = [own[chosen] for own, chosen in zip(counted, rows, strict=True)]
        gains = torch.cat([advantage[chosen] for chosen in rows])
        with torch.no_grad():
            old = self.actor.log_probability(groups.draws, rows, actions)
        for _ in range(_EPOCHS):
            new = self.actor.log_probability(groups.draws, rows, actions)
            everything = torch.ones_like(new, dtype=torch.bool)
            loss, step_logs = clipped_loss(new, old, gains.to(new.device), everything)
            self._optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(self.actor.parameters()), _GRADIENT_NORM)
            self._optimizer.step()
            logs |= step_logs | {"group_loss": float(loss.detach())}
        return logs
