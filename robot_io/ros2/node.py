"""The lifecycle node: parameters in, topics and services around a robot, and attempts in a control thread.

What an attempt is (policy, gate, recorder, the loop) is a `Session` that the command line injects: this package knows
robots, not policies. configure makes the session (and loads the policy), activate runs attempts, deactivate ends the
present one at its next tick, cleanup closes the session. A stop of any kind stays until a person calls `rearm`.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol, override

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from std_msgs.msg import Header
from std_srvs.srv import SetBool

from robot_io.ros2.diagnostics import Health, StatusDebouncer, diagnose
from robot_io.ros2.operator import OperatorRequests, TopicTakeover
from robot_io.ros2.parameters import Settings, declare_all, read_settings
from robot_io.ros2.robot import Interface, Interrupted, Ros2Robot
from robot_io.ros2.spinning import answer_every_request, run_ros
from robot_io.ros2.wiring import (
    Wiring,
    add_label_services,
    add_trigger,
    answer,
    read_description,
)
from vla_rl.core.errors import UserError
from vla_rl.core.logging_setup import log_to_stderr

_OK, _NO = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
_SWITCH_INTERVAL_S = 5e-4  # a callback in Python gives the control thread its turn after this time, not after 5 ms


class Session(Protocol):
    """Attempts of one policy on one robot. Made in two steps, since the robot needs the policy's interface."""

    @property
    def interface(self) -> Interface: ...

    def connect(self, robot: Ros2Robot, takeover: TopicTakeover) -> None:
        """Get ready for attempts: load the policy, make the gate. Raises UserError if that fails."""
        ...

    def attempt(self, seed: int, wait_for_label: Callable[[], None]) -> str:
        """Run one attempt and record it; returns why the robot was stopped, empty if it was not.

        ``wait_for_label`` is called if the attempt ends without an outcome, before it is stored.
        """
        ...

    def checklist(self, stop_input: str) -> Sequence[str]:
        """Return what a person should read before anything moves, a line each. ``stop_input`` stops the robot by
        hand."""
        ...

    def rearm(self) -> None:
        """Release the gate and restart a dead policy, after a person has looked. Raises UserError if that fails."""
        ...

    def health(self) -> Health: ...

    def close(self) -> None: ...


class PolicyNode(LifecycleNode):
    """The lifecycle node of a policy; launch files remap its name.

    ``make_session`` makes a session from the settings and the operator in configure. It raises UserError for what does
    not fit.
    """

    def __init__(self, make_session: Callable[[Settings, OperatorRequests], Session]) -> None:
        super().__init__("policy_node")
        self._make_session = make_session
        self._operator = OperatorRequests()
        self._session: Session | None = None
        self._thread: threading.Thread | None = None
        self._wiring: Wiring | None = None
        self._timer: Any = None
        self._stopped_because = ""
        self._standing_by = "not started yet"
        self._attempts = 0
        self._debounce = StatusDebouncer()
        answer_every_request(self)
        declare_all(self)
        self.add_on_set_parameters_callback(self._on_set_parameters)
        self._make_services()
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)

    # Transitions.

    @override
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read the parameters, subscribe, and load the policy."""
        try:
            self._settings = settings = read_settings(self)
            settings.description = read_description(self, settings)
            self._session = session = self._make_session(settings, self._operator)
            self._wiring = Wiring(self, settings, session.interface, self._operator)
            session.connect(self._wiring.robot, self._wiring.takeover)
            self._wiring.interlocks.check_alone()
            for line in ("before it moves your arm:", *session.checklist(self._wiring.interlocks.stop_input())):
                self.get_logger().info(line)
        except Exception as error:  # rclpy would swallow it without a word
            expected = isinstance(error, UserError)
            self.get_logger().error(f"cannot configure: {error if expected else traceback.format_exc()}")
            self._release()
            return _NO
        period_s = 1 / settings["diagnostics_hz"]
        steady = Clock(clock_type=ClockType.STEADY_TIME)  # diagnostics go on when simulated time stands still
        self._timer = self.create_timer(period_s, self._publish_diagnostics, clock=steady)
        return _OK

    @override
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start the control thread. A latched stop stays latched."""
        assert self._wiring is not None
        self._operator.open()
        self._wiring.robot.connect()
        self._thread = threading.Thread(target=self._run_attempts, name="control", daemon=True)
        self._thread.start()
        return super().on_activate(state)

    @override
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End the attempt at its next tick, store it, and stand still."""
        self._end_attempts()
        return super().on_deactivate(state)

    @override
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Let go of the policy and the topics."""
        self._release()
        return _OK

    @override
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Close the session, from any state."""
        self.close()
        return _OK

    @override
    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything after a transition that raised. The node can be configured again."""
        self.close()
        return _OK

    def close(self) -> None:
        """End what runs and let go of everything."""
        self._end_attempts()
        self._release()

    def _release(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._wiring is not None:
            self._stopped_because = self._stopped_because or self._wiring.interlocks.called
            self._wiring.close()
            self._wiring = None
        if self._timer is not None:
            self.destroy_timer(self._timer)
            self._timer = None

    # Attempts.

    def _run_attempts(self) -> None:
        """The control thread."""
        assert self._session is not None
        settings, session = self._settings, self._session
        while self._may_begin(settings):
            self._standing_by = ""
            try:
                seed = settings["seed"] + self._attempts
                self._stopped_because = session.attempt(
                    seed, lambda: self._operator.wait_for_label(settings["label_timeout_s"])
                )
                self._attempts += 1
            except Interrupted:
                return
            except UserError as error:
                self._stopped_because = str(error)
            except Exception as error:
                self._stopped_because = f"{type(error).__name__}: {error}"
                self.get_logger().error(traceback.format_exc())
            finally:
                self._operator.settle()
            if self._stopped_because:
                self.get_logger().error(f"stopped: {self._stopped_because}; look, then call ~/rearm")

    def _may_begin(self, settings: Settings) -> bool:
        """Wait until the next attempt may begin; False if the node is deactivated instead."""
        while True:
            done = settings["attempts"] and self._attempts >= settings["attempts"]
            if self._stopped_because:
                self._standing_by = "waiting to be re-armed by hand"
            elif done:
                self._standing_by = f"all {self._attempts} attempts are done"
            elif settings["auto_start"] and not self._operator.closed:
                return True
            else:
                self._standing_by = "waiting for ~/start"
            if not self._operator.wait_for_start():
                return False
            if not self._stopped_because and not settings["auto_start"]:
                return True

    def _end_attempts(self) -> None:
        if self._thread is not None:
            assert self._wiring is not None
            self._operator.close()
            self._wiring.robot.interrupt()
            self._thread.join()
            self._thread = None
        self._standing_by = "not active"

    # Services and messages.

    def _make_services(self) -> None:
        add_trigger(self, "start", self._start)
        add_trigger(self, "rearm", self._rearm)
        add_trigger(self, "estop", self._estop)
        add_label_services(self, self._label, self._discard)
        self.create_service(
            SetBool,
            "~/takeover",
            lambda request, response: answer(response, lambda: self._take_over(request.data)),
        )

    def _start(self) -> str:
        if self._thread is None:
            raise UserError("the node is not active")
        if self._stopped_because:
            raise UserError(f"the robot was stopped ({self._stopped_because}); look, then call ~/rearm")
        if not self._operator.start():
            raise UserError(
                "an attempt is running, or was not stored yet; end it with ~/success, ~/failure or ~/discard, "
                "then ask again"
            )
        return "the next attempt begins"

    def _label(self, success: bool) -> str:
        if self._thread is None:
            raise UserError("the node is not active: there is no attempt to label")
        self._operator.label(success)
        return "labeled a success" if success else "labeled a failure"

    def _discard(self) -> str:
        self._operator.discard()
        return "nothing of this attempt will be kept"

    def _rearm(self) -> str:
        if self._session is None:
            raise UserError("the node is not configured")
        if not self._standing_by:  # an emergency stop of this moment may not have been noticed yet
            return "nothing was stopped"
        assert self._wiring is not None
        self._wiring.interlocks.release()
        if not self._stopped_because:
            return "nothing was stopped"
        self._session.rearm()
        self._stopped_because = ""
        self._standing_by = "waiting for ~/start"
        if self._settings["auto_start"]:
            self._operator.start()
        return "armed again"

    def _estop(self) -> str:
        if self._wiring is None:
            raise UserError("the node is not configured: it moves nothing")
        self._wiring.interlocks.press()
        return "stopped; nothing moves until ~/rearm"

    def _take_over(self, engaged: bool) -> str:
        if self._wiring is None:
            raise UserError("the node is not configured")
        first_tick = self._wiring.takeover.engage(engaged)
        return f"{'the person' if engaged else 'the policy'} from tick {first_tick}"

    def _on_set_parameters(self, parameters: list[Any]) -> Any:
        from rcl_interfaces.msg import SetParametersResult

        ours = [parameter.name for parameter in parameters if parameter.name != "use_sim_time"]
        if self._session is not None and ours:
            return SetParametersResult(successful=False, reason=f"{ours[0]} is read by configure: clean up first")
        return SetParametersResult(successful=True)

    def _publish_diagnostics(self) -> None:
        wiring, session = self._wiring, self._session
        if session is None or wiring is None:
            return
        status = diagnose(
            self.get_fully_qualified_name(),
            wiring.robot,
            session.health(),
            wiring.listeners(),
            wiring.interlocks.values(),
            wiring.takeover.engaged,
            self._stopped_because,
            self._standing_by,
        )
        self._debounce(status, time.monotonic())
        header = Header(stamp=self.get_clock().now().to_msg())
        self._diagnostics.publish(DiagnosticArray(header=header, status=status))


def run_node(make_session: Callable[[Settings, OperatorRequests], Session]) -> int:
    """Run a policy node until a signal ends it; returns the exit code."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    log_to_stderr("%(name)s: %(message)s")
    return run_ros(lambda: PolicyNode(make_session), "policy_node")
