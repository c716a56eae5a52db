"""A policy acting on a robot, attempt after attempt: what ``vla-rl rollout`` puts together."""

import functools
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from robot_io.display import LiveDisplay
from robot_io.faults import FaultResult
from robot_io.limits import RobotLimits
from vla_rl.acting.action_kinds import first_named, recorded_as_steps, with_action_kinds
from vla_rl.acting.attempt import Attempts, check_finite, free_names, share_not_finite
from vla_rl.acting.capability import added_steps, best_strategy, check_strategy, load_corrector
from vla_rl.acting.injection import Injection
from vla_rl.acting.policy_folder import AnyPolicy, PolicyFolder, find_policy, on_disk, on_robot
from vla_rl.acting.resets import ask_person
from vla_rl.acting.robots import RobotRequest, RobotSetup, set_up_robot
from vla_rl.acting.stopping import StopsAtSuccess
from vla_rl.core.clock import MonotonicClock, VirtualClock
from vla_rl.core.config import fill_parts, load_config, override_items, part
from vla_rl.core.config_files import read_yaml
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.protocols import Subscriber
from vla_rl.core.robot_matching import RobotMatch, declared, match_robot, renamed
from vla_rl.core.types import Episode, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.executor import Executor
from vla_rl.execution.inference_process import MessageLayout, ProcessPlanner
from vla_rl.execution.loop import EpisodeSummary, EpisodicRobot
from vla_rl.execution.matched import matched_corrector, matched_loader
from vla_rl.execution.plan import ActionSource, Planner
from vla_rl.execution.realtime import RealtimeConfig
from vla_rl.execution.realtime import realtime as prioritized
from vla_rl.execution.sources import TakeoverSwitch
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.execution.virtual import FaultyLatencyConfig, make_planner
from vla_rl.outcomes.deployed import DeployedDetector
from vla_rl.report.live_view import LiveView

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RolloutConfig:
    """Everything that decides a rollout beside policy, robot and seeds.

    Attributes:
        execution: the strategy and its numbers; of a run, as it practiced.
        latency: of simulated inference, without ``--realtime``.
        gate: limits; those that are empty are the robot's own.
        realtime: what to ask of the system with ``--realtime``.
        task: the task of a simulated robot; of a run, its own.
        takeover: who supervises a simulated robot; of a run, its own.
        robot: the robot's own options.
        rename: The policy's name of a dimension -> the robot's, where the two mean the same.

    ``discrete_dims`` and ``delta_dims`` of ``execution`` count in the policy's order, those of ``gate`` in the robot's.
    """

    execution: ExecutionConfig = part("strategies", inside="strategy", default="naive")
    latency: FaultyLatencyConfig = field(default_factory=FaultyLatencyConfig)
    gate: RobotLimits = field(default_factory=RobotLimits)
    realtime: RealtimeConfig = field(default_factory=RealtimeConfig)
    task: dict[str, Any] = field(default_factory=dict)
    takeover: dict[str, Any] = field(default_factory=dict)
    robot: dict[str, Any] = field(default_factory=dict)
    rename: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_parts(self)


@dataclass(frozen=True)
class RolloutOrder:
    """What is asked for.

    Attributes:
        policy: the policy that acts.
        robot: by name, see `vla_rl.acting.robots`.
        episodes: attempts, at least 1.
        seed: of the first attempt; the next one has the next seed.
        realtime: absolute deadlines and inference in a process of its own, instead of a virtual clock.
        takeover: the robot's teleoperator or supervisor may take over.
        unattended: a real robot does not wait for a person before each attempt.
        live_view: target of a view in rerun; None: there is none.
        store: keeps the episodes; None: they are dropped.
        inject: names of faults, or ``all``, that come at random moments, see `vla_rl.acting.injection`; empty: none.
        detector: Folder of an exported success detector that ends attempts, see `vla_rl.acting.stopping`; None: none.
    """

    policy: PolicyFolder
    robot: str
    episodes: int = 1
    seed: int = 0
    realtime: bool = False
    takeover: bool = False
    unattended: bool = False
    live_view: str | None = None
    store: EpisodeStore | None = None
    inject: str = ""
    detector: Path | None = None


class RolloutResult(NamedTuple):
    """What came of it: the outcome of each attempt (None: not judged), and how each injected fault was met."""

    outcomes: list[bool | None]
    findings: list[FaultResult]
    detector_stops: list[bool | None]


def rollout(
    policy: AnyPolicy,
    robot: str = "mock",
    episodes: int = 1,
    *,
    realtime: bool = False,
    strategy: str | None = None,
    limits: str | Path | None = None,
    takeover: bool = False,
    unattended: bool = False,
    seed: int = 0,
    out: str | Path | None = None,
    detector: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[bool | None]:
    """Run a policy on a robot, behind the safety gate.

    Args:
        policy: A trained policy, its folder, a run folder or a deployment; ``openpi://HOST:PORT`` for the policy of a
            server; ``module:Name`` for a class.
        robot: Name of an entry point of ``vla_rl.robots`` (``mock``, ``sim``, ``lerobot``, ``ros2``) or
            ``module:function``.
        episodes: Number of attempts.
        realtime: Whether the control loop keeps absolute deadlines, with inference in its own process. Otherwise, the
            loop runs on a virtual clock.
        strategy: Name of an execution strategy. Default: with ``realtime`` the best one that the policy supports, else
            the strategy of its run.
        limits: YAML file with the limits of the gate.
        takeover: Whether the robot's teleoperator or supervisor may take over.
        unattended: Whether a real robot starts an attempt without waiting for a person.
        seed: Seed of the first attempt. Each further attempt has the next seed.
        out: Episode store to add to. Default: the episodes are not kept.
        detector: Folder of an exported success detector. An attempt ends when it has found success. Default: none.
        settings: Changes to `vla_rl.acting.rollout.RolloutConfig`, such as ``{"execution.execute_ticks": 4}``.

    Returns:
        Success of each attempt, None for an attempt without an outcome.

    Raises:
        UserError: If policy, robot and settings do not fit each other, or a real robot was stopped and needs a person.
            If the policy planned no finite action.

    Example:
        >>> rollout("runs/dot", "mock", settings={"robot.duration_s": 0.5})
        [None]
    """
    with on_disk(policy) as folder:
        source = policy if isinstance(policy, str | Path) else folder
        if source is None:
            raise UserError(f"a {type(policy).__name__} has no folder; give a folder, or name its class (module:Name)")
        found = find_policy(source)
        config = resolve_config(
            found, Path(limits) if limits else None, strategy, override_items(settings or {}), realtime=realtime
        )
        order = RolloutOrder(
            policy=found,
            robot=robot,
            episodes=episodes,
            seed=seed,
            realtime=realtime,
            takeover=takeover,
            unattended=unattended,
            store=EpisodeStore(Path(out)) if out else None,
            detector=Path(detector) if detector else None,
        )
        return roll_out(order, config).outcomes


def roll_out(order: RolloutOrder, config: RolloutConfig) -> RolloutResult:
    """Let the policy act; with faults, as many attempts as these need.

    Raises:
        UserError: if policy, robot and config do not fit together, or a real robot was stopped and has to be looked at.
    """
    if order.episodes < 1:
        raise UserError(f"--episodes is {order.episodes}; it must be at least 1")
    config.execution.check_fit(order.policy.horizon, order.policy.prefix_ticks)
    spec, clock = renamed(order.policy.spec, config.rename), MonotonicClock() if order.realtime else VirtualClock()
    grippers = first_named(config.execution.discrete_dims, order.policy.discrete_dims)
    request = RobotRequest(spec, clock, config.gate, grippers, config.task, config.takeover, config.robot)
    return _roll_out_on(set_up_robot(order.robot, request), spec, order, config)


def _roll_out_on(setup: RobotSetup, spec: PolicySpec, order: RolloutOrder, config: RolloutConfig) -> RolloutResult:
    found = match_robot(spec, len(setup.gate.config.low), declared(setup.robot))
    logger.info("%s: %s", setup.env_id, found.words())
    policy, execution = on_robot(order.policy, config.execution, found)
    check_strategy(execution, policy)
    execution = with_action_kinds(execution, policy.spec, policy.discrete_dims, setup.gate.config.discrete_dims)
    added = added_steps(policy.spec, setup.gate.config.delta_dims)
    config = replace(config, execution=replace(execution, delta_dims=setup.gate.config.delta_dims))
    wait_for_person = None if order.unattended else setup.wait_for_person
    injection = None
    if order.inject:
        setup = replace(setup, wait_for_person=wait_for_person)
        injection = Injection(setup, order.inject, policy.horizon, config.execution.hold_ticks, order.seed)
        setup = injection.setup
    watched = None
    if order.detector is not None:  # outside of the faults, which it sees
        watched = StopsAtSuccess(setup.robot, DeployedDetector(order.detector, config.rename))
        setup = replace(setup, robot=watched)
    if wait_for_person is not None and not sys.stdin.isatty():
        raise UserError(
            f"before each attempt of {setup.env_id!r} a person presses Enter, and the standard input is no terminal. "
            "Start it from one, or add --unattended if no person can be near the robot"
        )
    names = free_names(order.store, "rollout")
    outcomes, detector_stops = list[bool | None](), list[bool | None]()
    shows = order.realtime and sys.stderr.isatty()
    with (
        _connected(setup.robot),
        _planner(order.realtime, policy, config, setup, found) as planner,
        LiveDisplay(setup.env_id, setup.robot.control_hz) if shows else nullcontext() as display,
        LiveView(order.live_view, setup.env_id) if order.live_view else nullcontext() as live_view,
    ):
        planner = planner if injection is None else injection.planner(planner)
        corrector = matched_corrector(load_corrector(config.execution, policy), found)
        executor = Executor(planner, config.execution, corrector, added, policy.n_obs_steps)
        source = _supervised(executor, setup) if order.takeover else executor
        source = source if injection is None else injection.source(source)
        subscribers = [*setup.subscribers, *(view for view in (display, live_view) if view is not None)]
        attempts = WatchedAttempts(setup, subscribers, added, rearmed=injection is not None)
        seeds = range(order.seed, order.seed + order.episodes)
        # Last: the threads of a display or a teleoperator would inherit it.
        with prioritized(config.realtime) if order.realtime else nullcontext():
            for seed in seeds if injection is None else injection.seeds(order.seed):
                episode_id = next(names)
                attempts.check_may_go_on()
                if wait_for_person is not None:
                    ask_person(episode_id, wait_for_person)
                run = functools.partial(attempts.run, source, episode_id, seed, policy.version, order.store)
                summary = run() if injection is None else injection.attempt(run)
                if summary is not None:
                    outcomes.append(summary.success)
                    if watched is not None and watched.found:
                        detector_stops.append(summary.success)
                    logger.info(_sentence(episode_id, summary))
    if injection is None:
        check_finite(attempts.not_finite)
        if wrong := sum(share > 0 for share in attempts.not_finite):
            logger.warning("actions of the policy were not finite in %d of %d attempts", wrong, len(outcomes))
    return RolloutResult(outcomes, [] if injection is None else injection.findings, detector_stops)


class WatchedAttempts:
    """Attempts on one connected robot that do not go on after a stop of a real robot.

    ``added`` are dimensions of the policy's steps that were added up to targets; they are stored as steps again. With
    ``rearmed`` stops are wanted, and the caller arms the gate again when a person has looked.

    Attributes:
        not_finite: Share of each attempt's planned actions that are not finite.
    """

    def __init__(
        self,
        setup: RobotSetup,
        subscribers: Sequence[Subscriber] = (),
        added: Sequence[int] = (),
        rearmed: bool = False,
    ) -> None:
        self._added, self._rearmed = added, rearmed
        self._real, self._gate = setup.origin is Origin.REAL, setup.gate
        self._attempts = Attempts(
            setup.robot, setup.gate, setup.origin, setup.env_id, subscribers, rearms=not self._real
        )
        self._was_stopped = False
        self.not_finite: list[float] = []

    def check_may_go_on(self) -> None:
        """Refuse the next attempt if the one before was stopped and no person has looked at the robot since.

        Raises:
            UserError: on a real robot after a stop, by the gate or because the policy fell silent.
        """
        if self._real and not self._rearmed and (self._was_stopped or self._gate.latched):
            why = "the gate's stop is latched" if self._gate.latched else "the policy gave no plan in time"
            raise UserError(f"the robot was stopped: {why}; look at the robot and at the log, then start again")

    def run(
        self, source: ActionSource, episode_id: str, seed: int, policy_version: int, store: EpisodeStore | None
    ) -> EpisodeSummary:
        """Run one attempt and save it, also when it breaks off; errors as of `check_may_go_on`."""
        self.check_may_go_on()
        keep = None if store is None else functools.partial(self._keep, store)
        summary, episode = self._attempts.run(source, episode_id, seed, policy_version, keep)
        self.not_finite.append(share_not_finite(episode.extras["chunk_id"], episode.extras["gate_reasons"]))
        self._was_stopped = summary.stopped
        return summary

    def _keep(self, store: EpisodeStore, episode: Episode) -> None:
        store.add(recorded_as_steps(episode, self._added, self._gate.rest))


def resolve_config(
    policy: PolicyFolder,
    limits: Path | None = None,
    strategy: str | None = None,
    overrides: Sequence[str] = (),
    realtime: bool = False,
) -> RolloutConfig:
    """Defaults, then the sections of the policy's run, then the file of limits, then strategy and overrides.

    In real time nothing waits for a policy: unless a strategy is named, it is the best asynchronous one that
    the policy supports. ``sync`` of a run is its simulator's setting; another strategy is what the policy practiced.
    """
    base = {
        section: policy.run[section] for section in ("execution", "gate", "task", "takeover") if section in policy.run
    }
    if "execution" not in base:
        base["execution"] = {"execute_ticks": min(ExecutionConfig.execute_ticks, policy.horizon)}
    if limits:
        base["gate"] = read_yaml(limits)
    chosen: Sequence[str] = [f"execution.strategy={strategy}"] if strategy else []
    explicit = bool(chosen) or any(item.lstrip("-").startswith("execution.strategy=") for item in overrides)
    if realtime and not explicit and base.get("execution", {}).get("strategy", "sync") == "sync":
        chosen = best_strategy(policy)
    config = load_config(RolloutConfig, overrides=[*chosen, *overrides], base=base)
    of_run = not limits and any(isinstance(limit, list) and limit for limit in base.get("gate", {}).values())
    if not of_run or config.gate.names:
        return config
    # The limits of a run are in its policy's order.
    action = renamed(policy.spec, config.rename).dimensions_of(policy.spec.state_dim)[1]
    return replace(config, gate=replace(config.gate, names=action.names, units=action.units))


@contextmanager
def _connected(robot: EpisodicRobot) -> Iterator[None]:
    try:
        robot.connect()
        yield
    finally:
        robot.close()


@contextmanager
def _planner(
    realtime: bool, policy: PolicyFolder, config: RolloutConfig, setup: RobotSetup, found: RobotMatch
) -> Iterator[Planner]:
    """Return where the policy computes: in a process of its own, or on the virtual clock."""
    robot, spec = setup.robot, policy.spec
    load = matched_loader(policy.load, found)
    if not realtime:
        yield make_planner(load(), robot.clock, robot.control_hz, config.latency)
        return
    cameras = tuple((camera, *spec.image_size) for camera in spec.cameras)
    layout = MessageLayout(cameras, spec.state_dim, spec.action_dim, policy.horizon, policy.n_obs_steps)
    with ProcessPlanner(load, layout, config.execution) as planner:
        yield planner


def _supervised(executor: Executor, setup: RobotSetup) -> ActionSource:
    if setup.make_takeover is None:
        raise UserError(f"robot {setup.env_id!r} has no takeover source; leave --takeover out")
    takeover_source = setup.make_takeover()
    shadow = getattr(takeover_source, "wants_proposals", False)
    return TakeoverSwitch(executor, takeover_source, infer_during_takeover=shadow)


def _sentence(episode_id: str, summary: EpisodeSummary) -> str:
    outcome = {True: "success", False: "failure", None: "no outcome"}[summary.success]
    ending = ", stopped" if summary.stopped else ""
    return (
        f"{episode_id}: {outcome}{ending} after {summary.ticks} ticks ({summary.duration_s:.1f} s); "
        f"held {summary.held_ticks}, human {summary.human_ticks}, missed {summary.missed_ticks}"
    )
