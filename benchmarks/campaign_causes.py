"""What is disturbed beside the sensors of the campaign's robot. Each is a context: inside it the fault goes on."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.campaign_course import Course
from benchmarks.campaign_world import NAMESPACE
from robot_io.ros2 import qos
from vla_rl.core.errors import UserError


@contextlib.contextmanager
def _raving(course: Course) -> Iterator[None]:
    course.world.policy_raves = True
    yield


@contextlib.contextmanager
def _killed(course: Course) -> Iterator[None]:
    os.kill(inference_process(course.rig.policy.process.pid), signal.SIGKILL)
    yield


@contextlib.contextmanager
def _hanging(course: Course) -> Iterator[None]:
    process = inference_process(course.rig.policy.process.pid)
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@contextlib.contextmanager
def _paused(course: Course) -> Iterator[None]:
    os.kill(course.rig.policy.process.pid, signal.SIGSTOP)
    try:
        course.free_ticks(30)
    finally:
        os.kill(course.rig.policy.process.pid, signal.SIGCONT)
    yield


@contextlib.contextmanager
def _rivalled(course: Course) -> Iterator[None]:
    from trajectory_msgs.msg import JointTrajectory

    with course.stranger("rival") as node:
        node.create_publisher(JointTrajectory, "arm_controller/joint_trajectory", qos.commands())
        course.seen_by_observer(
            lambda: course.rig.node.count_publishers(f"{NAMESPACE}/arm_controller/joint_trajectory") > 1
        )
        yield
    course.seen_by_observer(
        lambda: course.rig.node.count_publishers(f"{NAMESPACE}/arm_controller/joint_trajectory") == 1
    )


@contextlib.contextmanager
def _twinned(course: Course) -> Iterator[None]:
    with course.stranger("policy_node"):
        course.seen_by_observer(lambda: course.rig.node.get_node_names().count("policy_node") > 1)
        yield
    course.seen_by_observer(lambda: course.rig.node.get_node_names().count("policy_node") == 1)


@contextlib.contextmanager
def _pressed(course: Course) -> Iterator[None]:
    course.world.press(True)
    yield
    course.world.press(False)


@contextlib.contextmanager
def _nobody_presses(course: Course) -> Iterator[None]:
    course.world.no_press_publisher()
    yield
    course.world.press_publisher()
    course.free_ticks(10)


@contextlib.contextmanager
def _stop_called(course: Course) -> Iterator[None]:
    accepted, why = course.rig.trigger("estop")
    if not accepted:
        raise UserError(f"~/estop was refused: {why}")
    yield


@contextlib.contextmanager
def _let_go(course: Course) -> Iterator[None]:
    course.world.hold_deadman(False)
    yield
    course.world.hold_deadman(True)


@contextlib.contextmanager
def _falls_silent(course: Course) -> Iterator[None]:
    course.world.hold_deadman(None)
    yield
    course.world.hold_deadman(True)


@contextlib.contextmanager
def _idle(course: Course) -> Iterator[None]:
    course.world.tell_controllers("inactive")
    yield
    course.world.tell_controllers("active")


@contextlib.contextmanager
def _no_manager(course: Course) -> Iterator[None]:
    course.world.end_manager()
    yield
    course.world.begin_manager()
    course.free_ticks(10)


@contextlib.contextmanager
def only_disturbed(_: Course) -> Iterator[None]:
    yield


CAUSES: dict[str, Callable[[Course], contextlib.AbstractContextManager[None]]] = {
    "policy_nan": _raving,
    "policy_killed": _killed,
    "policy_hangs": _hanging,
    "node_paused": _paused,
    "rival": _rivalled,
    "twin": _twinned,
    "estop_pressed": _pressed,
    "estop_gone": _nobody_presses,
    "estop_called": _stop_called,
    "deadman_released": _let_go,
    "deadman_silent": _falls_silent,
    "controller_idle": _idle,
    "manager_gone": _no_manager,
}
AT_THE_MACHINES_PACE = {"clock_silent", *CAUSES} - {"policy_nan", "policy_killed", "policy_hangs", "node_paused"}
"""What is noticed in wall time."""
NO_LOCKSTEP = {"node_paused", "clock_silent"}


def inference_process(node: int) -> int:
    """The process of the policy: the child of the node that multiprocessing spawned and that is not its tracker."""
    for child in Path(f"/proc/{node}/task").glob("*/children"):
        for process in map(int, child.read_text().split()):
            with contextlib.suppress(OSError):
                if "spawn_main" in Path(f"/proc/{process}/cmdline").read_text():
                    return process
    raise UserError("the policy node has no inference process")
