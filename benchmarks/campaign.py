"""Faults at random moments on a policy node over topics, and what it has to refuse. Runs in a process with ROS.

``python -m benchmarks.campaign JSON``, with the fields of `CampaignConfig`; the last line of its output is JSON.

The robot is a small one of our own, in this process, in lockstep: its time goes on when a command has come, or when the
node says that it has stopped. So all times are the robot's, and a busy machine slows the world and accuses nobody. What
counts is what an observer sees: a subscription to the command topic in a node beside the policy node's process. What
the policy node says of itself only lets time go on.
"""

import contextlib
import itertools
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.campaign_node import CAMERA, HORIZON, HZ, JOINTS, WHITE
from robot_io.body import BodyConfig
from robot_io.faults import FAULTS, Disturbance, Fault, Finding, Sample, Settings, judge
from robot_io.limits import RobotLimits
from robot_io.ros2 import messages, qos
from tests.fakes.ros2_rig import Rig
from vla_rl.core.errors import UserError

_log = logging.getLogger(__name__)

LIMITS = RobotLimits(
    low=(-1.0,) * len(JOINTS),
    high=(1.0,) * len(JOINTS),
    max_velocity=(2.0,) * len(JOINTS),
    max_observation_age_ms=250.0,
    body=BodyConfig(max_effort=(5.0,) * len(JOINTS)),
)
HOLD_TICKS = 20
SETTINGS = Settings(LIMITS, HZ, HORIZON, HOLD_TICKS, clock_timeout_s=1.0)
NAMESPACE = "/campaign"
_PERIOD_NS = round(1e9 / HZ)
_LAG = 0.6  # of the way to its command a joint goes in a tick
_SHOT = 48  # pixels of the camera, each way
_TICK_S = 0.004  # wall time of a tick at least, so that a plan takes a few of them at most
_FREE_TICK_S = 0.015  # where nobody waits for the node, it has to keep up
_AFTER_TICKS = 10  # how long nobody must move after a stop
_EVERY_COMMAND = 1000  # depth of the observer's queue
_QUIET_LOOKS = 4
_ROUNDING = 1e-4
_TRIES = 3
_SILENT_S = 20.0  # wall time after which the node is taken for dead


@dataclass(frozen=True)
class CampaignConfig:
    """What to do.

    Attributes:
        folder: for logs and limits.
        trials: fault -> how often.
        seed: of the moments.
        refusals: try them too.
    """

    folder: str
    trials: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    refusals: bool = False


class World:
    """The robot, its emergency stop, and the observer of its commands. Joints come in two messages, of two drivers."""

    def __init__(self, rig: Rig) -> None:
        import rclpy
        from rosgraph_msgs.msg import Clock
        from sensor_msgs.msg import Image, JointState
        from std_msgs.msg import Bool
        from trajectory_msgs.msg import JointTrajectory

        self._rig, self._random = rig, random.Random(0)
        self._node = rclpy.create_node("robot", namespace=NAMESPACE)
        self._kinds = Clock, Image, JointState, Bool
        self._clock = self._node.create_publisher(Clock, "/clock", qos.clock())
        self._joints = self._node.create_publisher(JointState, "joint_states", qos.sensors())
        self._camera = self._node.create_publisher(Image, f"{CAMERA}/image_raw", qos.sensors())
        self.press_publisher()
        self._noise = np.random.default_rng(0)
        self._changed = threading.Condition()
        self._now_ns = 1_000_000_000
        self._position = np.zeros(len(JOINTS), np.float32)
        self._command: Any = None
        self._seen = 0
        self.samples: list[Sample] = []
        self.disturbance = Disturbance(self._random, LIMITS)
        self.policy_raves = False
        self.tick_s = _TICK_S
        rig.node.create_subscription(
            JointTrajectory, "arm_controller/joint_trajectory", self._on_command, _EVERY_COMMAND
        )

    @property
    def now_ns(self) -> int:
        """The robot's time."""
        return self._now_ns

    @property
    def position(self) -> np.ndarray:
        """Where the joints really are, float32 [A]."""
        return self._position.copy()

    def press_publisher(self) -> None:
        """Somebody could press the emergency stop."""
        self._estop = self._node.create_publisher(self._kinds[3], "estop", qos.commands())

    def no_press_publisher(self) -> None:
        """Nobody could."""
        self._node.destroy_publisher(self._estop)

    def press(self, pressed: bool) -> None:
        """Press the emergency stop, or release it."""
        self._estop.publish(self._kinds[3](data=pressed))

    def tick(self, wait: Callable[[], bool] | None = None) -> None:
        """Tell what the sensors say, wait for a command unless ``wait`` says that none will come, and go on."""
        due_s = time.monotonic() + max(self.tick_s, _FREE_TICK_S if wait is None else 0.0)
        with self._changed:
            seen = self._seen
        self._tell()
        if wait is not None:
            until_s = time.monotonic() + _SILENT_S
            with self._changed:
                while self._seen == seen and not wait():
                    self._changed.wait(0.005)
                    if time.monotonic() > until_s:
                        raise UserError(f"the policy node says nothing for {_SILENT_S:.0f} s")
        if (left_s := due_s - time.monotonic()) > 0:
            time.sleep(left_s)
        with self._changed:
            if self._command is not None:
                self._position += np.float32(_LAG) * (self._command - self._position)
            self._now_ns += _PERIOD_NS

    def _tell(self) -> None:
        clock_kind, image_kind, joints_kind, _ = self._kinds
        tap = self.disturbance
        robot_ns = tap.clock_ns(self._now_ns)
        stamp_ns = tap.stamp_ns(self._now_ns)
        stamp = dict(zip(("sec", "nanosec"), divmod(stamp_ns, 1_000_000_000), strict=True))
        told = [tap.joint(dim, float(position)) for dim, position in enumerate(self._position)]
        for dims in ((0,), range(1, len(JOINTS))):
            heard = [dim for dim in dims if told[dim] is not None]
            if heard and not tap.loses_message():
                message = joints_kind(
                    name=[JOINTS[dim] for dim in heard],
                    position=[told[dim] for dim in heard],
                    effort=[tap.effort(dim, 0.1) for dim in heard],
                )
                _set_stamp(message, stamp)
                self._joints.publish(message)
        if all(position is not None for position in told):
            self._told = np.asarray(told, np.float32)
        darkest, brightest = (WHITE + 2, 256) if self.policy_raves else (0, WHITE - 50)
        picture = self._noise.integers(darkest, brightest, (_SHOT, _SHOT, 3), np.uint8)
        shown = tap.image(CAMERA, picture)
        if shown is not None and not tap.loses_message():
            message = image_kind()
            messages.fill_image(message, shown)
            _set_stamp(message, stamp)
            self._camera.publish(message)
        if robot_ns is not None:
            message = clock_kind()
            message.clock.sec, message.clock.nanosec = divmod(robot_ns, 1_000_000_000)
            self._clock.publish(message)

    def _on_command(self, message: Any) -> None:
        """The observer."""
        command = np.asarray(message.points[-1].positions, np.float32)
        with self._changed:
            self.samples.append(Sample(self._now_ns, command, self._told))
            self._command = command
            self._seen += 1
            self._changed.notify_all()

    def close(self) -> None:
        """The robot is gone."""
        self._node.destroy_node()


class CampaignRig(Rig):
    """The policy node in its process, and the world in this one."""

    policy_module = "benchmarks.campaign_node"

    def __init__(self, folder: Path) -> None:
        limits = folder / "limits.yaml"
        limits.write_text(yaml.safe_dump(json.loads(json.dumps(asdict(LIMITS)))))
        parameters = {
            "policy": "wave",
            "limits": str(limits),
            "joints": list(JOINTS),
            "cameras": [CAMERA],
            "estop_topic": "estop",
            "use_sim_time": True,
            "detect_frozen_images": True,
            "auto_start": False,
            "reset_service": "",
            "clock_timeout_s": SETTINGS.clock_timeout_s,
            "stream_timeout_s": 2.0,
            "max_attempt_s": 3600.0,
            "diagnostics_hz": 20.0,
            "overrides": [
                f"execution.hold_ticks={HOLD_TICKS}",
                "execution.cold_start_ticks=400",
                "execution.execute_ticks=4",
            ],
        }
        super().__init__(folder, parameters, {}, NAMESPACE)

    def start_robot(self) -> None:
        """The world begins."""
        self.world = World(self)
        self.robot = self  # type: ignore[assignment]

    def stop(self) -> None:
        """The world ends."""
        self.world.close()

    def stopped(self) -> str:
        """Why the node says that it stopped; empty if it does not."""
        level, message, _ = self.status("attempts")
        return message if level == 2 else ""


class SpoiledTrial(UserError):
    """The robot stood still before there was any fault."""


class Campaign:
    """Trials on one rig. See the module."""

    def __init__(self, config: CampaignConfig, rig: CampaignRig) -> None:
        self._config, self._rig, self._world = config, rig, rig.world
        self._random = random.Random(config.seed)
        self._jumps: list[float] = []  # of first commands, in ticks of the limits

    def run(self) -> dict[str, Any]:
        """Everything that the config asks for."""
        result: dict[str, Any] = {}
        for name in ("configure", "activate"):
            if not self._rig.transition(name):
                raise UserError(f"the node refused to {name}; see its log in {self._config.folder}")
        result["trials"] = [
            self._timed_trial(FAULTS[name]) for name, count in self._config.trials.items() for _ in range(count)
        ]
        result["first_jumps"] = self._jumps
        return result

    def _timed_trial(self, fault: Fault) -> dict[str, Any]:
        """A trial; again if the robot stood still before there was any fault, which accuses nobody."""
        begun_s, spoiled = time.monotonic(), 0
        while True:
            try:
                finding = self._trial(fault)
                break
            except SpoiledTrial as error:
                _log.warning("%s: %s", fault.name, error)
                self._recover()
                spoiled += 1
                if spoiled == _TRIES:
                    finding = Finding(fault.name, np.nan, fault.declared_ms(SETTINGS), False, str(error))
                    break
        return {**asdict(finding), "spoiled": spoiled, "wall_s": time.monotonic() - begun_s}

    def _trial(self, fault: Fault) -> Finding:
        """One fault at a random moment of an attempt."""
        world = self._world
        try:
            world.disturbance = Disturbance(self._random, LIMITS)
            world.tick_s = _TICK_S
            if fault.at_start:
                return self._start_trial(fault)
            self._begin_attempt()
            self._run_ticks(self._random.randint(8, 30))
            if fault.name == "start_twice":
                return self._start_twice(fault)
            if fault.tolerated:
                return self._tolerated(fault)
            world.tick_s = 1 / HZ if fault.name in _AT_THE_MACHINES_PACE else _TICK_S
            begun_ns = world.now_ns
            world.disturbance = fault.disturbance(self._random, LIMITS)
            with _CAUSES.get(fault.name, _only_disturbed)(self):
                known_ns = world.now_ns
                declared_ticks = round(fault.declared_ms(SETTINGS) * 1e-3 * HZ) + HORIZON
                self._run_until_stopped(fault, declared_ticks)
            world.disturbance, world.tick_s = Disturbance(self._random, LIMITS), _TICK_S
            world.policy_raves = False
            self._free_ticks(_AFTER_TICKS)
            finding = judge(fault, begun_ns, world.samples, SETTINGS, known_ns)
            return self._afterwards(finding)
        except SpoiledTrial:
            raise
        except UserError as error:
            self._recover()
            return Finding(fault.name, np.nan, fault.declared_ms(SETTINGS), False, str(error))

    def _afterwards(self, finding: Finding) -> Finding:
        """The stop stays until somebody calls ~/rearm."""
        accepted, _ = self._rig.trigger("start")
        seen = len(self._world.samples)
        self._free_ticks(_AFTER_TICKS)
        if finding.passed and (accepted or len(self._world.samples) > seen):
            finding = Finding(finding.fault, finding.reaction_ms, finding.declared_ms, False, "it went on by itself")
        self._rearm()
        return finding

    def _start_trial(self, fault: Fault) -> Finding:
        """A start that has to be refused, or to go well."""
        world, rig = self._world, self._rig
        world.samples.clear()
        declared_ms = fault.declared_ms(SETTINGS)
        rig.trigger("start")
        self._free_ticks(self._random.randint(0, 3))
        world.disturbance = fault.disturbance(self._random, LIMITS)
        until_s = time.monotonic() + 10.0
        while not rig.stopped() and not world.samples and time.monotonic() < until_s:
            self._free_ticks(1)
        self._free_ticks(3)
        jump = self._first_jump()
        refused = not world.samples
        if not refused:
            rig.trigger("failure")
            self._wait_standing_by()
        else:
            self._rearm()
        passed = refused or jump <= 1.0 + _ROUNDING
        return Finding(fault.name, 0.0, declared_ms, passed, "" if passed else f"first command jumped {jump:.2f} ticks")

    def _start_twice(self, fault: Fault) -> Finding:
        """A start during an attempt is refused, and after its success nothing moves."""
        world, rig = self._world, self._rig
        declared_ms = fault.declared_ms(SETTINGS)
        answers: list[bool] = []
        self._while_ticking(lambda: answers.append(rig.trigger("start")[0]))
        self._run_ticks(3)
        self._while_ticking(lambda: answers.append(rig.trigger("success")[0]))
        begun_ns = world.now_ns
        self._wait_standing_by()
        self._settle()
        last_ns = world.samples[-1].at_ns
        seen = len(world.samples)
        self._free_ticks(3 * _AFTER_TICKS)
        moved = len(world.samples) > seen
        passed = answers == [False, True] and not moved
        why = f"answers {answers}, {'it moved again' if moved else 'it stayed'}"
        return Finding(fault.name, max(last_ns - begun_ns, 0) * 1e-6, declared_ms, passed, "" if passed else why)

    def _tolerated(self, fault: Fault) -> Finding:
        """Messages are lost for a while: no command may move on readings that are too old, or jump."""
        world, rig = self._world, self._rig
        begun = len(world.samples) - 1
        lossy = _Counting(fault.disturbance(self._random, LIMITS), world)
        world.disturbance = lossy
        for _ in range(60):
            if rig.stopped():
                break
            self._run_ticks(1, may_stop=True)
        world.disturbance = Disturbance(self._random, LIMITS)
        declared_ms = fault.declared_ms(SETTINGS)
        samples = world.samples[begun:]
        worst_ms, jump = 0.0, 0.0
        for before, sample in itertools.pairwise(samples):
            step = float(np.abs(sample.command - before.command).max())
            jump = max(jump, step / (LIMITS.max_velocity[0] / HZ))
            if step > 0:
                worst_ms = max(worst_ms, (sample.at_ns - lossy.heard_ns(sample.at_ns)) * 1e-6)
        passed = worst_ms <= LIMITS.max_observation_age_ms + SETTINGS.ticks_ms(1) and jump <= 1.0 + _ROUNDING
        if rig.stopped():
            self._free_ticks(_AFTER_TICKS)
            self._rearm()
        else:
            self._while_ticking(lambda: rig.trigger("failure"))
            self._wait_standing_by()
        why = "" if passed else f"moved on readings {worst_ms:.0f} ms old, in steps of {jump:.2f} ticks"
        return Finding(fault.name, worst_ms, declared_ms, passed, why)

    # The course of a trial.

    def _begin_attempt(self) -> None:
        """Start, and see the first command."""
        world, rig = self._world, self._rig
        world.samples.clear()
        for _ in range(100):
            if rig.trigger("start")[0]:
                break
            self._free_ticks(5)
        until_s = time.monotonic() + _SILENT_S
        while not world.samples:
            if rig.stopped() or time.monotonic() > until_s:
                raise SpoiledTrial(f"no attempt began: {rig.stopped() or 'no command came'}")
            self._free_ticks(1)
        self._jumps.append(self._first_jump())
        self._settle()
        moving = 0
        while moving < 3:
            self._run_ticks(1)
            two = world.samples[-2:]
            moving = moving + 1 if len(two) == 2 and (two[0].command != two[1].command).any() else 0

    def _first_jump(self) -> float:
        """How far the first command is from where the robot was, in ticks of the limits."""
        if not self._world.samples:
            return 0.0
        first = self._world.samples[0]
        return float(np.abs(first.command - self._position_before).max() / (LIMITS.max_velocity[0] / HZ))

    def _run_ticks(self, count: int, may_stop: bool = False) -> None:
        """Ticks with a command each."""
        for _ in range(count):
            self._world.tick(lambda: bool(self._rig.stopped()))
            if not may_stop and (why := self._rig.stopped()):
                raise SpoiledTrial(f"the robot stopped before the fault: {why}")

    def _free_ticks(self, count: int) -> None:
        """Ticks that wait for nobody."""
        for _ in range(count):
            if not self._world.samples:
                self._position_before = self._world.position
            self._world.tick()

    def _run_until_stopped(self, fault: Fault, declared_ticks: int) -> None:
        """Ticks in lockstep until the node has stopped; after three times the declared time without a stop, no more."""
        begun_s = time.monotonic()
        if fault.name == "clock_jump":
            self._free_ticks(1)  # the loop's time stands still over a jump: in this tick nobody commands
            self._settle()
        for _ in range(3 * declared_ticks):
            if self._rig.stopped():
                return
            if fault.name in _NO_LOCKSTEP:
                self._free_ticks(1)
            else:
                self._run_ticks(1, may_stop=True)
        while fault.name in _NO_LOCKSTEP and not self._rig.stopped() and time.monotonic() < begun_s + _SILENT_S:
            self._free_ticks(1)

    def _settle(self) -> None:
        """Wait until the node has done all that there is to do: every command is the answer to the newest readings."""
        until_s, quiet = time.monotonic() + _SILENT_S, 0
        while quiet < _QUIET_LOOKS and time.monotonic() < until_s:
            quiet = quiet + 1 if _sleeps(self._rig.policy.process.pid) else 0
            time.sleep(0.002)

    def _while_ticking(self, ask: Callable[[], object]) -> None:
        """Call a service while the world goes on."""
        asking = threading.Thread(target=ask)
        asking.start()
        while asking.is_alive():
            self._world.tick(lambda: bool(self._rig.stopped()) or not asking.is_alive())
        asking.join()

    def _wait_standing_by(self) -> None:
        self._rig.forget()
        until_s = time.monotonic() + _SILENT_S
        while not self._rig.status("attempts")[2].get("standing by"):
            if time.monotonic() > until_s:
                raise UserError("the attempt does not end")
            self._free_ticks(1)

    def _rearm(self) -> None:
        accepted, why = self._rig.trigger("rearm")
        if not accepted:
            raise UserError(f"rearm was refused: {why}")
        self._rig.wait(lambda: not self._rig.stopped(), 10.0, "the end of the stop")

    def _recover(self) -> None:
        """After a trial that went wrong: whatever runs is ended."""
        world, rig = self._world, self._rig
        world.disturbance, world.policy_raves = Disturbance(self._random, LIMITS), False
        with contextlib.suppress(UserError):
            rig.trigger("discard")
            self._wait_standing_by()
        with contextlib.suppress(UserError):
            self._rearm()

    # What is disturbed beside the sensors. Each is a context: inside it the fault goes on.

    @contextlib.contextmanager
    def _raving(self) -> Iterator[None]:
        self._world.policy_raves = True
        yield

    @contextlib.contextmanager
    def _killed(self) -> Iterator[None]:
        os.kill(inference_process(self._rig.policy.process.pid), signal.SIGKILL)
        yield

    @contextlib.contextmanager
    def _hanging(self) -> Iterator[None]:
        process = inference_process(self._rig.policy.process.pid)
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process, signal.SIGCONT)

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        os.kill(self._rig.policy.process.pid, signal.SIGSTOP)
        try:
            self._free_ticks(30)
        finally:
            os.kill(self._rig.policy.process.pid, signal.SIGCONT)
        yield

    @contextlib.contextmanager
    def _rivalled(self) -> Iterator[None]:
        from trajectory_msgs.msg import JointTrajectory

        with self._stranger("rival") as node:
            node.create_publisher(JointTrajectory, "arm_controller/joint_trajectory", qos.commands())
            self._seen_by_observer(
                lambda: self._rig.node.count_publishers(f"{NAMESPACE}/arm_controller/joint_trajectory") > 1
            )
            yield
        self._seen_by_observer(
            lambda: self._rig.node.count_publishers(f"{NAMESPACE}/arm_controller/joint_trajectory") == 1
        )

    @contextlib.contextmanager
    def _twinned(self) -> Iterator[None]:
        with self._stranger("policy_node"):
            self._seen_by_observer(lambda: self._rig.node.get_node_names().count("policy_node") > 1)
            yield
        self._seen_by_observer(lambda: self._rig.node.get_node_names().count("policy_node") == 1)

    @contextlib.contextmanager
    def _pressed(self) -> Iterator[None]:
        self._world.press(True)
        yield
        self._world.press(False)

    @contextlib.contextmanager
    def _nobody_presses(self) -> Iterator[None]:
        self._world.no_press_publisher()
        yield
        self._world.press_publisher()
        self._free_ticks(10)

    @contextlib.contextmanager
    def _stranger(self, name: str) -> Iterator[Any]:
        """A node in a context of its own, as another process would have."""
        import rclpy

        context = rclpy.Context()
        rclpy.init(context=context)
        node = rclpy.create_node(name, namespace=NAMESPACE, context=context)
        try:
            yield node
        finally:
            node.destroy_node()
            rclpy.try_shutdown(context=context)

    def _seen_by_observer(self, condition: Callable[[], bool]) -> None:
        """The robot goes on until the observer itself knows of a change."""
        until_s = time.monotonic() + 10.0
        while not condition() and time.monotonic() < until_s:
            self._free_ticks(1)


class _Counting(Disturbance):
    """Loses messages, and remembers when everything had come through."""

    def __init__(self, lossy: Disturbance, world: World) -> None:
        self._lossy, self._world, self._stream = lossy, world, 0
        self._heard: list[dict[int, int]] = [dict.fromkeys(range(3), world.now_ns)]
        self._at_ns: list[int] = [world.now_ns]

    def loses_message(self) -> bool:
        lost = self._lossy.loses_message()
        heard = dict(self._heard[-1])
        if not lost:
            heard[self._stream] = self._world.now_ns
        self._stream = (self._stream + 1) % 3
        self._heard.append(heard)
        self._at_ns.append(self._world.now_ns)
        return lost

    def heard_ns(self, at_ns: int) -> int:
        """The capture time of the oldest stream that had come through by then."""
        known = [heard for heard, told_ns in zip(self._heard, self._at_ns, strict=True) if told_ns <= at_ns]
        return min((known or self._heard)[-1].values())


@contextlib.contextmanager
def _only_disturbed(_: Campaign) -> Iterator[None]:
    yield


_CAUSES: dict[str, Callable[[Campaign], contextlib.AbstractContextManager[None]]] = {
    "policy_nan": Campaign._raving,
    "policy_killed": Campaign._killed,
    "policy_hangs": Campaign._hanging,
    "node_paused": Campaign._paused,
    "rival": Campaign._rivalled,
    "twin": Campaign._twinned,
    "estop_pressed": Campaign._pressed,
    "estop_gone": Campaign._nobody_presses,
}
_AT_THE_MACHINES_PACE = {"rival", "twin", "estop_pressed", "estop_gone", "clock_silent"}  # noticed in wall time
_NO_LOCKSTEP = {"node_paused", "clock_silent"}


def inference_process(node: int) -> int:
    """The process of the policy: the child of the node that multiprocessing spawned and that is not its tracker."""
    for child in Path(f"/proc/{node}/task").glob("*/children"):
        for process in map(int, child.read_text().split()):
            with contextlib.suppress(OSError):
                if "spawn_main" in Path(f"/proc/{process}/cmdline").read_text():
                    return process
    raise UserError("the policy node has no inference process")


def _sleeps(process: int) -> bool:
    """Whether no thread of a process runs, or waits for a processor."""
    states = [task.joinpath("stat").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
    return all(state.rpartition(")")[2].split()[0] != "R" for state in states)


def _set_stamp(message: Any, stamp: dict[str, int]) -> None:
    message.header.stamp.sec, message.header.stamp.nanosec = stamp["sec"], stamp["nanosec"]


def main() -> int:
    """See the module."""
    config = CampaignConfig(**json.loads(sys.argv[1]))
    Path(config.folder).mkdir(parents=True, exist_ok=True)
    with CampaignRig(Path(config.folder)) as rig:
        result = Campaign(config, rig).run()
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
