"""A critic of action chunks, trained on outcomes alone, chooses among a policy's draws (Q-chunking, arXiv 2507.07969).

    1. distill   the policy imitates demonstrations and its own successes    `ChunkCriticLearner.distill`
    5. choose    Q(z, t, a_1:C) learns how episodes end; the policy draws    `ChunkCriticLearner.fit_critic`
                 N chunks and executes the one with the highest score        `vla_rl.policies.best_of_n`

The numbers are those of `imagined_edit`, which adds steps 2 to 4 between these two.

Every episode in the store is data: the policy's own, interventions, demonstrations. Credit gives each chunk its label.
With ``takeover_is_failure`` a chunk that led to a rescue is worth 0, and the rescue is worth what came of it. So no
value crosses a takeover.
"""

import copy
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vla_rl.algorithms.actor import load_optimizer, polyak_update
from vla_rl.algorithms.chunk_windows import followers, windows
from vla_rl.algorithms.cloning import Cloning, CloningLearning
from vla_rl.algorithms.proxy_fit import ProxyFit
from vla_rl.algorithms.round_data import Frames
from vla_rl.algorithms.sampling import derived_seed, fold_of, torch_generator
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.validation import check_ranges
from vla_rl.credit import CreditConfig
from vla_rl.data.cache import FrameCache
from vla_rl.policies.base import BasePolicy, flat_features
from vla_rl.policies.best_of_n import BestOfN, BestOfNConfig, ChunkCritic, ChunkCriticConfig, best_index
from vla_rl.policies.proxy import ProxiedPolicy
from vla_rl.policies.residual import Residual

logger = logging.getLogger(__name__)
_LEARNING_RATE, _WEIGHT_DECAY = 1e-3, 0.03  # of AdamW
_INPUT_NOISE = 0.03  # standard deviation, on normalized inputs
_TARGET_RATE = 0.02  # Polyak rate. A round's critic is new and learns for some hundred steps: .005 would lag behind
_LOOKED_AT, _AT_ONCE = 256, 32  # states of `assess`, and per forward pass
_NEARLY_ALL = 0.95  # share of kept first draws that is worth a warning


@dataclass(frozen=True)
class ChunkCriticTrainingConfig:
    """Optimization of the critic.

    Attributes:
        batch_size: Chunks per gradient step.
        bootstrap_chunks: n of the temporal-difference target, see `ChunkCriticLearner.targets`. 0: the outcome (Monte
            Carlo). 1: the target of SARSA.
    """

    batch_size: int = 256
    bootstrap_chunks: int = 0

    def __post_init__(self) -> None:
        check_ranges(self, "critic_training", batch_size=">= 1", bootstrap_chunks=">= 0")


@dataclass(frozen=True)
class ChunkCriticLearning(CloningLearning):
    """Options of the algorithm.

    Attributes:
        distill_steps: Gradient steps of step 1, the first ones of a round. The policy clones the mixture (``actor``,
            ``mixture``): demonstrations, and successes as they were chosen. 0: the policy does not change.
        discount: gamma of a tick. Below 1, faster successes are worth more, and a slow one still more than a failure.
            Predictions are then discounted probabilities, and calibrated as such.
        credit: Of critic and cloning. A rescue that a success cuts short, at the end of an episode, is an intervention
            here, however few its steps.
    """

    distill_steps: int = 0
    discount: float = 1.0
    critic: ChunkCriticConfig = field(default_factory=ChunkCriticConfig)
    critic_training: ChunkCriticTrainingConfig = field(default_factory=ChunkCriticTrainingConfig)
    best_of_n: BestOfNConfig = field(default_factory=BestOfNConfig)
    credit: CreditConfig = field(
        default_factory=lambda: CreditConfig(rule="takeover_is_failure", endings_are_takeovers=True)
    )

    @property
    def trains_policy(self) -> bool:
        return self.distill_steps > 0

    @property
    def chunk_ticks(self) -> int:
        return self.critic.chunk_ticks

    def check_steps(self, steps: int, option: str) -> None:
        if self.distill_steps >= steps:
            raise ConfigError(
                f"learning.distill_steps is {self.distill_steps}, of {option}={steps} gradient steps: the critic would "
                "learn in none; set fewer, or more steps"
            )

    def __post_init__(self) -> None:
        check_ranges(self, "learning", distill_steps=">= 0", discount="(0, 1]")


class ChunkCriticLearner(Cloning):
    """The algorithm of this module. ``self.residual`` is the residual of the policy, if a subclass trains one."""

    name = "chunk_critic"
    config_class: ClassVar[type] = ChunkCriticLearning
    config: ChunkCriticLearning
    keeps_base: ClassVar[bool] = True
    requires: ClassVar[frozenset[str]] = frozenset({"features", "several_draws"})
    learns: ClassVar[frozenset[str]] = frozenset({"outcome"})

    @property
    def discount(self) -> float:
        return self.config.discount

    @classmethod
    def check_fit(cls, learning: ChunkCriticLearning, policy: Callable[[], BasePolicy]) -> None:
        model = policy()
        ChunkCritic(model, learning.critic)
        if isinstance(model, ProxiedPolicy) and not learning.distill_steps:
            raise ConfigError("learning.distill_steps is 0; in these steps the proxy imitates its base policy: set 400")

    def build_critics(self, cache: FrameCache) -> None:
        del cache
        self._rows: dict[str, Tensor] = {}  # inputs of the critic by episode, valid while the policy stays
        self._distilled = 0  # steps of this round
        self.residual: Residual | None = None
        self._prepared: dict[str, float] = {}
        self.proxy = None
        if isinstance(self.model, ProxiedPolicy):
            actor = self.config.actor
            self.proxy = ProxyFit(self.model, self.actor, actor.batch_size, self.config.critic.chunk_ticks, self.seed)
        self._make_critic()

    def _make_critic(self) -> None:
        self.critic = ChunkCritic(self.model, self.config.critic).to(next(self.model.parameters()).device)
        self._optimizer = torch.optim.AdamW(
            self.critic.parameters(), _LEARNING_RATE, weight_decay=_WEIGHT_DECAY, fused=True
        )
        self._target = copy.deepcopy(self.critic)

    def begin_round(self, cache: FrameCache, number: int) -> None:
        is_new = number != self._round
        if is_new:
            self._distilled = 0
        super().begin_round(cache, number)
        if self.proxy is not None:
            self.proxy.begin_round(self.data, is_new)
        self._read_windows()

    def mixture_weights(self, groups: Mapping[str, Frames]) -> dict[str, float]:
        """Draw a step of an own success no more often than one of a demonstration.

        A few successes, which hold what practice tried, would otherwise fill half of every batch beside many
        demonstrations (docs/results/known.md).
        """
        weights = super().mixture_weights(groups)
        demonstrated, played = len(groups["demonstrations"]), len(groups["rollouts"])
        if demonstrated and weights["demonstrations"]:
            most = weights["demonstrations"] * played / demonstrated
            weights["rollouts"] = min(weights["rollouts"], most)
        return weights

    def update(self, step: int) -> dict[str, float]:
        """One gradient step of a round: of the policy (step 1), then of a new critic (step 5)."""
        self._refuse_no_outcomes()
        if self.proxy is not None:
            self.proxy.prepare()
        if self._distilled < self.config.distill_steps:
            return self.distill(step)
        if self.begins_round():
            self._prepared = self.prepare() | (self.proxy.logs if self.proxy is not None else {})
            self._renew_critic()
        return self.fit_critic(step) | self._prepared

    # Step 1: distill.

    def distill(self, step: int) -> dict[str, float]:
        """Clone demonstrations, and successes as the critic chose them, into the policy.

        The critic reads the features of the policy afterwards. They may predict how an episode ends, since the policy
        has cloned the successes of all folds. A proxy imitates its base policy instead.
        """
        logs = super().update(step) if self.proxy is None else self.proxy.update(step, self._distilled)
        self._distilled += 1
        if self._distilled == self.config.distill_steps:
            if self.proxy is not None:
                self.proxy.end_round()
            self.actor.adopt(self.policy() if self.proxy is None else self.model)  # the weights that will act
            self._rows.clear()
            self._read_windows()
        return logs

    def prepare(self) -> dict[str, float]:
        """Do what a round needs once between steps 1 and 5, and return what to log; nothing here."""
        return {}

    # Step 5: choose.

    def fit_critic(self, step: int) -> dict[str, float]:
        """One gradient step of each member on the episodes that it may see:

            min over Q_m of E[cross-entropy(sigmoid(Q_m(z, t, a_1:C)), y)],   y of `targets`

        Member m never trains on fold m of the episodes, so that one that has not seen its end judges each episode.
        """
        generator = torch_generator(self.seed, "critic batch", step)
        chosen = torch.randint(len(self._inputs), (self.config.critic_training.batch_size,), generator=generator)
        rows = self._inputs[chosen]
        noise = torch.randn(rows.shape, generator=generator).to(rows)
        logit = self.critic(rows + _INPUT_NOISE * noise * self.critic.scale)
        loss = F.binary_cross_entropy_with_logits(logit, self.targets(chosen).expand_as(logit), reduction="none")
        seen = self._seen(self._fold[chosen])
        loss = (loss * seen).sum() / seen.sum().clamp(min=1)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        if self.config.critic_training.bootstrap_chunks:
            polyak_update(self._target, self.critic, _TARGET_RATE)
        return {"critic_loss": float(loss.detach())}

    @torch.no_grad()
    def targets(self, chosen: Tensor) -> Tensor:
        """Targets of windows [B]: [M, B], or [B] if all members have the same.

            y_i = gamma^(ticks to the end) if the episode succeeds, else 0                             (n = 0)
            y_i = gamma^(n C) sigmoid(Q'_m(z, t, a_1:C of the same actor, n chunks later))             (n > 0)

        Q' is a slow copy of each ensemble member. Where that later chunk is of another actor, has no label, or lies
        behind the end of the episode, y_i is the outcome.
        """
        chunks, label = self.config.critic_training.bootstrap_chunks, self._label[chosen]
        if not chunks:
            return label
        later = self._later[chosen]
        value = self._target(self._inputs[later]).sigmoid()
        return torch.where(later >= 0, self.config.discount ** (chunks * self.config.critic.chunk_ticks) * value, label)

    def _renew_critic(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, "critic weights", self._round))
            self._make_critic()
        self.critic.fit_inputs(self._inputs)
        self._target.load_state_dict(self.critic.state_dict())

    def _read_windows(self) -> None:
        """Find the critic's chunks in the data and their labels; the inputs are computed when they are read."""
        cache, ticks = self.data.cache, self.config.critic.chunk_ticks
        self._read: Tensor | None = None
        self._frames, label = windows(self.data, ticks, self.config.discount)
        ahead = self.config.critic_training.bootstrap_chunks * ticks
        self._later = self.data.tensor(followers(self.data, self._frames, ahead))
        self._label = self.data.tensor(label)
        fold = np.array([self._fold_of(episode.episode_id) for episode in cache.episodes], dtype=np.int64)
        self._fold = self.data.tensor(fold[cache.episode_index[self._frames]])

    @property
    def _inputs(self) -> Tensor:
        """The critic's inputs of every chunk in the data, with the features of the policy, [N, I]."""
        if self._read is None:
            self._read = self.every_row()[self.data.tensor(self._frames)]
        return self._read

    def every_row(self) -> Tensor:
        """Return the critic's inputs at every frame of the cache, [N, I]."""
        for episode in self.data.cache.episodes:
            if episode.episode_id not in self._rows:
                frames = np.arange(episode.start, episode.start + episode.length)
                self._rows[episode.episode_id] = self._rows_of(frames, episode.start)
        blank = self.critic.mean.new_empty(0, len(self.critic.mean))
        return torch.cat([blank, *(self._rows[episode.episode_id] for episode in self.data.cache.episodes)])

    @torch.no_grad()
    def _rows_of(self, frames: Frames, start: int) -> Tensor:
        """Return the critic's inputs at T steps of an episode, [T, I]: z, t and a_1:C. The actions are deviations from
        the chunk that the policy draws from zero noise.
        """
        ticks, model = self.config.critic.chunk_ticks, self.model.eval()
        chunks, _ = self.data.sent_chunks(frames, ticks)
        inputs = self.data.inputs(frames)
        blank = torch.zeros(len(frames), 1, model.horizon, model.spec.action_dim, device=self.data.device)
        seen = model.features(*inputs)
        usual = model.draw_several(*inputs, blank, seen=seen)[:, 0, :ticks]
        tick = self.data.tensor((frames - start).astype(np.float32))
        return self.critic.rows(flat_features(*seen), tick, self.data.tensor(chunks), usual)

    @property
    def outcomes_differ(self) -> bool:
        """Whether some chunks led to success and others to failure."""
        succeeded = self._label > 0
        return bool(succeeded.any() and not succeeded.all())

    def _fold_of(self, episode_id: str) -> int:
        return fold_of(episode_id, self.config.critic.members)

    def _seen(self, fold: Tensor) -> Tensor:
        """Which members train on steps of these folds, bool [M, B]. A single member trains on all."""
        members = torch.arange(self.config.critic.members, device=fold.device)[:, None]
        return (members != fold) | (len(members) == 1)

    def selector(self) -> BestOfN:
        """Return what selects among the policy's draws. It selects nothing if all outcomes are alike.

        Raises:
            UserError: if no episode has an outcome: such a critic has learned nothing.
        """
        self._refuse_no_outcomes()
        if not self.outcomes_differ:
            logger.warning("all outcomes are alike, so the critic cannot rank actions: the policy acts without it")
            return BestOfN(self.critic, replace(self.config.best_of_n, num_samples=1, offset_std=0.0), self.residual)
        return BestOfN(self.critic, self.config.best_of_n, self.residual)

    def adopt(self, policy: BasePolicy, selector: BestOfN | None) -> None:
        super().adopt(policy, selector)
        if self._round >= 0:
            self._rows.clear()
            self._read_windows()

    def _refuse_no_outcomes(self) -> None:
        """Refuse before the first step: a run without outcomes that had come to its end could not go on with them."""
        if not len(self._frames):
            raise UserError(
                f"no episode says how it ended, so {self.name} can learn nothing; label them (vla-rl label)"
            )

    # What reports read.

    @torch.no_grad()
    def trace(self, cache: FrameCache, frames: Frames) -> dict[str, np.ndarray]:
        """Predict the (discounted) probability of success at frames of the present round, by the members that have not
        trained on their episodes.
        """
        parts, folds = [], []
        for index, part in itertools.groupby(frames, lambda frame: cache.episode_index[frame]):
            episode, chosen = cache.episodes[index], np.array(list(part))
            known = self._rows.get(episode.episode_id)
            rows = self._rows_of(chosen, episode.start) if known is None else known[chosen - episode.start]
            parts.append(rows)
            folds += [self._fold_of(episode.episode_id)] * len(chosen)
        rows, fold = torch.cat(parts), self.data.tensor(np.array(folds))
        chance = self.critic(rows).sigmoid()
        unseen = ~self._seen(fold) | (len(chance) == 1)
        name = "viability" if self.discount == 1 else "discounted_value"
        return {name: ((chance * unseen).sum(0) / unseen.sum(0)).cpu().numpy()}

    @torch.no_grad()
    def assess(self) -> dict[str, float]:
        """Log ``kept_first``: the share of some of the store's states at which the critic keeps the first candidate, if
        that is the policy's own draw.
        """
        if not self.outcomes_differ:
            return {}
        selector, cache = self.selector(), self.data.cache
        if selector.config.num_samples == 1 or (self.residual is not None and not selector.config.graded_residual):
            return {}
        frames = np.unique(np.linspace(0, cache.total_frames - 1, _LOOKED_AT).astype(np.int64))
        generator, kept = torch_generator(self.seed, "kept draws", self._round), 0
        for part in np.array_split(frames, range(_AT_ONCE, len(frames), _AT_ONCE)):
            shape = (len(part), selector.noise_rows(self.model.horizon), self.model.spec.action_dim)
            noise = torch.randn(shape, generator=generator).to(self.data.device)
            tick = self.data.tensor(cache.position[part].astype(np.float32))
            found = selector.weighed(self.model.eval(), self.data.inputs(part), tick, noise, None)
            kept += int((best_index(*found) == 0).sum())
        share = kept / len(frames)
        if share >= _NEARLY_ALL:
            logger.warning(
                "the critic keeps the policy's own first draw at %.0f %% of the store's states, so it hardly changes "
                "what the policy does. Add episodes, failures as well as successes",
                100 * share,
            )
        return {"kept_first": share}

    def state_dict(self) -> dict[str, Any]:
        own = {"critic": self.critic.state_dict(), "critic_optimizer": self._optimizer.state_dict()}
        if self.config.critic_training.bootstrap_chunks:
            own["critic_target"] = self._target.state_dict()
        if self.proxy is not None:
            own["proxy"] = self.proxy.state_dict()
        return super().state_dict() | own | {"distilled": self._distilled}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.critic.load_state_dict(state["critic"])
        load_optimizer(self._optimizer, state["critic_optimizer"])
        if self.config.critic_training.bootstrap_chunks:
            self._target.load_state_dict(state["critic_target"])
        if self.proxy is not None:
            self.proxy.load_state_dict(state["proxy"])
        self._distilled = int(state["distilled"])
