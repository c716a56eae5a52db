"""Let a policy act on a robot: the one loop, the gate, and the recorder to an episode store.

Example: vla-rl rollout runs/demo --robot mock --realtime --episodes 3 --out runs/mock/episodes
"""

import argparse
import functools
import itertools
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from robot_io.display import LiveDisplay
from robot_io.gate import GateConfig
from robot_io.recorder import Recorder
from vla_rl.cli.policy_folder import PolicyFolder, find_policy, load_acting_policy
from vla_rl.cli.robots import ROBOTS, RobotRequest, RobotSetup, set_up_robot
from vla_rl.core.clock import MonotonicClock, VirtualClock
from vla_rl.core.config import load_config, read_yaml
from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Subscriber
from vla_rl.core.types import Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.executor import Executor
from vla_rl.execution.inference_process import MessageLayout, ProcessPlanner
from vla_rl.execution.loop import EpisodeSummary, run_episode
from vla_rl.execution.plan import ActionSource, Planner
from vla_rl.execution.realtime import RealtimeConfig
from vla_rl.execution.realtime import realtime as prioritised
from vla_rl.execution.sources import TakeoverSwitch
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.execution.virtual import LatencyConfig, make_planner
from vla_rl.policies.corrector import FOLDER, ResidualCorrector
from vla_rl.report.live_view import LiveView

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RolloutConfig:
    """Everything that decides a rollout beside policy, robot and seeds.

    Attributes:
        execution: the strategy and its numbers; of a run, as it practised.
        latency: of simulated inference, without ``--realtime``.
        gate: limits; those that are empty are the robot's own.
        realtime: what to ask of the system with ``--realtime``.
        task: the task of a simulated robot; of a run, its own.
        robot: the robot's own options.
    """

    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    latency: LatencyConfig = field(default_factory=LatencyConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    realtime: RealtimeConfig = field(default_factory=RealtimeConfig)
    task: dict[str, Any] = field(default_factory=dict)
    robot: dict[str, Any] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policy", type=Path, metavar="RUN_OR_POLICY", help="a run folder, or a folder of one policy")
    parser.add_argument("--version", type=int, help="policy version of the run (default: the newest)")
    names = "; ".join(f"{name}: {purpose}" for name, purpose in ROBOTS.items())
    parser.add_argument("--robot", required=True, metavar="NAME", help=names)
    parser.add_argument("--realtime", action="store_true", help="absolute deadlines, inference in its own process")
    parser.add_argument("--episodes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the first episode; the next one has the next seed")
    parser.add_argument("--strategy", help="execution strategy, short for execution.strategy=NAME")
    parser.add_argument("--limits", type=Path, metavar="YAML", help="limits of the gate, such as configs/robots/*.yaml")
    parser.add_argument("--takeover", action="store_true", help="let the robot's teleoperator or supervisor take over")
    parser.add_argument(
        "--unattended", action="store_true", help="a real robot does not wait for Enter before attempts"
    )
    parser.add_argument("--rerun", metavar="TARGET", help="live view in rerun: FILE.rrd, spawn, or a viewer's address")
    parser.add_argument("--out", type=Path, metavar="STORE", help="episode store to add to (default: keep nothing)")
    parser.add_argument("--set", nargs="+", default=[], metavar="section.key=value", help="see RolloutConfig")


def run(arguments: argparse.Namespace) -> int:
    if arguments.episodes < 1:
        raise UserError(f"--episodes is {arguments.episodes}; it must be at least 1")
    policy = find_policy(arguments.policy, arguments.version)
    config = _resolve_config(arguments, policy)
    clock = MonotonicClock() if arguments.realtime else VirtualClock()
    grippers = config.execution.discrete_dims
    request = RobotRequest(policy.spec, clock, config.gate, grippers, config.task, config.robot)
    setup = set_up_robot(arguments.robot, request)
    execution = replace(config.execution, discrete_dims=grippers or setup.gate.config.discrete_dims)
    config = replace(config, execution=execution)
    wait_for_person = None if arguments.unattended else setup.wait_for_person
    if wait_for_person is not None and not sys.stdin.isatty():
        raise UserError(
            f"before each attempt of {setup.env_id!r} a person presses Enter, and the standard input is no terminal; "
            "start it from one, or add --unattended if nobody can be near the robot"
        )
    store = EpisodeStore(arguments.out) if arguments.out else None
    names = _free_names(store)
    outcomes: list[bool | None] = []
    try:
        setup.robot.connect()
        with (
            _planner(arguments.realtime, policy, config, setup) as planner,
            _display(arguments.realtime, setup) as displays,
            LiveView(arguments.rerun, setup.env_id) if arguments.rerun else nullcontext() as live_view,
        ):
            source = _source(planner, config.execution, policy, setup, arguments.takeover)
            shown = [*displays, *([live_view] if live_view else [])]
            rollouts = Rollouts(setup, source, policy.version, shown)
            # Last: the threads of a display or a teleoperator would inherit it.
            with prioritised(config.realtime) if arguments.realtime else nullcontext():
                for seed in range(arguments.seed, arguments.seed + arguments.episodes):
                    episode_id = next(names)
                    rollouts.check_may_go_on()
                    if wait_for_person is not None:
                        print(f"{episode_id}: Enter begins. Is the scene ready, nobody near?", file=sys.stderr)
                        wait_for_person()
                    summary = rollouts.attempt(episode_id, seed, store)
                    outcomes.append(summary.success)
                    logger.info(_sentence(episode_id, summary))
    finally:
        setup.robot.close()
    judged = [outcome for outcome in outcomes if outcome is not None]
    print(f"success {sum(judged)}/{len(judged)}" if judged else f"{len(outcomes)} attempts, none of them judged")
    return 0


class Rollouts:
    """Attempts on one robot, one after the other, recorded.

    Args:
        setup: the robot, connected.
        source: who acts.
        policy_version: of the weights that act.
        subscribers: told of every step, after the recorder.
    """

    def __init__(
        self, setup: RobotSetup, source: ActionSource, policy_version: int, subscribers: Sequence[Subscriber] = ()
    ) -> None:
        self._setup, self._source, self._policy_version = setup, source, policy_version
        self._recorder = Recorder(setup.origin, setup.env_id, setup.robot.control_hz)
        self._subscribers = [self._recorder, *subscribers]
        self._was_stopped = False

    def check_may_go_on(self) -> None:
        """Refuse the next attempt if the one before was stopped and nobody has looked at the robot since.

        Raises:
            UserError: on a real robot after a stop, by the gate or because the policy fell silent.
        """
        if self._setup.origin is Origin.REAL and (self._was_stopped or self._setup.gate.latched):
            why = "the gate's stop is latched" if self._setup.gate.latched else "the policy gave no plan in time"
            raise UserError(f"the robot was stopped: {why}; look at the robot and at the log, then start again")

    def attempt(self, episode_id: str, seed: int, store: EpisodeStore | None) -> EpisodeSummary:
        """Run one attempt and save it, also when it breaks off.

        Raises:
            UserError: see `check_may_go_on`.
        """
        self.check_may_go_on()
        gate = self._setup.gate
        if gate.latched:
            gate.rearm()  # nobody stands beside a simulated robot
        self._recorder.begin(episode_id, seed, self._policy_version)
        try:
            summary = run_episode(self._setup.robot, self._source, gate, seed=seed, subscribers=self._subscribers)
            self._was_stopped = summary.stopped
            return summary
        finally:
            episode = self._recorder.episode or self._recorder.finish()
            if store is not None and episode is not None:
                store.add(episode)


def _resolve_config(arguments: argparse.Namespace, policy: PolicyFolder) -> RolloutConfig:
    """Defaults, then the run's sections, then ``--limits``, then ``--strategy`` and the overrides."""
    base = {section: policy.run[section] for section in ("execution", "gate", "task") if section in policy.run}
    if arguments.limits:
        base["gate"] = read_yaml(arguments.limits)
    overrides = [f"execution.strategy={arguments.strategy}"] if arguments.strategy else []
    config = load_config(RolloutConfig, overrides=[*overrides, *arguments.set], base=base)
    discrete_dims = policy.discrete_dims or config.gate.discrete_dims
    kinds = {"discrete_dims": discrete_dims, "delta_dims": policy.spec.delta_dims}
    unsaid: dict[str, Any] = {name: dims for name, dims in kinds.items() if not getattr(config.execution, name)}
    return replace(config, execution=replace(config.execution, **unsaid))


@contextmanager
def _planner(realtime: bool, policy: PolicyFolder, config: RolloutConfig, setup: RobotSetup) -> Iterator[Planner]:
    """Where the policy computes: in a process of its own, or on the virtual clock."""
    robot = setup.robot
    if not realtime:
        yield make_planner(load_acting_policy(policy.path), robot.clock, robot.control_hz, config.latency)
        return
    spec = policy.spec
    cameras = tuple((camera, *spec.image_size) for camera in spec.cameras)
    layout = MessageLayout(cameras, spec.state_dim, spec.action_dim, policy.horizon)
    load = functools.partial(load_acting_policy, policy.path)
    with ProcessPlanner(load, layout, config.execution) as planner:
        yield planner


@contextmanager
def _display(realtime: bool, setup: RobotSetup) -> Iterator[Sequence[Subscriber]]:
    """The live panel, in real time and where somebody can see it."""
    if not realtime or not sys.stderr.isatty():
        yield []
        return
    with LiveDisplay(setup.env_id, setup.robot.control_hz) as display:
        yield [display]


def _source(
    planner: Planner, execution: ExecutionConfig, policy: PolicyFolder, setup: RobotSetup, takeover: bool
) -> ActionSource:
    corrector = ResidualCorrector.load(policy.path / FOLDER) if execution.strategy == "a2c2" else None
    executor = Executor(planner, execution, corrector)
    if not takeover:
        return executor
    if setup.make_takeover is None:
        raise UserError(f"nobody can take over robot {setup.env_id!r}; leave --takeover out")
    return TakeoverSwitch(executor, setup.make_takeover())


def _free_names(store: EpisodeStore | None) -> Iterator[str]:
    """rollout-000000 and so on, after those that the store holds."""
    known = [name for name in store.ids() if re.fullmatch(r"rollout-\d{6}", name)] if store else []
    first = int(known[-1].removeprefix("rollout-")) + 1 if known else 0
    return (f"rollout-{number:06d}" for number in itertools.count(first))


def _sentence(episode_id: str, summary: EpisodeSummary) -> str:
    outcome = {True: "success", False: "failure", None: "no outcome"}[summary.success]
    ending = ", stopped" if summary.stopped else ""
    return (
        f"{episode_id}: {outcome}{ending} after {summary.ticks} ticks ({summary.duration_s:.1f} s); "
        f"held {summary.held_ticks}, human {summary.human_ticks}, missed {summary.missed_ticks}"
    )
