"""The ROS 2 policy node put together: ``ros2 run vla_rl_ros policy_node`` or ``python -m vla_rl.acting.ros2_node``.

The node (parameters, topics, services, lifecycle) is `robot_io.ros2.node`. This module gives it the policy in its own
process, the executor, the gate, the recorder and the one loop. The control thread runs attempts; the main thread,
ROS's, makes and closes them.
"""

import functools
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from robot_io.description import Description, make_gate
from robot_io.display import LoopStatistics
from robot_io.limits import check_names
from robot_io.reasons import Reason
from robot_io.ros2.diagnostics import Health
from robot_io.ros2.node import run_node
from robot_io.ros2.operator import OperatorRequests, TopicTakeover
from robot_io.ros2.outputs import check_outputs, with_quaternions
from robot_io.ros2.parameters import Settings
from robot_io.ros2.robot import Interface, Ros2Robot
from vla_rl.acting.action_kinds import recorded_as_steps, with_action_kinds
from vla_rl.acting.attempt import Attempts
from vla_rl.acting.capability import added_steps, check_strategy, load_corrector
from vla_rl.acting.expert_policy import EXPERT, find_expert
from vla_rl.acting.policy_folder import PolicyFolder, find_policy, load_watched_policy, on_robot
from vla_rl.acting.robot_check import Item, names_item, settings_items, stop_item
from vla_rl.acting.robots import check_fits, check_rate
from vla_rl.acting.rollout import resolve_config
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.protocols import Policy, Subscriber
from vla_rl.core.robot_matching import match_robot, renamed
from vla_rl.core.types import Episode, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.executor import Executor
from vla_rl.execution.inference_process import MessageLayout, ProcessPlanner
from vla_rl.execution.matched import matched_corrector, matched_loader
from vla_rl.execution.realtime import RealtimeConfig, realtime
from vla_rl.execution.sources import TakeoverSwitch
from vla_rl.report.live_view import LiveView

_ORDINARY = Reason.RATE | Reason.SMOOTHED | Reason.LATCHED
_SAID_FOR_S = 2.0  # a reason that comes and goes with the ticks is reported as one

LoadPolicy = Callable[[], Policy]


class PolicySession:
    """Attempts of a policy on a robot of topics. A `robot_io.ros2.node.Session`.

    ``load_policy`` loads the policy in the inference process.

    Raises:
        UserError: if settings, limits and policy do not fit together.
    """

    def __init__(
        self, settings: Settings, operator: OperatorRequests, policy: PolicyFolder, load_policy: LoadPolicy
    ) -> None:
        self._settings, self._operator = settings, operator
        cameras = [camera.name for camera in settings.cameras]
        check_fits(policy.spec, cameras, len(settings.joints), len(settings.command_joints))
        limits = settings.path("limits")
        if limits is None:
            raise ConfigError("parameter limits is empty; name the YAML file of this robot's limits")
        config = resolve_config(policy, limits, settings["strategy"], settings["overrides"], realtime=True)
        state, action = settings.dimensions
        self._found = match_robot(renamed(policy.spec, config.rename), len(action), (state, action))
        check_names(config.gate, action)
        policy, execution = on_robot(policy, config.execution, self._found)
        self._policy = policy
        check_strategy(execution, policy, watched=bool(settings["watch"]))
        execution.check_fit(policy.horizon, policy.prefix_ticks)
        control_hz = settings["control_hz"] or policy.spec.control_hz
        check_rate(policy.spec, control_hz, settings["any_rate"])
        robot_steps = config.gate.delta_dims
        joints = settings.command_joints
        self._description = Description(settings.description, joints) if settings.description else None
        gate = with_quaternions(config.gate, settings.outputs)
        self._gate = make_gate(gate, control_hz, settings["commands_per_tick"], joints, self._description)
        check_outputs(settings.outputs, robot_steps)
        self._added = added_steps(policy.spec, robot_steps)
        execution = with_action_kinds(execution, policy.spec, policy.discrete_dims, config.gate.discrete_dims)
        self._execution = replace(execution, delta_dims=robot_steps)
        self._corrector = matched_corrector(load_corrector(self._execution, policy), self._found)
        self._load_policy = matched_loader(load_policy, self._found)
        size = settings["image_size"]
        self.interface = Interface(
            control_hz=control_hz,
            image_size=(size, size) if size else policy.spec.image_size,
            gripper_dims=self._execution.discrete_dims,
            silent_after_ms=config.gate.max_observation_age_ms,
            step_dims=robot_steps,
            quaternions=gate.quaternions,
        )
        store = settings.path("store")
        self._store = EpisodeStore(store) if store else None
        self._origin = Origin.SIM if settings["simulated"] else Origin.REAL
        self._statistics = LoopStatistics()
        self._subscribers: list[Subscriber] = [self._statistics]
        self._open = ExitStack()
        self._planner: ProcessPlanner | None = None
        self._silent = False  # it gave no plan in time: alive, it may hang
        self._unstored: Episode | None = None

    def connect(self, robot: Ros2Robot, takeover: TopicTakeover) -> None:
        """Start the inference process, which loads and warms the policy."""
        self._robot, self._takeover = robot, takeover
        self._start_inference()
        if view := self._settings["live_view"]:
            name = self._settings["robot_name"]
            self._subscribers.append(self._open.enter_context(LiveView(view, name)))
        subscribers, name = [*self._subscribers, *robot.subscribers], self._settings["robot_name"]
        self._attempts = Attempts(robot, self._gate, self._origin, name, subscribers, rearms=False)

    def attempt(self, seed: int, wait_for_label: Callable[[], None]) -> str:
        """Run one attempt."""
        assert self._planner is not None
        priority = self._settings["realtime_priority"]
        steps = self._policy.n_obs_steps
        executor = Executor(self._planner, self._execution, self._corrector, self._added, steps)
        source = TakeoverSwitch(executor, self._takeover)
        keep = functools.partial(self._keep, wait_for_label)
        with realtime(RealtimeConfig(priority, lock_memory=priority > 0)):
            summary, _ = self._attempts.run(source, _episode_id(), seed, policy_version=-1, keep=keep)
        last = self._statistics.last
        objections = Reason(int(last.extras["gate_reasons"]) if last else 0)
        if objections & Reason.ACTION_STALE:
            self._silent = True  # the gate was faster than the executor
        if self._gate.latched:
            return f"the gate's stop latched: {self._names(objections) or 'see the log'}"
        if summary.stopped:
            self._silent = True
            return f"the policy gave no plan in time: {self._policy_error() or 'it is too slow'}"
        return ""

    def checklist(self, stop_input: str) -> list[str]:
        """Return the checklist; the robot itself is checked when an attempt begins."""
        hz, watched = self.interface.control_hz, bool(self._settings["watch"])
        items = settings_items(self._policy, self._execution, self._gate.config, hz, watched, self._description)
        dimensions = self._settings.dimensions
        items += [names_item(self._found.policy, len(dimensions[1]), dimensions)]
        items += [Item("nobody else commands it", True, "looked for, and ten times a second from now on")]
        return [*map(str, items), str(stop_item(stop_input))]

    def rearm(self) -> None:
        """Release the gate. First store an attempt that could not be stored, or arm nothing.

        Raises:
            UserError: if it still cannot, or the policy cannot be loaded again.
        """
        try:
            self._store_attempt()
        except (OSError, UserError) as error:
            reason = f"the last attempt is not stored: {error}"
            raise UserError(f"{reason}; make room, then call ~/rearm again: a new configuration loses it") from error
        if self._silent or self._planner is None or not self._planner.alive:
            self._stop_inference()
            self._start_inference()
            self._silent = False
        self._gate.rearm()

    def health(self) -> Health:
        """Return the health of policy and gate."""
        statistics, last = self._statistics, self._statistics.last
        periods_ms, delays = statistics.periods_ms(), statistics.delays(64)
        counts = {str(reason.name): count for reason, count in statistics.reason_counts().items()}
        return Health(
            policy_error=self._policy_error(),
            gate_reasons=self._names(statistics.recent_reasons(_SAID_FOR_S)),
            latched=self._gate.latched,
            values={
                "loop": {
                    "ticks": statistics.ticks,
                    "missed ticks": statistics.missed,
                    "period p99 ms": round(float(np.percentile(periods_ms, 99)), 3) if len(periods_ms) else "",
                    "held ticks": statistics.held,
                    "takeovers": statistics.takeovers,
                },
                "policy": {
                    "version": last.extras["policy_version"] if last else "",
                    "chunk delay ticks": int(delays.max()) if len(delays) else "",
                },
                "gate": counts,
            },
        )

    def close(self) -> None:
        """Close policy, recorder and store."""
        self._stop_inference()
        self._open.close()

    def _start_inference(self) -> None:
        spec = self._policy.spec
        height, width = self.interface.image_size or spec.image_size
        cameras = tuple((camera, height, width) for camera in spec.cameras)
        policy = self._policy
        layout = MessageLayout(cameras, spec.state_dim, spec.action_dim, policy.horizon, policy.n_obs_steps)
        planner = ProcessPlanner(self._load_policy, layout, self._execution)
        planner.__enter__()
        self._planner = planner

    def _stop_inference(self) -> None:
        if self._planner is not None:
            self._planner.__exit__()
            self._planner = None

    def _policy_error(self) -> str:
        if self._planner is None:
            return "not loaded"
        if not self._planner.alive:
            return "the inference process died"
        return self._planner.last_error or ""

    def _names(self, reasons: Reason) -> str:
        """What the gate held or stopped a step for, with what the robot knows about it."""
        names = (reasons & ~_ORDINARY).name
        return "; ".join(part for part in (names, self._gate.why, self._robot.why()) if part) if names else ""

    def _keep(self, wait_for_label: Callable[[], None], episode: Episode) -> None:
        if episode.success is None:
            wait_for_label()
        outcome, discarded = self._operator.settle()
        if self._store is not None and not discarded:
            newest = int(np.max(episode.extras["policy_version"], initial=-1))  # versions may change between chunks
            kept = recorded_as_steps(episode, self._added, self._gate.rest)
            self._unstored = replace(kept, success=outcome, policy_version=newest)
            self._store_attempt()

    def _store_attempt(self) -> None:
        """What the store refuses is dropped; what the disk does not take, which the store says itself, waits."""
        if self._unstored is None:
            return
        assert self._store is not None
        try:
            self._store.add(self._unstored)
        except UserError as error:
            if not isinstance(error.__cause__, OSError):
                self._unstored = None
            raise
        self._unstored = None


def make_session(settings: Settings, operator: OperatorRequests) -> PolicySession:
    """Return the session of the policy that the parameters name; errors as of `PolicySession` and `find_policy`."""
    if settings["policy"].startswith(EXPERT):
        return PolicySession(settings, operator, *find_expert(settings["policy"]))
    policy = find_policy(os.path.expanduser(settings["policy"]))
    watched = settings.path("watch")
    if watched is None:
        return PolicySession(settings, operator, policy, policy.load)
    if policy.name:
        raise UserError(f"parameter watch is {watched}, and {policy.name} has no versions; leave watch empty")
    if not watched.is_dir():
        raise UserError(f"parameter watch is {watched}, which is no folder; name a run's policies/")
    return PolicySession(settings, operator, policy, functools.partial(load_watched_policy, policy.path, watched))


def main() -> int:
    """Entry point of the ament package."""
    return run_node(make_session)


def _episode_id() -> str:
    """Sorts by time, and two robots that start in the same millisecond differ."""
    now_s = time.time()
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_s))
    return f"ros2-{moment}-{int(now_s * 1e6) % 1_000_000:06d}"


if __name__ == "__main__":
    sys.exit(main())
