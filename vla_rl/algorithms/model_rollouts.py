"""Short rollouts of a learned model, and the residual that PPO trains on them: steps 3 and 4 of `imagined_edit`.

3. roll out  a few chunks of pi + Normal(mu, sigma^2), from real z  `imagine`
4. improve   PPO moves mu to where V rises along the rollouts       `improve`
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vla_rl import ppo
from vla_rl.core.errors import ConfigError
from vla_rl.core.progress import track
from vla_rl.core.validation import check_ranges
from vla_rl.policies.residual import Residual
from world_model.protocol import Observations, WorldModel

ACTION_STD = 0.15  # sigma, standard deviation of the offsets that rollouts try, in normalized action units


@dataclass(frozen=True)
class BranchConfig:
    """Rollouts, and the improvement of the residual on them.

    Attributes:
        updates: PPO updates of the residual per round. Each has new rollouts.
        branches: Rollouts per update.
        chunks: Chunks per rollout.
        kl_coef: Weight of the KL divergence from the policy without residual, in nats per chunk.
        ood_ratio: Out-of-distribution limit. Dynamics predict the newest chunks and older ones, and have seen neither.
            The residual is not trained if the ratio of their unexplained variances is above this limit. 0: no check.
    """

    updates: int = 40
    branches: int = 512
    chunks: int = 3
    kl_coef: float = 0.03
    ood_ratio: float = 1.3

    def __post_init__(self) -> None:
        check_ranges(self, "branches", updates=">= 1", branches=">= 1", chunks=">= 1", kl_coef=">= 0")
        if self.ood_ratio and not 1 < self.ood_ratio < float("inf"):
            raise ConfigError(
                f"branches: ood_ratio is {self.ood_ratio}; expected more than 1 (times what is usual), or 0: never"
            )


class Starts(NamedTuple):
    """Real steps at which rollouts begin, N of them.

    Attributes:
        observations: What was seen there.
        tick: float [N], t, steps since the episode began.
        fold: int64 [N], of the episode: the network of V that has not trained on this fold values the rollout.
    """

    observations: Observations
    tick: Tensor
    fold: Tensor


@dataclass(frozen=True)
class Imagination:
    """What rollouts need, as functions of B rows.

    Attributes:
        world: The model that they run in.
        see: State of the world -> what the policy sees there, its features [B, F].
        draw: Features [B, F] -> the policy's chunks [B, C, A], raw units.
        value: Features [B, F], tick [B] and fold int64 [B] -> V, the discounted probability of success [B].
        chunk_ticks: C.
        last_tick: Time limit. An episode that reaches it has failed.
        discount: gamma of a tick.
    """

    world: WorldModel[Any]
    see: Callable[[Any], Tensor]
    draw: Callable[[Tensor], Tensor]
    value: Callable[[Tensor, Tensor, Tensor], Tensor]
    chunk_ticks: int
    last_tick: int
    discount: float = 1.0


@torch.no_grad()
def imagine(
    residual: Residual, within: Imagination, starts: Starts, config: BranchConfig, generator: torch.Generator
) -> tuple[ppo.Tried, float]:
    """Roll the model out for a few chunks from real steps drawn at random, each rollout with one member m.

        a_1:C = pi(z, noise) + delta,   delta ~ Normal(mu(z, t, a_1, a_C), sigma^2),   z' ~ f_m(z, a_1:C)

    A rollout ends in success with p_success after each chunk (V = 1), and in failure at the time limit (V = 0). The
    advantage is the generalized advantage estimate (arXiv 1506.02438) of the rise of V, with lambda = `ppo.GAE_LAMBDA`:

        r_i = gamma^C V(z_i+1, t_i+1) - V(z_i, t_i),   A_i = r_i + gamma^C lambda A_i+1

    Returns:
        The chunks with their advantages, and the mean rise of V from the start to the end of a rollout.
    """

    def randn(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator).to(like)

    chosen = torch.randint(len(starts.tick), (config.branches,), generator=generator)
    tick, fold = starts.tick[chosen], starts.fold[chosen]
    member = torch.randint(within.world.members, (config.branches,), generator=generator).to(fold)
    state = within.world.encode(starts.observations.at(chosen), member)
    features = within.see(state)
    value = within.value(features, tick, fold)
    first, alive = value, torch.ones_like(tick, dtype=torch.bool)
    rows, offsets, means, rises, lived = [], [], [], [], []
    discount = within.discount**within.chunk_ticks
    for _ in range(config.chunks):
        chunk = within.draw(features)
        rows.append(residual.rows(features, tick, chunk))
        means.append(residual(rows[-1]))
        offsets.append(means[-1] + ACTION_STD * randn(means[-1]) * residual.moved)
        chunk = chunk + residual.raw(offsets[-1])[:, None]
        lived.append(alive)
        state, success, _ = within.world.predict(state, chunk)
        features = within.see(state)
        won = alive & (torch.rand(success.shape, generator=generator).to(success) < success)
        tick = tick + within.chunk_ticks
        late = tick >= within.last_tick
        later = torch.where(late, 0.0, within.value(features, tick, fold))
        later = torch.where(alive, torch.where(won, 1.0, later), value)
        rises.append(torch.where(alive, discount, 1.0) * later - value)
        value, alive = later, alive & ~won & ~late
    advantage, carried = [], torch.zeros_like(value)
    for rise in reversed(rises):
        carried = rise + discount * ppo.GAE_LAMBDA * carried
        advantage.append(carried)
    kept = torch.cat(lived)
    tried = ppo.Tried(*(torch.cat(parts)[kept] for parts in (rows, offsets, means, advantage[::-1])))
    return tried, float((value - first).mean())


def improve(
    residual: Residual, within: Imagination, starts: Starts, config: BranchConfig, generator: torch.Generator
) -> dict[str, float]:
    """Train the residual in place by PPO (arXiv 1707.06347), with new rollouts for each update.

        max over mu of E[min(rho A, clip(rho) A)] - d KL(Normal(mu, sigma^2) | Normal(0, sigma^2)),   d = kl_coef

    Args:
        residual: mu, where it begins.
        within: World model, policy and value.
        starts: At least one.
        config: See `BranchConfig`.
        generator: CPU generator of all randomness.

    Returns:
        ``gain``, the rise of V along the rollouts of the last update. ``size``, the root mean square of mu.
        ``divergence`` of the last update, in nats per chunk.
    """
    optimizer = torch.optim.Adam(residual.parameters(), ppo.LEARNING_RATE, fused=True)
    found: dict[str, float] = {}
    for _ in track(range(config.updates), "imagined edit", "update"):
        tried, gain = imagine(residual, within, starts, config, generator)
        logs = ppo.update(residual, optimizer, tried, ACTION_STD, generator, config.kl_coef)
        size = float(tried.mean.square().mean().sqrt())
        found = {"gain": gain, "size": size, "divergence": logs["divergence"]}
    return found
