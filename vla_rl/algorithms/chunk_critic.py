"""A critic of action chunks, learnt from outcomes alone; the policy stays as it is and acts by choosing.

Every episode in the store teaches: the policy's own, what people did when taking over, demonstrations.
The label of a chunk is the outcome as credit allows it to whoever acted: with ``takeover_is_failure`` a chunk that
led to a rescue is worth 0 and the rescue itself what came of it, so that nothing is carried across the takeover.

In each round the critic is made anew and learns for the round's gradient steps. Member i never sees the i-th part of
the episodes, so that every episode is judged by one that has not seen how it ends.

With ``teach_steps`` what was chosen, and did well, is first taught to the policy itself; the critic is then made on the
policy as it has become. Its members see through a policy that has cloned the successes of all parts, so that how an
episode ends may show in what they see.
"""

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.algorithms.actor import load_optimizer
from vla_rl.algorithms.cloning import Cloning
from vla_rl.algorithms.config import CloningLearning
from vla_rl.algorithms.round_data import Frames, RoundData
from vla_rl.algorithms.seeds import derived_seed, fold_of, torch_generator
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.validation import check_ranges
from vla_rl.credit import CreditConfig, SegmentKind
from vla_rl.critics.backbones import Backbone
from vla_rl.data.cache import FrameCache
from vla_rl.policies.choosing import FOLDER, ChoiceConfig, Chooser, ChunkCritic, ChunkCriticConfig, choice
from vla_rl.policies.editing import Edit
from vla_rl.policies.features import flat_features
from vla_rl.policies.trainable import TrainablePolicy

logger = logging.getLogger(__name__)
_LEAST_SCALE = 1e-2
_LEARNING_RATE, _WEIGHT_DECAY = 1e-3, 0.03  # of AdamW
_INPUT_NOISE = 0.03  # standard deviation, on normalised inputs
_LOOKED_AT, _AT_ONCE = 256, 32  # states at which it is counted how often the first draw is kept
_NEARLY_ALL = 0.95
_TARGET_RATE = 0.02  # a round's critic is new and learns for some hundred steps: the usual .005 would lag behind


@dataclass(frozen=True)
class ChunkCriticTrainingConfig:
    """The critic's optimisation.

    Attributes:
        batch_size: windows per gradient step.
        bootstrap_chunks: n; 0: a chunk is worth what came of it in the end (Monte-Carlo). From 1 on it is worth
            gamma^(n C) times what the critic thinks of the chunk that the same actor executed n chunks later: asked is
            a copy that follows it by 2 % a step, every member for itself, so that what others have learnt from the
            part that it never sees does not reach it. Where that later chunk is another's, or is not judged, or the
            episode has ended, it is the outcome as before: nothing is carried from a rescue to who was rescued. 1 is
            the temporal-difference target of SARSA.
    """

    batch_size: int = 256
    bootstrap_chunks: int = 0

    def __post_init__(self) -> None:
        check_ranges(self, "critic_training", batch_size=">= 1", bootstrap_chunks=">= 0")


@dataclass(frozen=True)
class ChunkCriticLearning(CloningLearning):
    """What the algorithm may be told.

    Attributes:
        teach_steps: of a round's gradient steps, the first so many clone the mixture into the policy (``actor``,
            ``mixture``): demonstrations, and successes as they were chosen. 0: the policy stays as it is.
        discount: gamma of a tick. A success is worth gamma^(ticks to its end), a failure 0, to the critic and to what
            is imagined: below 1 what succeeds sooner is worth more, and never as much less as a failure. What is
            foretold is then no chance of success but what it is worth, and calibrated as such.
        credit: of critic and cloning. A rescue that a success cuts short, at the end of an episode, is one here,
            however few its steps.
    """

    teach_steps: int = 0
    discount: float = 1.0
    critic: ChunkCriticConfig = field(default_factory=ChunkCriticConfig)
    critic_training: ChunkCriticTrainingConfig = field(default_factory=ChunkCriticTrainingConfig)
    choice: ChoiceConfig = field(default_factory=ChoiceConfig)
    credit: CreditConfig = field(
        default_factory=lambda: CreditConfig(rule="takeover_is_failure", endings_are_takeovers=True)
    )

    @property
    def trains_policy(self) -> bool:
        return self.teach_steps > 0

    @property
    def chunk_ticks(self) -> int:
        return self.critic.chunk_ticks

    def check_steps(self, steps: int, option: str) -> None:
        if self.teach_steps >= steps:
            raise ConfigError(
                f"learning.teach_steps is {self.teach_steps}, of {option}={steps} gradient steps: the critic would "
                "learn in none; set fewer, or more steps"
            )

    def __post_init__(self) -> None:
        if self.teach_steps < 0:
            raise ConfigError(f"learning.teach_steps is {self.teach_steps}; it cannot be negative")
        if not 0 < self.discount <= 1:
            raise ConfigError(f"learning.discount is {self.discount}; expected a number above 0, at most 1")


class ChunkCriticLearner(Cloning):
    """See the module."""

    name = "chunk_critic"
    config_class: ClassVar[type] = ChunkCriticLearning
    config: ChunkCriticLearning
    requires: ClassVar[frozenset[str]] = frozenset({"features", "several_draws"})
    learns: ClassVar[frozenset[str]] = frozenset({"outcome"})

    @property
    def discount(self) -> float:
        """Of what the critic foretells: 1 for the plain chance of success."""
        return self.config.discount

    @classmethod
    def check_fit(cls, learning: ChunkCriticLearning, policy: Callable[[], TrainablePolicy]) -> None:
        ChunkCritic(policy(), learning.critic)

    def build_critics(self, cache: FrameCache, backbone: Backbone | None) -> None:
        """Make the critic; it sees through the policy, whatever ``backbone`` is."""
        del cache, backbone
        self._rows: dict[str, Tensor] = {}  # by episode: they stay the same while the policy does
        self._taught = 0  # steps of this round
        self.edit: Edit | None = None
        self._prepared: dict[str, float] = {}
        self._make_critic()

    def _make_critic(self) -> None:
        self.critic = ChunkCritic(self.model, self.config.critic).to(next(self.model.parameters()).device)
        self._optimizer = torch.optim.AdamW(self.critic.parameters(), _LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
        self._target = copy.deepcopy(self.critic)

    def begin_round(self, cache: FrameCache, number: int) -> None:
        """Take the windows of the episodes in the cache."""
        if number != self._round:
            self._taught = 0
        super().begin_round(cache, number)
        self._look()

    def _look(self) -> None:
        """Make what the critic sees of every window, through the policy as it is."""
        cache = self.data.cache
        for episode in cache.episodes:
            if episode.episode_id not in self._rows:
                frames = np.arange(episode.start, episode.start + episode.length)
                self._rows[episode.episode_id] = self._rows_of(frames, episode.start)
        self._frames, label = windows(self.data, self.config.critic.chunk_ticks, self.config.discount)
        ahead = self.config.critic_training.bootstrap_chunks * self.config.critic.chunk_ticks
        self._later = self.data.tensor(followers(self.data, self._frames, ahead))
        self._inputs, self._label = self.every_row()[self.data.tensor(self._frames)], self.data.tensor(label)
        fold = np.array([self._fold_of(episode.episode_id) for episode in cache.episodes], dtype=np.int64)
        self._fold = self.data.tensor(fold[cache.episode_index[self._frames]])

    def every_row(self) -> Tensor:
        """The critic's inputs at every frame of the cache, [N, I]."""
        blank = self.critic.mean.new_empty(0, len(self.critic.mean))
        return torch.cat([blank, *(self._rows[episode.episode_id] for episode in self.data.cache.episodes)])

    def prepare(self) -> dict[str, float]:
        """What is done once in a round, before the critic learns, and what to log of it; nothing here."""
        return {}

    @torch.no_grad()
    def _rows_of(self, frames: Frames, start: int) -> Tensor:
        """The critic's inputs at every step of an episode, [T, I]."""
        ticks, model = self.config.critic.chunk_ticks, self.model.eval()
        chunks, _ = self.data.sent_chunks(frames, ticks)
        inputs = self.data.inputs(frames)
        blank = torch.zeros(len(frames), 1, model.horizon, model.spec.action_dim, device=self.data.device)
        seen = model.features(*inputs)
        usual = model.draw_several(*inputs, blank, seen=seen)[:, 0, :ticks]
        tick = self.data.tensor((frames - start).astype(np.float32))
        return self.critic.rows(flat_features(*seen), tick, self.data.tensor(chunks), usual)

    def update(self, step: int) -> dict[str, float]:
        """One gradient step of the policy, while it is taught, or else of every member of the critic, on the episodes
        that it may see; the first of a round makes them anew.
        """
        self._refuse_no_outcomes()
        if self._taught < self.config.teach_steps:
            return self._teach(step)
        if self.begins_round():
            self._prepared = self.prepare()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derived_seed(self.seed, "critic weights", self._round))
                self._make_critic()
            self.critic.mean.copy_(self._inputs.mean(0))
            self.critic.scale.copy_(self._inputs.std(0, correction=0) + _LEAST_SCALE)
            self._target.load_state_dict(self.critic.state_dict())
        training, generator = self.config.critic_training, torch_generator(self.seed, "critic batch", step)
        chosen = torch.randint(len(self._inputs), (training.batch_size,), generator=generator)
        rows = self._inputs[chosen]
        noise = torch.randn(rows.shape, generator=generator).to(rows)
        logit = self.critic(rows + _INPUT_NOISE * noise * self.critic.scale)
        loss = F.binary_cross_entropy_with_logits(logit, self._worth(chosen).expand_as(logit), reduction="none")
        seen = self._seen(self._fold[chosen])
        loss = (loss * seen).sum() / seen.sum().clamp(min=1)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        self._follow()
        return {"critic_loss": float(loss.detach()), **self._prepared}

    def _worth(self, chosen: Tensor) -> Tensor:
        """What each member should say of windows [B], see ``bootstrap_chunks``: [M, B], or [B] if all alike."""
        training, label = self.config.critic_training, self._label[chosen]
        if not training.bootstrap_chunks:
            return label
        later = self._later[chosen]
        with torch.no_grad():
            foretold = self._target(self._inputs[later]).sigmoid()
        ticks = training.bootstrap_chunks * self.config.critic.chunk_ticks
        return torch.where(later >= 0, self.config.discount**ticks * foretold, label)

    @torch.no_grad()
    def _follow(self) -> None:
        if self.config.critic_training.bootstrap_chunks:
            for slow, fast in zip(self._target.parameters(), self.critic.parameters(), strict=True):
                slow.lerp_(fast, _TARGET_RATE)

    def _teach(self, step: int) -> dict[str, float]:
        logs = super().update(step)
        self._taught += 1
        if self._taught == self.config.teach_steps:
            self.actor.adopt(self.policy())  # the critic sees through the weights that will act
            self._look_anew()
        return logs

    def adopt_policy(self, folder: Path) -> None:
        super().adopt_policy(folder)
        if self._round >= 0:
            self._look_anew()

    def _look_anew(self) -> None:
        self._rows.clear()
        self._look()

    @property
    def tells_apart(self) -> bool:
        """Whether what was done succeeded in some places and failed in others."""
        succeeded = self._label > 0
        return bool(succeeded.any() and not succeeded.all())

    def _fold_of(self, episode_id: str) -> int:
        return fold_of(episode_id, self.config.critic.members)

    def _seen(self, fold: Tensor) -> Tensor:
        """Which members learn from steps of these folds, bool [M, B]. A single one learns from all."""
        members = torch.arange(self.config.critic.members, device=fold.device)[:, None]
        return (members != fold) | (len(members) == 1)

    def trace(self, cache: FrameCache, frames: Frames) -> dict[str, np.ndarray]:
        """The chance of success (its discounted value) of what was done at frames of the present round, foretold by
        members that have not learnt from their episodes.
        """
        episodes = [cache.episodes[index] for index in cache.episode_index[frames]]
        rows = torch.stack(
            [self._rows[e.episode_id][frame - e.start] for e, frame in zip(episodes, frames, strict=True)]
        )
        fold = torch.tensor([self._fold_of(e.episode_id) for e in episodes], device=rows.device)
        name = "viability" if self.discount == 1 else "discounted_value"
        return {name: self._foretell(rows, fold).cpu().numpy()}

    @torch.no_grad()
    def _foretell(self, rows: Tensor, fold: Tensor) -> Tensor:
        """Chance of success [B], by the members that have not learnt from these folds."""
        chance = self.critic(rows).sigmoid()
        unseen = ~self._seen(fold) | (len(chance) == 1)
        return (chance * unseen).sum(0) / unseen.sum(0)

    def save_policy(self, folder: Path, version: int) -> None:
        """Write the policy, with the critic that chooses for it: the critic first, since a policy's config.json says
        that all of it is there. A critic of outcomes that are all alike does not choose.

        Raises:
            UserError: if no episode has an outcome: such a critic has learnt nothing.
        """
        self._refuse_no_outcomes()
        if not self.tells_apart:
            logger.warning("all outcomes are alike, so nothing tells one action from another: the policy acts as it is")
        self._chooser().save(folder / FOLDER)
        super().save_policy(folder, version)

    def _chooser(self) -> Chooser:
        told = self.config.choice if self.tells_apart else replace(self.config.choice, draws=1, offset=0.0)
        return Chooser(self.critic, told, self.edit)

    @torch.no_grad()
    def assess(self) -> dict[str, float]:
        """Log ``kept_first``: the share of some of the store's states at which the critic keeps the first candidate, if
        that is the policy's own draw.
        """
        chooser, cache = self._chooser(), self.data.cache
        if chooser.config.draws == 1 or (self.edit is not None and not chooser.config.graded_edit):
            return {}
        frames = np.unique(np.linspace(0, cache.total_frames - 1, _LOOKED_AT).astype(np.int64))
        generator, kept = torch_generator(self.seed, "kept draws", self._round), 0
        for part in np.array_split(frames, range(_AT_ONCE, len(frames), _AT_ONCE)):
            shape = (len(part), chooser.noise_rows(self.model.horizon), self.model.spec.action_dim)
            noise = torch.randn(shape, generator=generator).to(self.data.device)
            tick = self.data.tensor(cache.position[part].astype(np.float32))
            found = chooser.weighed(self.model.eval(), self.data.inputs(part), tick, noise, None)
            kept += int((choice(*found) == 0).sum())
        share = kept / len(frames)
        if share >= _NEARLY_ALL:
            logger.warning(
                "the critic keeps the policy's own first draw at %.0f %% of the store's states, so it hardly changes "
                "what the policy does. Add episodes, failures as well as successes",
                100 * share,
            )
        return {"kept_first": share}

    def _refuse_no_outcomes(self) -> None:
        """Also before the first step: a run without outcomes that had come to its end could not go on with them."""
        if not len(self._inputs):
            raise UserError(
                f"no episode says how it ended, so {self.name} can learn nothing; label them (vla-rl label)"
            )

    def state_dict(self) -> dict[str, Any]:
        own = {"critic": self.critic.state_dict(), "critic_optimizer": self._optimizer.state_dict()}
        if self.config.critic_training.bootstrap_chunks:
            own["critic_target"] = self._target.state_dict()
        return super().state_dict() | own | {"taught": self._taught}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.critic.load_state_dict(state["critic"])
        load_optimizer(self._optimizer, state["critic_optimizer"])
        if self.config.critic_training.bootstrap_chunks:
            self._target.load_state_dict(state["critic_target"])
        self._taught = int(state["taught"])


def windows(data: RoundData, ticks: int, discount: float) -> tuple[Frames, NDArray[np.float32]]:
    """Where a chunk of so many ticks begins that one and the same actor executed, and what came of it.

    A window that reaches into another segment is left out; one that reaches beyond the end of its episode is not.

    Args:
        data: episodes and their credit.
        ticks: C.
        discount: gamma.

    Returns:
        frames: int64 [N].
        label: float32 [N], gamma^(ticks to the end) where what was done led to success, else 0.
    """
    credit, every = data.credit, np.arange(data.cache.total_frames)
    person = np.isin(credit.segment, (SegmentKind.INTERVENTION, SegmentKind.DEMONSTRATION))
    judged = credit.viability_mask | (person & credit.known)
    last, _ = data.cache.later(every, data.cache.total_frames)
    whole = (every + ticks <= credit.outcome_stop) | (credit.outcome_stop == last + 1)
    frames = np.flatnonzero(judged & whole)
    label = np.where(person, credit.actor_outcome, credit.viability_label > 0) * discount ** (last - every)
    return frames, label[frames].astype(np.float32)


def followers(data: RoundData, frames: Frames, ticks: int) -> Frames:
    """Which window the same actor executed so many ticks after each one, int64 [N]: its index in ``frames``, sorted as
    `windows` gives them; -1: none, because another has taken over, the episode has ended, or it is not judged.
    """
    later = frames + ticks
    index = np.searchsorted(frames, later).clip(max=len(frames) - 1)
    return np.where((frames[index] == later) & (later < data.credit.outcome_stop[frames]), index, -1)
