"""The rollout worker of simulated tasks: job -> environment, actor, supervisor, gate -> one loop -> the episode in
its store.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
from tqdm import tqdm

import sim
from deploy_trt.runtime import is_deployment, load_deployed
from deploy_trt.runtime.probe import BackendName
from robot_io.env_robot import EnvRobot
from robot_io.gate import GateConfig, SafetyGate
from sim.correctors import Corrector
from vla_rl.core.errors import ConfigError, UserError, did_you_mean
from vla_rl.core.protocols import Policy
from vla_rl.core.types import Observation, Origin, PolicySpec
from vla_rl.data.episode_file import EpisodeHeader
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.executor import Executor
from vla_rl.execution.plan import ActionSource
from vla_rl.execution.sources import Demonstrator, TakeoverSwitch
from vla_rl.execution.strategies import make_strategy
from vla_rl.execution.virtual import make_planner
from vla_rl.policies.folders import load_policy
from vla_rl.runs.action_kinds import delta_dims, with_action_kinds
from vla_rl.runs.attempt import Attempts
from vla_rl.runs.config import FULL_PRECISION, RunConfig, TaskConfig
from vla_rl.training.plan import evaluation_seed
from vla_rl.training.workers import RolloutJob, Rollouts

if TYPE_CHECKING:
    from deploy_trt.exploration import ExplorationPolicies


def make_env(task: TaskConfig, env_id: str | None = None) -> Any:
    """The environment of a task, or another one with the same settings.

    Raises:
        UserError: for an unknown id, or arguments that the environment does not take.
    """
    sim.register_environments()
    env_id = env_id or task.env
    if env_id not in gymnasium.registry:
        known = [name for name in gymnasium.registry if name.startswith("vla_rl/")]
        raise UserError(f"there is no task {env_id!r}.{did_you_mean(env_id, known)}")
    settings: dict[str, Any] = {"difficulty": task.difficulty, "image_size": task.image_size, "renderer": task.renderer}
    try:
        return gymnasium.make(env_id, **settings, disable_env_checker=True)
    except TypeError as error:
        raise UserError(f"{env_id} cannot be made with {settings}: it is no task of this kind") from error


def make_gate(env: Any, config: GateConfig) -> SafetyGate:
    """The safety gate of a simulated robot."""
    space = env.action_space
    filled = config.filled(space.low, space.high, env.unwrapped.gripper_dims, delta_dims(env.unwrapped.action_kind))
    return SafetyGate(filled, env.metadata["render_fps"])


@dataclass(frozen=True)
class Station:
    """One environment with its robot and gate, and the attempts on it."""

    env_id: str
    env: Any
    robot: EnvRobot
    gate: SafetyGate
    attempts: Attempts

    @classmethod
    def build(cls, env_id: str, config: RunConfig) -> "Station":
        """Build and connect."""
        env = make_env(config.task, env_id)
        robot = EnvRobot(env)
        robot.connect()
        gate = make_gate(env, config.gate)
        return cls(env_id, env, robot, gate, Attempts(robot, gate, Origin.SIM, env_id))

    def spec(self) -> PolicySpec:
        """The interface of a policy for this station alone."""
        spaces = self.env.observation_space
        cameras = {name: space.shape[:2] for name, space in spaces["pixels"].items()}
        return PolicySpec(
            env_id=self.env_id,
            cameras=tuple(cameras),
            image_size=next(iter(cameras.values())),
            state_dim=spaces["agent_pos"].shape[0],
            action_dim=self.env.action_space.shape[0],
            control_hz=self.robot.control_hz,
            delta_dims=delta_dims(self.robot.action_kind),
        )


class SimulatorWorker:
    """Runs rollout jobs, each on the environment that it names. Implements `vla_rl.training.workers.RolloutWorker`.

    Args:
        config: of the run.
        calibration: real observations, for a ``rollout_precision`` that needs them.
        backend: of policies that are deployments; None: the fastest that runs here.
    """

    def __init__(
        self, config: RunConfig, calibration: Sequence[Observation] = (), backend: BackendName | None = None
    ) -> None:
        self._config, self._backend = config, backend
        self._low_precision = _low_precision(config.rollout_precision, calibration)
        self._stations = {env_id: Station.build(env_id, config) for env_id in config.task.envs}
        self.spec = shared_spec([station.spec() for station in self._stations.values()])
        self._policies: dict[bool, tuple[Path, Policy]] = {}  # the newest of full and of low precision

    def check(self) -> None:
        """Build everything that a job may need but the policy.

        Raises:
            UserError: for what cannot be built: an environment without an expert, a strategy that does not exist...
        """
        for station in self._stations.values():
            self._demonstrator(station)
            Corrector(station.env, self._config.takeover.corrector)
        make_strategy(self._config.execution)

    def run(self, job: RolloutJob) -> None:
        """Run the episode and save it; a demonstration is tried again with the next seed until one succeeds."""
        station = self._stations[job.task]
        source, version, origin = self._demonstrator(station), -1, Origin.DEMO
        if job.policy is not None:
            policy = self._load(job.policy, job.collects and self._low_precision is not None)
            source, version, origin = self._acting(station, policy, job.takeover), policy.version, Origin.SIM
        for seed in job.seeds:
            _, episode = station.attempts.run(source, job.episode_id, seed, version, origin=origin)
            if job.policy is not None or episode.success:
                EpisodeStore(job.store).add(episode)
                return
        raise UserError(f"the expert of {job.task} failed on all seeds {job.seeds}; lower the difficulty")

    def close(self) -> None:
        """Close the environments."""
        if self._low_precision is not None:
            self._low_precision.close()
        for station in self._stations.values():
            station.robot.close()

    def _demonstrator(self, station: Station) -> ActionSource:
        expert = sim.make_expert(station.env, self._config.task.demonstration_noise)
        return Demonstrator(expert.act, expert.reset)

    def _acting(self, station: Station, policy: Policy, takeover: bool) -> ActionSource:
        config = self._config
        planner = make_planner(policy, station.robot.clock, station.robot.control_hz, config.latency)
        execution = with_action_kinds(config.execution, station.spec(), station.gate.config.discrete_dims)
        executor = Executor(planner, execution)
        if not takeover:
            return executor
        return TakeoverSwitch(executor, Corrector(station.env, config.takeover.corrector))

    def _load(self, folder: Path, in_low_precision: bool) -> Policy:
        known, policy = self._policies.get(in_low_precision, (None, None))
        if policy is None or folder != known:
            if in_low_precision and self._low_precision is not None:
                policy = self._low_precision.load(folder)
            elif is_deployment(folder):
                policy = load_deployed(folder, require=self._backend)
            else:
                policy = load_policy(folder, self._config.rollout_device, expected=self.spec)
            self._policies[in_low_precision] = (folder, policy)
        return policy


def _low_precision(precision: str, calibration: Sequence[Observation]) -> "ExplorationPolicies | None":
    if precision == FULL_PRECISION:
        return None
    from deploy_trt.exploration import ExplorationPolicies

    return ExplorationPolicies(precision, calibration)


def evaluation_jobs(
    tasks: Sequence[str], policy: Path, store: Path, episodes: int, prefix: str = "", collects: bool = False
) -> list[RolloutJob]:
    """The first episodes of the held-out evaluation seeds; several tasks take turns."""
    return [
        RolloutJob(
            f"{prefix}{index:06d}",
            store,
            tasks[index % len(tasks)],
            (evaluation_seed(index),),
            policy,
            collects=collects,
        )
        for index in range(episodes)
    ]


def run_missing(pool: Rollouts, jobs: Sequence[RolloutJob], label: str = "") -> list[EpisodeHeader]:
    """Run the jobs whose episodes are not in their store yet; returns the headers of all, in the order of the jobs."""
    stores = {job.store: EpisodeStore(job.store) for job in jobs}
    missing = [job for job in jobs if job.episode_id not in stores[job.store]]
    for _ in tqdm(pool.run(missing), total=len(missing), desc=label, unit="episode", leave=False):
        pass
    return [stores[job.store].read_header(job.episode_id) for job in jobs]


def shared_spec(specs: Sequence[PolicySpec]) -> PolicySpec:
    """The interface of one policy for several stations: the largest vectors; smaller ones are filled up.

    Raises:
        ConfigError: if their cameras, rates or kinds of action differ, or two cannot be told apart by their state.
    """
    first = specs[0]
    largest = max(specs, key=lambda spec: spec.action_dim)
    for spec in specs[1:]:
        for name in ("cameras", "image_size", "control_hz"):
            if getattr(spec, name) != getattr(first, name):
                ours, theirs = getattr(first, name), getattr(spec, name)
                raise ConfigError(
                    f"{first.env_id} and {spec.env_id} cannot share a policy: their {name} are {ours} and {theirs}"
                )
        if spec.delta_dims != tuple(dim for dim in largest.delta_dims if dim < spec.action_dim):
            raise ConfigError(f"{largest.env_id} and {spec.env_id} cannot share a policy: their delta actions differ")
    sizes = {spec.state_dim: spec.action_dim for spec in specs}
    for spec in specs:
        if sizes[spec.state_dim] != spec.action_dim:
            raise ConfigError(f"{spec.env_id}: another task has the same state size and another action size")
    return PolicySpec(
        env_id=" ".join(spec.env_id for spec in specs),
        cameras=first.cameras,
        image_size=first.image_size,
        state_dim=max(sizes),
        action_dim=max(sizes.values()),
        control_hz=first.control_hz,
        delta_dims=largest.delta_dims,
        sizes=tuple(sorted(sizes.items())) if len(sizes) > 1 else (),
    )
