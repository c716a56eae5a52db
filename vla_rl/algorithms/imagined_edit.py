"""Practice without a person: a residual of the policy is trained on short model rollouts between rounds of episodes.

The data are the robot's own episodes and their outcomes. No person and no reward is needed. One round has five steps:

    1. distill   pi imitates demonstrations and its own successes       `chunk_critic.ChunkCriticLearner.distill`
    2. fit       z' = f_m(z, a_1:C) and V(z, t), in the features of pi  `ImaginedEdit.fit_world`
    3. roll out  a few chunks of pi + Normal(mu, sigma^2), from real z  `model_rollouts.imagine`
    4. improve   PPO moves mu to where V rises along the rollouts       `model_rollouts.improve`
    5. choose    Q scores N chunks of pi + mu, and the best one acts    `chunk_critic.ChunkCriticLearner.fit_critic`

z are the features of the policy's frozen encoder at one observation, and t is the tick. a_1:C are the C actions of a
chunk that are executed before the next plan, and m is a member of an ensemble. docs/method_alone.md explains each step.
"""

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.algorithms.actor import autocast
from vla_rl.algorithms.model_rollouts import BranchConfig, Imagination, Starts, improve
from vla_rl.algorithms.residual_learner import ResidualLearner, ResidualLearning
from vla_rl.algorithms.round_data import RoundData
from vla_rl.algorithms.sampling import derived_seed, torch_generator
from vla_rl.core.errors import ConfigError
from vla_rl.critics.outcome import OutcomeValue, OutcomeValueConfig, fit_outcome_value
from vla_rl.data.cache import CachedEpisode, FrameCache
from vla_rl.policies.base import BasePolicy, draw_from_flat, example_row
from vla_rl.policies.best_of_n import BestOfN
from vla_rl.policies.residual import Residual
from world_model.check import out_of_distribution, unexplained
from world_model.feature_dynamics import FeatureDynamics, FeatureDynamicsConfig, Transitions, fit_dynamics
from world_model.feature_world import FeatureWorld
from world_model.protocol import Observations, WorldModel

logger = logging.getLogger(__name__)
_SCALE_SAMPLES = 1024  # states that set the scale of the residual's inputs
_CHECKED_CHUNKS = 512  # least number of chunks that the check compares, where there are so many
_CHECK_STEPS = 300  # gradient steps of the dynamics of the check
_HELD_OUT = 5  # one in so many of the older episodes measures the usual error, where there are enough
_CHECK_EPISODES = 20  # least number of older episodes, and of held-out ones where there are enough


@dataclass(frozen=True)
class ImaginedEditLearning(ResidualLearning):
    """Options of the algorithm."""

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
    """What step 2 has fitted.

    Attributes:
        world: f.
        value: V.
        brier: Score of V on the episodes that each network has not seen.
        starts: The policy's own real steps, at which rollouts begin.
    """

    world: FeatureWorld
    value: OutcomeValue
    brier: float
    starts: Starts


class ImaginedEdit(ResidualLearner):
    """The algorithm of this module. Steps 1 and 5 are those of `ChunkCriticLearner.update`."""

    name = "imagined_edit"
    config_class: ClassVar[type] = ImaginedEditLearning
    config: ImaginedEditLearning
    provides: ClassVar[frozenset[str]] = frozenset({"branches"})

    def build_critics(self, cache: FrameCache) -> None:
        super().build_critics(cache)
        self._accepted: FeatureDynamics | None = None  # of the newest round that has imagined; the next goes on from it

    def prepare(self) -> dict[str, float]:
        """Run steps 2 to 4 after the policy was distilled and before the critic learns, if outcomes differ."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, "imagined edit", self._round))
            residual = self.new_residual()
            generator = torch_generator(self.seed, "imagination", self._round)
            logs = self._improved(residual, generator) if self.outcomes_differ else {}
        # A new residual is zero. The one before was trained for the draws of the policy before. Step 1 has distilled it
        # into the policy since, and it would act twice.
        if not logs.get("imagined_stopped") or self.config.distill_steps:
            self.residual = residual
        return logs

    def _improved(self, residual: Residual, generator: torch.Generator) -> dict[str, float]:
        """Train a new residual in place, and return what to log."""
        if self.proxy is not None and not self.proxy.fits:
            logger.warning(
                "nothing is imagined in round %d: the proxy leaves %.0f %% of the variance of its base policy's chunks "
                "unexplained. Add episodes, or set a larger learning.distill_steps",
                *(self._round, 100 * self.proxy.unexplained),
            )
            return {"imagined_stopped": 1.0}
        fitted = self.fit_world(generator)
        starts, branches = fitted.starts, self.config.branches
        if not len(starts.tick):
            return {}
        newest, older = self.errors_of_unseen_chunks() or ({}, {})
        checked = {"unexplained_newest": newest[0], "unexplained_older": older[0]} if newest else {}
        if newest and (reason := out_of_distribution(newest, older, branches.ood_ratio)):
            stays = "there is no residual" if self.config.distill_steps else "the residual before stays"
            logger.warning("nothing is imagined in round %d, and %s: %s", self._round, stays, reason)
            return {f"imagined_{name}": number for name, number in {"stopped": 1.0, **checked}.items()}
        self._accepted = fitted.world.dynamics
        within = self.imagination(fitted, generator)
        with torch.no_grad():
            some = torch.randint(len(starts.tick), (_SCALE_SAMPLES,), generator=generator)
            seen = within.see(within.world.encode(starts.observations.at(some)))
            residual.fit_inputs(residual.rows(seen, starts.tick[some], within.draw(seen)))
        logs = improve(residual, within, starts, branches, generator)
        whole = np.flatnonzero(self.transitions().lasted.cpu().numpy())
        logs |= {"unexplained": self.unexplained(fitted.world, whole), "value_brier": fitted.brier, **checked}
        logger.info("imagined residual: %s", ", ".join(f"{name} {number:.3f}" for name, number in logs.items()))
        return {f"imagined_{name}": number for name, number in logs.items()}

    # Step 2: fit.

    def fit_world(self, generator: torch.Generator) -> FittedWorld:
        """Fit dynamics and value to all episodes in the store.

            z' = z + W (z, a_1:C) + f_m(z, a_1:C),   p_success = sigmoid(s_m(z, a_1:C))
            V(z, t) -> gamma^(ticks to the end) for a success, 0 for a failure

        V is trained by cross-entropy. Its network k never trains on fold k of the episodes. f goes on from the dynamics
        of the newest round that has imagined, since the features of two rounds are nearly the same.
        """
        rows, transitions = self._inputs[:, : len(example_row(self.model)) + 1], self.transitions()
        world = self.learn_world(transitions, generator, before=self._accepted)
        with autocast(self.config.actor, self.data.device, cached=False):
            value, brier = fit_outcome_value(
                rows, self._label, self._fold, self.config.critic.members, self.config.value, generator
            )
        begin = (transitions.lasted & ~self.data.tensor(self.data.by_people))[self.data.tensor(self._frames)]
        moments = Observations(self.data.cache, self._frames[begin.cpu().numpy()])
        return FittedWorld(world, value, brier, Starts(moments, rows[begin, -1], self._fold[begin]))

    def learn_world(
        self,
        data: Transitions,
        generator: torch.Generator,
        config: FeatureDynamicsConfig | None = None,
        before: FeatureDynamics | None = None,
    ) -> FeatureWorld:
        """Fit dynamics to some of the store's transitions, in the features of the present policy."""
        with autocast(self.config.actor, self.data.device, cached=False):
            dynamics = fit_dynamics(data, config or self.config.dynamics, generator, before)
        features = self._features()
        return FeatureWorld(
            dynamics,
            lambda moments: features[self.data.tensor(moments.frames)],
            self.critic.action_normalizer.network_input,
        )

    def transitions(self) -> Transitions:
        """What each executed chunk did to the features: (z, a_1:C, z', success within the chunk)."""
        ticks, normalize = self.config.critic.chunk_ticks, self.critic.action_normalizer.network_input
        whole = np.full(self.data.cache.total_frames, ticks)
        return what_actions_did(self.data, self._features(), normalize, ticks, whole)

    def _features(self) -> Tensor:
        """What the policy sees at every frame of the cache, [N, F]."""
        return self.every_row()[:, : len(example_row(self.model))]

    def errors_of_unseen_chunks(self) -> tuple[dict[int, float], dict[int, float]] | None:
        """Out-of-distribution check: fit dynamics that have seen neither the newest nor some older episodes.

        Returns:
            The variance that they leave unexplained on the newest policy's chunks, by lag of the actions in ticks, and
            on the older chunks. None where there is too little to compare, or no check is wanted.
        """
        every, ticks = self.data.cache.episodes, self.config.critic.chunk_ticks
        own = [episode for episode in every if episode.policy_version >= 0]
        newest = max((episode.policy_version for episode in own), default=0)
        older = [episode for episode in own if episode.policy_version < newest]
        every_so_many = max(2, min(_HELD_OUT, len(older) // _CHECK_EPISODES))
        unseen = ([e for e in own if e.policy_version == newest], older[::every_so_many])
        # A chunk is compared if it is whole, with a tick on either side.
        inner = [frames_of(episodes, begin=1, end=-ticks - 1) for episodes in unseen]
        if not self.config.branches.ood_ratio or len(older) < _CHECK_EPISODES or not all(map(len, inner)):
            return None
        left = {episode.start for episode in every} - {episode.start for part in unseen for episode in part}
        chosen = self.data.tensor(frames_of([episode for episode in every if episode.start in left]))
        config = replace(self.config.dynamics, steps=min(self.config.dynamics.steps, _CHECK_STEPS))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, "alarm", self._round))
            generator = torch_generator(self.seed, "alarm batch", self._round)
            world = self.learn_world(Transitions(*(part[chosen] for part in self.transitions())), generator, config)
        spread = [frames[:: max(1, len(frames) // _CHECKED_CHUNKS)] for frames in inner]
        of_newest, of_older = ({lag: self.unexplained(world, each, lag) for lag in (-1, 0, 1)} for each in spread)
        return of_newest, of_older

    def unexplained(self, world: WorldModel[Any], frames: NDArray[np.int64], lag: int = 0) -> float:
        """Return `check.unexplained` of chunks that begin at some frames, with what was sent ``lag`` ticks later."""
        cache, ticks = self.data.cache, self.config.critic.chunk_ticks
        sent = self.data.tensor(self.data.sent_chunks(frames + lag, ticks)[0])
        return unexplained(world, _see, Observations(cache, frames), sent, Observations(cache, frames + ticks))

    def imagination(self, fitted: FittedWorld, generator: torch.Generator) -> Imagination:
        """Join world model, policy and value for step 3; the generator draws the policy's noise."""
        horizon, size = self.model.horizon, self.model.spec.action_dim
        ticks = self.config.critic.chunk_ticks

        def draw(seen: Tensor) -> Tensor:
            noise = torch.randn(len(seen), horizon, size, generator=generator).to(seen)
            return draw_from_flat(self.model, seen, noise)[:, :ticks]

        def value(seen: Tensor, tick: Tensor, part: Tensor) -> Tensor:
            return fitted.value(torch.cat([seen, tick[:, None]], 1), part)

        return Imagination(fitted.world, _see, draw, value, ticks, self.data.longest, self.config.discount)

    def adopt(self, policy: BasePolicy, selector: BestOfN | None) -> None:
        """Go on from another policy, whose features may be quite different ones."""
        super().adopt(policy, selector)
        self._accepted = None

    def state_dict(self) -> dict[str, Any]:
        own = {} if self._accepted is None else {"dynamics": self._accepted.state_dict()}
        return super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._accepted = None
        if own := state.get("dynamics"):
            shape = (self.config.critic.chunk_ticks, self.model.spec.action_dim)
            self._accepted = FeatureDynamics(self.config.dynamics, shape, own["varying"], partial=False)
            self._accepted.load_state_dict(own)
            self._accepted.to(self.critic.mean.device).eval()


_see = operator.attrgetter("features")  # a state of `FeatureWorld` is what the policy sees


def what_actions_did(
    data: RoundData,
    features: Tensor,
    normalize: Callable[[Tensor], Tensor],
    ticks: int,
    count: NDArray[np.int64],
) -> Transitions:
    """Return what the first actions of the chunk at every frame of the cache did.

    Args:
        data: The episodes.
        features: [N, F], what the policy sees at the frames.
        normalize: Actions in raw units -> normalized.
        ticks: C, length of a chunk.
        count: [N], how many of its actions are counted, 1 to C.
    """
    cache = data.cache
    every = np.arange(cache.total_frames)
    later, inside = cache.later(every, count)
    lasted = data.tensor(inside)
    well = data.tensor(data.credit.terminal_success[cache.later(every, cache.total_frames)[0]])
    return Transitions(
        features,
        normalize(data.tensor(data.sent_chunks(every, ticks)[0])),
        data.tensor(count),
        features[data.tensor(later)],
        lasted,
        well & ~lasted,
        lasted | data.tensor(data.credit.known),
    )


def frames_of(episodes: Sequence[CachedEpisode], begin: int = 0, end: int = 0) -> NDArray[np.int64]:
    """Return the frames of episodes in the cache, int64 [N], without some at either end of each."""
    blank = np.zeros(0, np.int64)
    return np.concatenate([blank, *(np.arange(e.start + begin, e.start + e.length + end) for e in episodes)])
