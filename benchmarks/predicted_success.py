"""Predict how often a policy would succeed, from the real episodes of a run, without a simulator.

The dynamics are fitted to the run's episodes in the features of *this* policy. The policy, with its critic and residual
if it has them, plays whole episodes in them from the first moments of real ones. An episode succeeds with the
probability that the model's head gives; only the policy's own noise is drawn.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vla_rl.algorithms.actor import autocast
from vla_rl.algorithms.imagined_edit import ImaginedEdit, ImaginedEditLearning
from vla_rl.algorithms.sampling import derived_seed, torch_generator
from vla_rl.core.metadata import critic_of
from vla_rl.data.run_folder import RunFolder
from vla_rl.policies.base import BasePolicy, draw_from_flat
from vla_rl.policies.best_of_n import BestOfN, ChunkCriticConfig, best_candidate
from vla_rl.policies.checkpoint import load_selector
from vla_rl.training.config import RunConfig
from vla_rl.training.practice import learner_of_run
from world_model.protocol import Observations


@dataclass(frozen=True)
class PredictedSuccess:
    """Predicted success of a policy.

    Attributes:
        success: Probability that an episode succeeds, the mean over imagined episodes.
        worlds: The same for each member of the dynamics. The further these are apart, the less the episodes say.
    """

    success: float
    worlds: tuple[float, ...]


def predict_success(run: Path, policy: Path, episodes: int) -> PredictedSuccess:
    """Play imagined episodes of a policy in the model of a run's episodes. The task is the policy's."""
    _, config = RunFolder.open(run, RunConfig)
    ticks = max(2, config.execution.execute_ticks)  # a chunk of one action has no slope, which critics read
    options = {"distill_steps": 0, "critic": ChunkCriticConfig(chunk_ticks=ticks)}
    if isinstance(config.learning, ImaginedEditLearning):
        options["dynamics"] = config.learning.dynamics
    learner, _, _ = learner_of_run(run, ImaginedEdit.name, options, policy)
    assert isinstance(learner, ImaginedEdit)
    critic = critic_of(policy)
    selector = None if critic is None else load_selector(critic, learner.model, config.device)
    return predict(learner, selector, episodes)


def predict(learner: ImaginedEdit, selector: BestOfN | None, episodes: int) -> PredictedSuccess:
    """Learn a model from the learner's episodes and play its policy there. Starts are those of the policy's real
    episodes (one at least), in the world of each member in turn.
    """
    config, generator = learner.config, torch_generator(learner.seed, "foretold", 0)
    with torch.random.fork_rng(devices=[]), autocast(config.actor, learner.data.device, cached=False):
        torch.manual_seed(derived_seed(learner.seed, "foretold", 0))
        world = learner.learn_world(learner.transitions(), generator)
    starts = np.array([episode.start for episode in learner.data.cache.episodes if episode.policy_version >= 0])
    turn, ticks = torch.arange(episodes), config.critic.chunk_ticks
    member = (turn % world.members).to(learner.data.device)
    state = world.encode(Observations(learner.data.cache, starts[turn.numpy() % len(starts)]), member)
    model, lasting = learner.model.eval(), torch.ones(episodes)
    with torch.no_grad():
        for tick in range(0, learner.data.longest, ticks):
            chunk = _act(model, selector, state.features, tick, generator)[:, :ticks]
            state, success, _ = world.predict(state, chunk)
            lasting = lasting * (1 - success.cpu())
    worlds = [(1 - lasting)[member.cpu() == each].mean() for each in range(min(world.members, episodes))]
    return PredictedSuccess(float((1 - lasting).mean()), tuple(map(float, worlds)))


def _act(
    model: BasePolicy, selector: BestOfN | None, features: Tensor, tick: int, generator: torch.Generator
) -> Tensor:
    """Return the chunks [B, H, A], raw, that a policy plays where it sees features [B, F]."""
    rows = model.horizon if selector is None else selector.noise_rows(model.horizon)
    noise = torch.randn(len(features), rows, model.spec.action_dim, generator=generator).to(features)
    if selector is None:
        return draw_from_flat(model, features, noise)
    ticks = torch.full_like(features[:, 0], tick)
    starts = selector.starts(noise)
    every = features.repeat_interleave(starts.shape[1], 0)
    drawn = draw_from_flat(model, every, starts.flatten(0, 1)).unflatten(0, starts.shape[:2])
    return best_candidate(*selector.judged(model, features, ticks, noise, drawn, features.new_ones(model.horizon), 0))
