"""The rollout worker of imagined worlds: job -> imagined environment, policy, gate -> the one loop -> the episode in
its store, origin = imagined.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from robot_io.env_robot import EnvRobot
from robot_io.gate import GateConfig, SafetyGate
from vla_rl.core.errors import UserError
from vla_rl.core.files import Stamp, stamp_of
from vla_rl.core.protocols import Policy
from vla_rl.core.types import Episode, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.executor import Executor
from vla_rl.execution.planner import InlinePlanner
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.policies.folders import load_policy
from vla_rl.runs.attempt import Attempts
from vla_rl.runs.imagination.world_data import open_cache
from vla_rl.training.workers import RolloutJob
from world_model.imagined_env import ImaginedEnv, ImaginedEnvConfig
from world_model.model import load_world_model
from world_model.starts import StartBank
from world_model.windows import LatentEpisodes


@dataclass(frozen=True)
class ImaginedWorldConfig:
    """Where and how to imagine.

    Attributes:
        model: folder of the world model.
        starts: episode store that imagined episodes begin in.
        cache: folder of its frame cache.
        execution: of the policy's chunks.
        gate: limits of the robot.
        env: see `ImaginedEnvConfig`.
    """

    model: Path
    starts: Path
    cache: Path
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    env: ImaginedEnvConfig = field(default_factory=ImaginedEnvConfig)


def open_imagined_env(folder: Path, starts: Path, cache: Path, config: ImaginedEnvConfig | None = None) -> ImaginedEnv:
    """The environment of a world model's folder, whose episodes begin in the store ``starts`` with its frame cache."""
    model, _ = load_world_model(folder)
    data = LatentEpisodes(open_cache(starts, cache), model.autoencoder)
    return ImaginedEnv(model, data, StartBank(data), config)


class ImaginationWorker:
    """Runs rollout jobs in imagination. Implements `vla_rl.training.workers.RolloutWorker`.

    The seed of a job decides the start: if an episode of the starts was reset with it, that one's beginning.
    """

    def __init__(self, config: ImaginedWorldConfig) -> None:
        self._config = config
        self._env = open_imagined_env(config.model, config.starts, config.cache, config.env)
        self._robot = EnvRobot(self._env)
        space = self._env.action_space
        limits = config.gate.filled(space.low, space.high, self._env.gripper_dims)  # type: ignore[attr-defined]
        gate = SafetyGate(limits, self._robot.control_hz)
        self._attempts = Attempts(self._robot, gate, Origin.IMAGINED, self._env.vector.model.spec.env_id)
        self._policy: tuple[Path, Stamp, Policy] | None = None
        self._robot.connect()

    def run(self, jobs: Sequence[RolloutJob]) -> Iterator[RolloutJob]:
        """Imagine the episodes and save them."""
        for job in jobs:
            EpisodeStore(job.store).add(self.imagine(job))
            yield job

    def imagine(self, job: RolloutJob) -> Episode:
        """Imagine the episode. One that was cut has no outcome."""
        if job.policy is None:
            raise UserError(f"job {job.episode_id} names no policy; experts cannot act in imagination")
        policy = self._load(job.policy)
        source = Executor(InlinePlanner(policy), self._config.execution)
        _, episode = self._attempts.run(source, job.episode_id, job.seeds[0], policy.version)
        return episode.with_success(None) if self._env.was_cut else episode

    def close(self) -> None:
        """Close the environment."""
        self._robot.close()

    def _load(self, folder: Path) -> Policy:
        stamp = stamp_of(folder)
        if self._policy is None or self._policy[:2] != (folder, stamp):
            self._policy = folder, stamp, load_policy(folder)
        return self._policy[2]
