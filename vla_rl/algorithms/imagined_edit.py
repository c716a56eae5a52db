"""A critic of chunks, and an edit that is practised in short imagined branches between two rounds of real episodes.

In every round, before the critic learns, a model of the policy's own features and a value of real outcomes are made
from everything in the store, and an edit is made anew on branches from the policy's own steps. Every candidate is
edited before the critic chooses. Once it has been taught (``teach_steps``) the policy itself stays as it is for the
rest of the round, so that what is learnt about its features stays true.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_rl.algorithms.actor import autocast
from vla_rl.algorithms.chunk_critic import ChunkCriticLearner, ChunkCriticLearning
from vla_rl.algorithms.config import ActorConfig
from vla_rl.algorithms.seeds import derived_seed, torch_generator
from vla_rl.core.errors import ConfigError
from vla_rl.credit import SegmentKind
from vla_rl.critics.backbones import Backbone
from vla_rl.critics.outcome import OutcomeValue, OutcomeValueConfig, fit_outcome_value
from vla_rl.data.cache import CachedEpisode, FrameCache
from vla_rl.policies.choosing import FOLDER, ChoiceConfig, Chooser
from vla_rl.policies.editing import Edit
from vla_rl.policies.features import draw_from_flat, example_row
from vla_rl.policies.trainable import TrainablePolicy
from world_model.alarm import Happened, alarm, unexplained
from world_model.branches import BranchConfig, Starts, World, improve
from world_model.feature_dynamics import FeatureDynamics, FeatureDynamicsConfig, Transitions, fit_dynamics

logger = logging.getLogger(__name__)
_SCALE_SAMPLES = 1024  # states by which the edit's inputs are scaled
_ALARM_CHUNKS = 512  # that are compared, at least, where there are so many
_ALARM_STEPS = 300  # of the dynamics that are asked
_HELD_OUT = 5  # one in so many of the older episodes says how much is usual, where there are so many
_ALARM_EPISODES = 20  # should say it; fewer older ones say nothing


@dataclass(frozen=True)
class ImaginedEditLearning(ChunkCriticLearning):
    """What the algorithm may be told. Candidates are not moved by offsets of chance: the edit moves them, each further
    than the one before, and what is new costs. Draws that are all moved by the whole edit try more, and where people
    take over may do far worse than the policy alone (docs/people.md).
    """

    actor: ActorConfig = field(
        default_factory=lambda: ActorConfig(
            batch_size=128, warmup_steps=50, decay_steps=400, schedule_every_round=True, precision="auto"
        )
    )
    teach_steps: int = 400
    choice: ChoiceConfig = field(default_factory=lambda: ChoiceConfig(offset=0.0, graded_edit=True, novelty_cost=1.0))
    dynamics: FeatureDynamicsConfig = field(default_factory=FeatureDynamicsConfig)
    value: OutcomeValueConfig = field(default_factory=OutcomeValueConfig)
    branches: BranchConfig = field(default_factory=BranchConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic.members < 2:
            raise ConfigError(
                "learning.critic.members is 1; branches are valued by members that have not seen their ends"
            )


class FittedWorld(NamedTuple):
    """What a round has learnt to imagine with.

    Attributes:
        transitions: what it has learnt from.
        dynamics, value: see their modules.
        brier: the value's score on episodes that it had not seen.
        starts: the policy's own real steps, at which branches begin.
    """

    transitions: Transitions
    dynamics: FeatureDynamics
    value: OutcomeValue
    brier: float
    starts: Starts


class ImaginedEdit(ChunkCriticLearner):
    """See the module."""

    name = "imagined_edit"
    config_class: ClassVar[type] = ImaginedEditLearning
    config: ImaginedEditLearning
    requires: ClassVar[frozenset[str]] = frozenset({"features", "several_draws", "acts_from_features"})
    provides: ClassVar[frozenset[str]] = frozenset({"branches"})
    edit: Edit

    @classmethod
    def check_fit(cls, learning: ChunkCriticLearning, policy: Callable[[], TrainablePolicy]) -> None:
        super().check_fit(learning, policy)
        model = policy()
        seen = example_row(model)[None]
        draw_from_flat(model, seen, seen.new_zeros(1, model.horizon, model.spec.action_dim))

    def build_critics(self, cache: FrameCache, backbone: Backbone | None) -> None:
        super().build_critics(cache, backbone)
        self.edit = Edit(self.model).to(next(self.model.parameters()).device)

    def prepare(self) -> dict[str, float]:
        """The edit is improved before the critic of the round learns, if outcomes say anything."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, "imagined edit", self._round))
            edit = Edit(self.model).to(self.data.device)
            told = self.tells_apart
            logs = self._imagine(edit, torch_generator(self.seed, "imagination", self._round)) if told else {}
        # A new edit moves nothing. The one before was made for draws of the policy before, which has since been taught
        # what that edit did: it would be done twice.
        if not logs.get("imagined_stopped") or self.config.teach_steps:
            self.edit = edit
        return logs

    def _imagine(self, edit: Edit, generator: torch.Generator) -> dict[str, float]:
        fitted = self.fit_world(generator)
        starts, branches = fitted.starts, self.config.branches
        if not len(starts.tick):
            return {}
        errors, usual = self._errors_of_newest(fitted.transitions)
        if errors and (reason := alarm(errors, usual, branches.alarm_ratio)):
            stays = "there is no edit" if self.config.teach_steps else "the edit before stays"
            logger.warning("nothing is imagined in round %d, and %s: %s", self._round, stays, reason)
            return {"imagined_stopped": 1.0, "imagined_unexplained_newest": errors[0]}
        world = self.world(fitted, generator)
        with torch.no_grad():
            some = torch.randint(len(starts.tick), (_SCALE_SAMPLES,), generator=generator)
            seen = edit.rows(starts.features[some], starts.tick[some], world.draw(starts.features[some]))
            edit.fit_inputs(seen)
        logs = improve(edit, world, starts, branches, generator)
        logs |= {"unexplained": fitted.dynamics.unexplained(fitted.transitions), "value_brier": fitted.brier}
        logs |= {"unexplained_newest": errors[0]} if errors else {}
        logger.info("imagined edit: %s", ", ".join(f"{name} {number:.3f}" for name, number in logs.items()))
        return {f"imagined_{name}": number for name, number in logs.items()}

    def fit_world(self, generator: torch.Generator) -> FittedWorld:
        """Learn dynamics and value from everything in the store."""
        config, transitions = self.config, self.transitions()
        rows = self._inputs[:, : transitions.features.shape[1] + 1]
        with autocast(config.actor, self.data.device, cached=False):
            dynamics = fit_dynamics(transitions, config.dynamics, generator)
            value, brier = fit_outcome_value(
                rows, self._label, self._fold, config.critic.members, config.value, generator
            )
        person = np.isin(self.data.credit.segment[self._frames], (SegmentKind.INTERVENTION, SegmentKind.DEMONSTRATION))
        begin = transitions.lasted[self.data.tensor(self._frames)] & ~self.data.tensor(person)
        starts = Starts(rows[begin, :-1], rows[begin, -1], self._fold[begin])
        return FittedWorld(transitions, dynamics, value, brier, starts)

    def _errors_of_newest(self, transitions: Transitions) -> tuple[dict[int, float], float]:
        """What is left unexplained of the chunks that the newest policy really played, by lag, and of older ones, by
        dynamics that have seen neither; empty and 0 where there is too little to compare, or nothing asks.
        """
        every = self.data.cache.episodes
        own = [episode for episode in every if episode.policy_version >= 0]
        newest = max((episode.policy_version for episode in own), default=0)
        older = [episode for episode in own if episode.policy_version < newest]
        every_so_many = max(2, min(_HELD_OUT, len(older) // _ALARM_EPISODES))
        unseen = ([e for e in own if e.policy_version == newest], older[::every_so_many])
        compared = [self._happened(episodes, transitions) for episodes in unseen]
        if not self.config.branches.alarm_ratio or len(older) < _ALARM_EPISODES or None in compared:
            return {}, 0.0
        left = {episode.start for episode in every} - {episode.start for part in unseen for episode in part}
        seen = np.concatenate([np.arange(e.start, e.start + e.length) for e in every if e.start in left])
        chosen = self.data.tensor(seen)
        config = replace(self.config.dynamics, steps=min(self.config.dynamics.steps, _ALARM_STEPS))
        with torch.random.fork_rng(devices=[]), autocast(self.config.actor, self.data.device, cached=False):
            torch.manual_seed(derived_seed(self.seed, "alarm", self._round))
            generator = torch_generator(self.seed, "alarm batch", self._round)
            dynamics = fit_dynamics(Transitions(*(part[chosen] for part in transitions)), config, generator)
        errors, usual = (unexplained(dynamics, happened) for happened in compared if happened)
        return errors, usual[0]

    def _happened(self, episodes: list[CachedEpisode], transitions: Transitions) -> Happened | None:
        """Chunks of episodes, evenly spread over them; None if none is whole with a tick on either side."""
        ticks, blank = self.config.critic.chunk_ticks, np.zeros(0, dtype=np.int64)
        inner = np.concatenate([blank, *(np.arange(e.start + 1, e.start + e.length - ticks - 1) for e in episodes)])
        chosen = inner[:: max(1, len(inner) // _ALARM_CHUNKS)]
        if not len(chosen):
            return None
        normalize, at = self.critic.action_normalizer.network_input, self.data.tensor(chosen)
        sent = {lag: self.data.sent_chunks(chosen + lag, ticks)[0] for lag in (-1, 0, 1)}
        chunks = {lag: normalize(self.data.tensor(chunk)) for lag, chunk in sent.items()}
        return Happened(transitions.features[at], chunks, transitions.later[at])

    def transitions(self) -> Transitions:
        """What every chunk that was executed did to the features."""
        cache, ticks = self.data.cache, self.config.critic.chunk_ticks
        every = np.arange(cache.total_frames)
        chunks, inside = self.data.sent_chunks(every, ticks)
        later, _ = cache.later(every, ticks)
        features = self.every_row()[:, : len(example_row(self.model))]
        lasted = self.data.tensor(inside.all(1) & (later == every + ticks))
        well = self.data.tensor(self.data.credit.terminal_success[cache.later(every, cache.total_frames)[0]])
        return Transitions(
            features,
            self.critic.action_normalizer.network_input(self.data.tensor(chunks)),
            features[self.data.tensor(later)],
            lasted,
            well & ~lasted,
            lasted | self.data.tensor(self.data.credit.known),
        )

    def world(self, fitted: FittedWorld, generator: torch.Generator) -> World:
        """What branches are imagined with.

        Args:
            fitted: see `fit_world`.
            generator: of the policy's noise.
        """
        dynamics = fitted.dynamics
        horizon, size = self.model.horizon, self.model.spec.action_dim
        ticks, normalize = self.config.critic.chunk_ticks, self.critic.action_normalizer.network_input

        def draw(seen: Tensor) -> Tensor:
            noise = torch.randn(len(seen), horizon, size, generator=generator).to(seen)
            return draw_from_flat(self.model, seen, noise)[:, :ticks]

        def value(seen: Tensor, tick: Tensor, part: Tensor) -> Tensor:
            rows = torch.cat([seen, tick[:, None]], 1)
            return fitted.value.lowest(rows) if self.config.branches.pessimistic else fitted.value(rows, part)

        return World(
            draw,
            lambda seen, chunk, member: dynamics(seen, normalize(chunk), member),
            value,
            self.config.dynamics.members,
            ticks,
            self.data.longest,
            self.config.discount,
        )

    def adopt_policy(self, folder: Path) -> None:
        """Go on from another policy, with its edit if it has one: that is the one which stays where nothing is
        imagined.
        """
        super().adopt_policy(folder)
        device = str(next(self.model.parameters()).device)
        found = Chooser.load(folder / FOLDER, self.model, device).edit if (folder / FOLDER).is_dir() else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, "adopted edit"))
            self.edit = found or Edit(self.model).to(device)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"edit": self.edit.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.edit.load_state_dict(state["edit"])
