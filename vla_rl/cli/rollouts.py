"""The rollout worker of simulated tasks: job -> environment, actor, supervisor, gate -> one loop -> the episode in
its store.
"""

from pathlib import Path
from typing import Any

import gymnasium
import torch

import sim
from robot_io.env_robot import EnvRobot
from robot_io.gate import GateConfig, SafetyGate
from robot_io.recorder import Recorder
from sim.correctors import Corrector
from vla_rl.cli.run_config import RunConfig, TaskConfig
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.types import Episode, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import run_episode
from vla_rl.execution.plan import ActionSource
from vla_rl.execution.planner import InlinePlanner
from vla_rl.execution.sources import Demonstrator, TakeoverSwitch
from vla_rl.policies.flow_vla import FlowVLAPolicy, load_policy
from vla_rl.training.workers import RolloutJob


def make_env(task: TaskConfig) -> Any:
    """The environment of a task.

    Raises:
        UserError: for an unknown id, or arguments that the environment does not take.
    """
    sim.register_environments()
    if task.env not in gymnasium.registry:
        known = [name for name in gymnasium.registry if name.startswith("vla_rl/")]
        raise UserError(f"there is no task {task.env!r}.{did_you_mean(task.env, known)}")
    return gymnasium.make(
        task.env,
        difficulty=task.difficulty,
        image_size=task.image_size,
        renderer=task.renderer,
        disable_env_checker=True,
    )


def make_gate(env: Any, config: GateConfig) -> SafetyGate:
    """The safety gate of a simulated robot."""
    space = env.action_space
    filled = config.filled(space.low, space.high, env.unwrapped.gripper_dims)
    return SafetyGate(filled, env.metadata["render_fps"])


class SimulatorWorker:
    """Runs rollout jobs on one environment. Implements `vla_rl.training.workers.RolloutWorker`."""

    def __init__(self, config: RunConfig) -> None:
        torch.set_num_threads(1)  # the learner and the other workers have the other cores
        self._config = config
        self._env = make_env(config.task)
        self._robot = EnvRobot(self._env)
        self._gate = make_gate(self._env, config.gate)
        self._policy: FlowVLAPolicy | None = None
        self._policy_folder: Path | None = None
        self._robot.connect()

    def run(self, job: RolloutJob) -> None:
        """Run the episode and save it; a demonstration is tried again with the next seed until one succeeds."""
        for seed in job.seeds:
            episode = self._attempt(job, seed)
            if job.policy is not None or episode.success:
                EpisodeStore(job.store).add(episode)
                return
        raise UserError(f"the expert of {self._config.task.env} failed on all seeds {job.seeds}; lower the difficulty")

    def close(self) -> None:
        """Close the environment."""
        self._robot.close()

    def _attempt(self, job: RolloutJob, seed: int) -> Episode:
        origin = Origin.DEMO if job.policy is None else Origin.SIM
        recorder = Recorder(origin, self._config.task.env, self._robot.control_hz)
        source, version = self._demonstrator(), -1
        if job.policy is not None:
            policy = self._load(job.policy)
            source, version = self._acting(policy, job.takeover), policy.version
        recorder.begin(job.episode_id, seed, version)
        self._gate.rearm()  # nobody stands beside a simulated robot, and no episode may depend on the ones before it
        run_episode(self._robot, source, self._gate, seed=seed, subscribers=[recorder])
        if recorder.episode is None:
            raise UserError(f"episode {job.episode_id} ended without a step")
        return recorder.episode

    def _demonstrator(self) -> ActionSource:
        expert = sim.make_expert(self._env, self._config.task.demonstration_noise)
        return Demonstrator(expert.act, expert.reset)

    def _acting(self, policy: FlowVLAPolicy, takeover: bool) -> ActionSource:
        executor = Executor(InlinePlanner(policy), self._config.execution)
        if not takeover:
            return executor
        return TakeoverSwitch(executor, Corrector(self._env, self._config.takeover.corrector))

    def _load(self, folder: Path) -> FlowVLAPolicy:
        if self._policy is None or folder != self._policy_folder:
            model, meta = load_policy(folder)
            self._policy, self._policy_folder = FlowVLAPolicy(model, version=meta["policy_version"]), folder
        return self._policy
