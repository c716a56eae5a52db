"""Short imagined branches from real steps, and an edit of the policy that is improved on them.

A branch begins where a real episode was, lasts a few chunks and is valued at its end by what real outcomes say, or at 1
where it has drawn a success that the world foretells. The advantage of an edit is what the value rose by along the
branch; proximal policy optimisation (arXiv 1707.06347) with a cost on the distance from no edit keeps within what the
model knows. Whole imagined episodes with an imagined reward drift; three chunks do not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from vla_rl import ppo
from vla_rl.core.errors import ConfigError
from vla_rl.core.progress import track
from vla_rl.core.validation import check_ranges

SPREAD = 0.15  # standard deviation of the offsets that are tried, in normalised action units


@dataclass(frozen=True)
class BranchConfig:
    """How an edit is improved by imagination.

    Attributes:
        updates: of the edit; each imagines anew.
        branches: in an update.
        chunks: of a branch.
        distance_cost: weight of the divergence from no edit, in nats a chunk.
        pessimistic: Value branches by the lowest of the value's networks (RAVL, arXiv 2402.12527): where a branch
            ends, no data correct them. Otherwise by the one that has not learnt from the episode of its start.
        alarm_ratio: of the newest real chunks, dynamics that have not seen them may leave so many times as much
            unexplained as of older ones that they have not seen either (see `world_model.alarm`); 0: the world is
            always believed.
    """

    updates: int = 40
    branches: int = 512
    chunks: int = 3
    distance_cost: float = 0.03
    pessimistic: bool = False
    alarm_ratio: float = 1.3

    def __post_init__(self) -> None:
        check_ranges(self, "branches", updates=">= 1", branches=">= 1", chunks=">= 1", distance_cost=">= 0")
        if self.alarm_ratio and not 1 < self.alarm_ratio < float("inf"):
            raise ConfigError(
                f"branches: alarm_ratio is {self.alarm_ratio}; expected more than 1 (times what is usual), or 0: never"
            )


class Starts(NamedTuple):
    """Real steps that branches begin at, N of them.

    Attributes:
        features: [N, F], what the policy saw.
        tick: float [N], steps since the episode began.
        fold: int64 [N], of the episode: the value that has not learnt from it judges the branch.
    """

    features: Tensor
    tick: Tensor
    fold: Tensor


class Edit(ppo.Trainable, Protocol):
    """What is improved: see `vla_rl.policies.editing.Edit`."""

    moved: Tensor

    def rows(self, features: Tensor, tick: Tensor, chunk: Tensor) -> Tensor:
        """Its inputs."""

    def raw(self, offset: Tensor) -> Tensor:
        """Offsets in raw units."""


@dataclass(frozen=True)
class World:
    """What a branch is imagined with.

    Attributes:
        draw: features [B, F] -> the policy's chunks [B, C, A], the actions that are executed, raw.
        step: features [B, F], chunks [B, C, A] raw, member int64 [B] -> features after them, chance of success [B].
        value: features [B, F], tick [B], fold int64 [B] -> chance [B] that the episode succeeds, discounted.
        members: how many worlds there are.
        chunk_ticks: C.
        last_tick: the episode has failed when this is reached.
        discount: gamma of a tick, of the value.
    """

    draw: Callable[[Tensor], Tensor]
    step: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    value: Callable[[Tensor, Tensor, Tensor], Tensor]
    members: int
    chunk_ticks: int
    last_tick: int
    discount: float = 1.0


@torch.no_grad()
def imagine(
    edit: Edit, world: World, starts: Starts, config: BranchConfig, generator: torch.Generator
) -> tuple[ppo.Tried, float]:
    """Branches from starts drawn at random: their chunks, and by how much the value rose along one, on average."""

    def randn(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator).to(like)

    chosen = torch.randint(len(starts.tick), (config.branches,), generator=generator)
    features, tick, fold = (part[chosen] for part in starts)
    member = torch.randint(world.members, (config.branches,), generator=generator).to(fold)
    value = world.value(features, tick, fold)
    first, alive = value, torch.ones_like(tick, dtype=torch.bool)
    rows, offsets, means, rises, lived = [], [], [], [], []
    discount = world.discount**world.chunk_ticks
    for _ in range(config.chunks):
        chunk = world.draw(features)
        rows.append(edit.rows(features, tick, chunk))
        means.append(edit(rows[-1]))
        offsets.append(means[-1] + SPREAD * randn(means[-1]) * edit.moved)
        chunk = chunk + edit.raw(offsets[-1])[:, None]
        lived.append(alive)
        features, success = world.step(features, chunk, member)
        won = alive & (torch.rand(success.shape, generator=generator).to(success) < success)
        tick = tick + world.chunk_ticks
        late = tick >= world.last_tick
        later = torch.where(late, 0.0, world.value(features, tick, fold))
        later = torch.where(alive, torch.where(won, 1.0, later), value)
        rises.append(torch.where(alive, discount, 1.0) * later - value)
        value, alive = later, alive & ~won & ~late
    advantage, carried = [], torch.zeros_like(value)
    for rise in reversed(rises):
        carried = rise + discount * ppo.CARRY * carried
        advantage.append(carried)
    kept = torch.cat(lived)
    tried = ppo.Tried(*(torch.cat(parts)[kept] for parts in (rows, offsets, means, advantage[::-1])))
    return tried, float((value - first).mean())


def improve(
    edit: Edit, world: World, starts: Starts, config: BranchConfig, generator: torch.Generator
) -> dict[str, float]:
    """Train an edit in place.

    Args:
        edit: where it begins.
        world: see `World`.
        starts: at least one.
        config: see `BranchConfig`.
        generator: of the CPU, of everything random.

    Returns:
        ``gain``, the rise of the value along the last update's branches; ``size``, the root mean square of their
        offsets' means; ``divergence`` of the last update, in nats a chunk.
    """
    optimizer = torch.optim.Adam(edit.parameters(), ppo.LEARNING_RATE)
    found: dict[str, float] = {}
    for _ in track(range(config.updates), "imagined edit", "update"):
        tried, gain = imagine(edit, world, starts, config, generator)
        logs = ppo.update(edit, optimizer, tried, SPREAD, generator, config.distance_cost)
        size = float(tried.mean.square().mean().sqrt())
        found = {"gain": gain, "size": size, "divergence": logs["divergence"]}
    return found
