"""The rollout worker of simulated tasks: job -> environment, actor, supervisor, gate -> one loop -> the episode in
its store.
"""

import functools
import itertools
import logging
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from deploy_trt.exploration import ExplorationPolicies
from deploy_trt.runtime import is_deployment, load_deployed
from deploy_trt.runtime.probe import BackendName
from vla_rl.acting.action_kinds import with_action_kinds
from vla_rl.acting.policy_folder import find_policy
from vla_rl.acting.resets import SecondTask
from vla_rl.acting.task import SimulatorSetup
from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.core.files import Stamp, stamp_of
from vla_rl.core.policy_spec import PolicySpec, shared_spec, spec_difference
from vla_rl.core.protocols import Policy, Signs, TakeoverSource
from vla_rl.core.types import OPERATOR, Observation, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.executor import Executor
from vla_rl.execution.plan import ActionSource
from vla_rl.execution.sources import TakeoverSwitch
from vla_rl.execution.strategies import ActionCorrector, find_strategy, make_planning_strategy
from vla_rl.execution.turns import Turns
from vla_rl.execution.virtual import make_planner
from vla_rl.policies.acting import ActingPolicy
from vla_rl.policies.corrector import FOLDER, ResidualCorrector
from vla_rl.policies.folders import load_policy
from vla_rl.training.config import FULL_PRECISION, RunConfig
from vla_rl.training.workers import RolloutJob

logger = logging.getLogger(__name__)
_NOISES = 2**24  # seeds of further attempts that differ from an attempt's own


class SimulatorWorker:
    """Runs rollout jobs, each on the environment that it names. Implements `vla_rl.training.workers.RolloutWorker`.

    Args:
        config: Of the run.
        calibration: Real observations, for a ``rollout_precision`` that needs them.
        backend: Of policies that are deployments; None: the fastest that runs here.
        policy: Acts in every job that names a policy; None: the one in the job's folder.
        run: Run folder, which says what resets the world (`vla_rl.acting.resets`); None: the simulator does.
    """

    def __init__(
        self,
        config: RunConfig,
        calibration: Sequence[Observation] = (),
        backend: BackendName | None = None,
        policy: Policy | None = None,
        run: Path | None = None,
    ) -> None:
        self._config, self._backend, self._policy = config, backend, policy
        self._low_precision: ExplorationPolicies | None = None
        if config.rollout_precision != FULL_PRECISION:
            self._low_precision = ExplorationPolicies(config.rollout_precision, calibration)
        self._simulators = {env_id: [self._build(env_id)] for env_id in config.task.envs}
        self._free = {env_id: list(simulators) for env_id, simulators in self._simulators.items()}
        self.specs = {env_id: simulators[0].spec() for env_id, simulators in self._simulators.items()}
        self.spec = shared_spec(list(self.specs.values()))
        robots = {env_id: simulators[0].robot for env_id, simulators in self._simulators.items()}
        self._second_task = None if run is None else SecondTask.of(run, robots)
        if policy is not None:
            self._check_object(policy)
        self._doubted: set[str] = set()
        self._heads: dict[tuple[Path, Stamp], ResidualCorrector] = {}  # of the newest policy
        self._policies: dict[bool, tuple[Path, Stamp, Policy]] = {}  # the newest of full and of low precision

    def check(self, demonstrates: bool, supervises: bool) -> None:
        """Build everything that a job may need but the policy: an expert, where it demonstrates, and a supervisor.

        Raises:
            UserError: for what cannot be built: an environment without an expert, a strategy that does not exist...
        """
        for simulator, *_ in self._simulators.values():
            if demonstrates:
                simulator.demonstrator()
            if supervises:
                simulator.supervisor(self._config.takeover)
        make_planning_strategy(self._config.execution)

    def observe(self) -> Observation:
        """Begin an episode of the task with the largest state, and return its first observation."""
        env_id = max(self.specs, key=lambda name: self.specs[name].state_dim)
        robot = self._simulators[env_id][0].robot
        robot.reset(0)
        return robot.read()

    def run(self, jobs: Sequence[RolloutJob]) -> Iterator[RolloutJob]:
        """Run the episodes and save them, yielding each job as its own is saved.

        Where a policy can plan for several observations in one forward pass, as many episodes as the config says run in
        turns. A demonstration is tried again with the next seed until one succeeds.
        """
        for (folder, collects), alike in itertools.groupby(jobs, lambda job: (job.policy, job.collects)):
            if folder is None:
                for job in alike:
                    yield self._run(job, None)
                continue
            policy = self._load(folder, collects and self._low_precision is not None)
            if not isinstance(policy, ActingPolicy):
                if collects and self._config.exploration:
                    raise UserError("neither deployments nor flow policies of lerobot can explore; set exploration=0")
                for job in alike:
                    yield self._run(job, policy)
                continue
            policy.exploration = self._config.exploration if collects else 0.0
            turns = Turns(policy.draw_all)
            attempts = (functools.partial(self._run, job, policy.asking(turns.ask, job.noise_seed)) for job in alike)
            yield from turns.run(attempts, self._config.environments_per_worker)

    def _run(self, job: RolloutJob, policy: Policy | None) -> RolloutJob:
        """Run one episode on an environment that is free, and save it."""
        free = self._free[job.task]
        if not free:
            self._simulators[job.task].append(self._build(job.task))
            free.append(self._simulators[job.task][-1])
        simulator = free.pop()
        try:
            world = self._second_task if job.collects or policy is None else None  # evaluations begin anew
            if world is not None:

                def play(task: str, name: str) -> None:
                    # Other noise: with the same one, a policy would fail again and again from the same state.
                    seeds = tuple(seed ^ zlib.crc32(name.encode()) % _NOISES for seed in job.seeds)
                    named = replace(job, task=task, episode_id=name, seeds=seeds)
                    self._attempt(named, self._simulators[task][0], policy, world)

                world.prepare(job.task, job.episode_id, play)
            self._attempt(job, simulator, policy, world)
        finally:
            free.append(simulator)
        return job

    def _attempt(
        self, job: RolloutJob, simulator: SimulatorSetup, policy: Policy | None, world: SecondTask | None = None
    ) -> None:
        operator, person = None, None
        if policy is None:
            operator = self.operator_of(job)
            source: ActionSource = simulator.demonstrator(operator)
            version, origin = -1, Origin.DEMO
        else:
            person = simulator.supervisor(self._config.takeover) if job.takeover else None
            own = getattr(policy, "version", 0)  # a person's own object need not count versions
            source, origin = self._acting(simulator, policy, person, job.policy), Origin.SIM
            version = own if job.version is None else job.version
        simulator.robot.draws_always = job.pictures or getattr(policy, "n_obs_steps", 1) > 1  # it reads the past too
        for seed in job.seeds:
            simulator.robot.world = None if world is None else world.world
            _, episode = simulator.attempts.run(source, job.episode_id, seed, version, origin=origin)
            if world is not None:
                world.note(job.task, job.episode_id, episode.success)
            if (doubt := simulator.robot.judge.doubt) and simulator.env_id not in self._doubted:
                self._doubted.add(simulator.env_id)  # once for each environment
                logger.warning("%s %s", simulator.env_id, doubt)
            if operator is not None:
                column = np.ones(len(episode), np.uint8)
                episode = replace(episode, extras={**episode.extras, OPERATOR + operator: column})
            if isinstance(person, Signs):
                episode = person.signed(episode)
            if policy is not None or episode.success:
                EpisodeStore(job.store).add(episode)
                return
        raise UserError(f"the expert of {job.task} failed on all seeds {job.seeds}; lower the difficulty")

    def operator_of(self, job: RolloutJob) -> str | None:
        """Who demonstrates: people take turns, each of them in every task; at a second attempt it is the same person.
        None: the expert himself.
        """
        people = self._config.task.operators
        return people[job.seeds[0] % len(people)] if people else None

    def close(self) -> None:
        """Close the environments."""
        if self._low_precision is not None:
            self._low_precision.close()
        for simulator in itertools.chain(*self._simulators.values()):
            simulator.robot.close()

    def _build(self, env_id: str) -> SimulatorSetup:
        return SimulatorSetup.build(env_id, self._config.task, self._config.gate)

    def _acting(
        self, simulator: SimulatorSetup, policy: Policy, person: TakeoverSource | None, folder: Path | None
    ) -> ActionSource:
        config = self._config
        planner = make_planner(policy, simulator.robot.clock, simulator.robot.control_hz, config.latency)
        execution = with_action_kinds(config.execution, simulator.spec(), simulator.gate.config.discrete_dims)
        steps = getattr(policy, "n_obs_steps", 1)
        executor = Executor(planner, execution, self._corrector(folder), n_obs_steps=steps)
        return executor if person is None else TakeoverSwitch(executor, person)

    def _corrector(self, folder: Path | None) -> ActionCorrector | None:
        takes = "corrector" in find_strategy(self._config.execution.strategy).requires
        if folder is None or self._policy is not None or not takes:
            return None
        key = folder, stamp_of(folder / FOLDER)
        if key not in self._heads:
            self._heads = {key: ResidualCorrector.load(folder / FOLDER)}
        return self._heads[key]

    def _check_object(self, policy: Policy) -> None:
        """Refuse a policy that declares another interface than the tasks, or whose chunks are over when they arrive."""
        spec, horizon = getattr(policy, "spec", None), getattr(policy, "horizon", 0)
        if isinstance(spec, PolicySpec) and (differs := spec_difference(spec, self.spec, but=("env_id",))):
            raise UserError(
                f"the policy has the {differs.name} {differs.found}, the task has {differs.expected}; choose a policy "
                "of this task, or correct its spec"
            )
        if horizon:
            self._config.execution.check_delay(horizon, self._config.latency.usual_ticks(self.spec.control_hz))

    def _load(self, folder: Path, in_low_precision: bool) -> Policy:
        if self._policy is not None:
            return self._policy
        stamp = stamp_of(folder)
        *known, policy = self._policies.get(in_low_precision, (None, None, None))
        if policy is None or known != [folder, stamp]:
            found = find_policy(folder)
            delay_ticks = self._config.latency.usual_ticks(self.spec.control_hz)
            self._config.execution.check_fit(found.horizon, found.prefix_ticks, delay_ticks)
            if differs := spec_difference(found.spec, self.spec, but=("env_id",)):
                raise CheckpointError(
                    f"{folder} has the {differs.name} {differs.found}, the task has {differs.expected}; name the task "
                    "that the policy was trained on"
                )
            if in_low_precision and self._low_precision is not None:
                policy = self._low_precision.load(folder)
            elif is_deployment(folder):
                policy = load_deployed(folder, require=self._backend)
            else:
                policy = load_policy(folder, self._config.rollout_device, expected=self.spec)
            self._policies[in_low_precision] = (folder, stamp, policy)
        return policy
