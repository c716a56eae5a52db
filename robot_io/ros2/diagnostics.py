"""What /diagnostics says: a status each for attempts, streams, commands, policy and gate, with the reason of a stop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robot_io.ros2.robot import Ros2Robot

Level = bytes
OK, WARN, ERROR = b"\x00", b"\x01", b"\x02"


@dataclass(frozen=True)
class Health:
    """How policy, gate and loop are, as the session knows; an empty text is no trouble.

    Attributes:
        policy_error: Why no plans come.
        gate_reasons: What the gate objects to at this moment.
        latched: The gate's stop has latched.
        values: Further numbers and texts, by the name of the status ("loop", "policy", "gate").
    """

    policy_error: str = ""
    gate_reasons: str = ""
    latched: bool = False
    values: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


class StatusDebouncer:
    """Keeps a report on a part, by the ending of its name, until the part has been better for ``for_s``.

    A reading that is late now and then is one warning, not ten a minute.
    """

    def __init__(self, for_s: float = 2.0) -> None:
        self._for_s = for_s
        self._worst: dict[str, tuple[float, Level, str]] = {}

    def __call__(self, statuses: Sequence[Any], now_s: float) -> None:
        """Change levels and messages in place; ``now_s`` on any steady clock."""
        for status in statuses:
            if not status.name.endswith(("streams", "commands", "stop inputs")):
                continue
            since_s, level, message = self._worst.get(status.name, (now_s, OK, ""))
            if status.level >= level or now_s - since_s >= self._for_s:
                self._worst[status.name] = now_s, status.level, status.message
            else:
                status.level, status.message = level, message


def diagnose(
    node_name: str,
    robot: "Ros2Robot",
    health: Health,
    listeners: Mapping[str, int],
    inputs: Mapping[str, str],
    taken_over: bool,
    stopped_because: str,
    standing_by: str,
) -> list[Any]:
    """Return the list of diagnostic_msgs/DiagnosticStatus.

    Args:
        node_name: With its namespace: several robots share /diagnostics.
        robot, health: The robot whose streams are looked at, and the session.
        listeners: Output -> how many subscribe to it.
        inputs: What the inputs that may stop the robot say.
        taken_over: A person has the commands.
        stopped_because, standing_by: Why the robot was stopped, why no attempt runs; empty if not so.
    """
    acting = "a person acts" if taken_over else "the policy acts"
    ages = {f"{stream} age ms": f"{age_ms:.1f}" for stream, age_ms in robot.ages_ms().items()}
    deaf = [output for output, count in listeners.items() if count == 0]
    why, open_interlocks = robot.why(), "; ".join(robot.interlocks.values())
    attempt = (ERROR, f"stopped: {stopped_because}") if stopped_because else (OK, standing_by or acting)
    values = health.values
    commands = f"no listener on output {', '.join(deaf)}" if deaf else "every output has a listener"
    gate = ERROR if health.latched else WARN if health.gate_reasons else OK
    about_gate = ("latched stop: " if health.latched else "") + (health.gate_reasons or "passes actions")
    entries: list[tuple[str, Level, str, Mapping[str, object]]] = [
        ("attempts", *attempt, {"standing by": standing_by, "taken over": taken_over, **values.get("loop", {})}),
        ("streams", ERROR if why else OK, why or "all streams are fresh", ages),
        ("commands", ERROR if deaf else OK, commands, listeners),
        ("stop inputs", ERROR if open_interlocks else OK, open_interlocks or "nobody objects", inputs),
        ("policy", ERROR if health.policy_error else OK, health.policy_error or "plans", values.get("policy", {})),
        ("gate", gate, about_gate, values.get("gate", {})),
    ]
    return [_status(f"{node_name}: {name}", level, message, values) for name, level, message, values in entries]


def _status(name: str, level: Level, message: str, values: Mapping[str, object]) -> Any:
    from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

    pairs = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
    return DiagnosticStatus(name=name, level=level, message=message, hardware_id="vla_rl", values=pairs)
