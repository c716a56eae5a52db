"""The node's parameters: one table that declares them, reads them, and fills the page of the documentation.

Types and bounds are declared to ROS, so `ros2 param describe` shows them and a value outside is refused when it is set.
"""

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robot_io.description import joint_units
from robot_io.ros2.outputs import KINDS, OutputSettings
from vla_rl.core.dimensions import Dimensions, Pair
from vla_rl.core.errors import ConfigError, did_you_mean

Value = bool | int | float | str | list[str]


@dataclass(frozen=True)
class Parameter:
    """One declared parameter.

    Attributes:
        name: with ``{name}`` for the camera or the output where there is one parameter for each.
        default: its value unless it is set; its type is the parameter's.
        description: with the unit.
        low, high: bounds of a number, both included.
        one_of: the allowed texts.
    """

    name: str
    default: Value
    description: str
    low: float = 0.0
    high: float = 0.0
    one_of: tuple[str, ...] = ()

    def named(self, name: str) -> "Parameter":
        """Return the parameter of one camera or output."""
        default = self.default.format(name=name) if isinstance(self.default, str) else self.default
        described = self.description.format(name=name)
        return Parameter(self.name.format(name=name), default, described, self.low, self.high, self.one_of)


PARAMETERS = (
    Parameter("policy", "", "Folder of a run, of a policy version, or of a deployment"),
    Parameter("watch", "", "Folder of version_NNNN policies (a run's policies/): newer ones act as they appear"),
    Parameter("limits", "", "YAML file of the safety gate's limits, in the units of the joints; required"),
    Parameter("robot_description", "", "URDF, as XML or as a file: limits may tighten its own, never loosen them"),
    Parameter("robot_description_topic", "", "std_msgs/String from which it is taken instead; empty: none"),
    Parameter("strategy", "", "Execution strategy; empty: the best asynchronous one that the policy supports"),
    Parameter("overrides", [], "section.key=value settings of the sections execution and gate"),
    Parameter("task", "", "The task sentence"),
    Parameter("robot_name", "ros2", "Name under which the episodes are stored"),
    Parameter("simulated", False, "The robot is a simulation: episodes are stored as such"),
    Parameter("store", "", "Folder of the episode store; empty: nothing is recorded"),
    Parameter("joints", [], "Joint names; the order of the state for a policy without names; required"),
    Parameter("cameras", [], "Camera names that the policy knows"),
    Parameter("outputs", ["arm"], "Names of the command outputs, in the order of the policy's action"),
    Parameter("image_size", 0, "Pictures are brought to this height and width, pixels; 0: the policy's", 0, 4096),
    Parameter("state_latency_ms", 0.0, "From the measurement of the joints to their stamp, ms", 0.0, 1000.0),
    Parameter("control_hz", 0.0, "Rate of the control loop, Hz; 0: the policy's", 0.0, 1000.0),
    Parameter("any_rate", False, "A control_hz that is not the policy's is wanted: the robot moves as much faster"),
    Parameter("commands_per_tick", 1, "Commands sent in one tick of the control loop", 1, 50),
    Parameter("synchronize", True, "Take of every stream what was captured nearest to the oldest of the newest"),
    Parameter("header_stamps", True, "Header stamps are capture times; false: the time of arrival is"),
    Parameter("max_future_ms", 50.0, "A stamp further in the future than this is not believed, ms", 0.0, 10000.0),
    Parameter("max_clock_jump_ms", 500.0, "A larger jump of the clock stops the robot, ms", 1.0, 60000.0),
    Parameter("clock_timeout_s", 5.0, "With use_sim_time: /clock silent for so long ends the attempt, s", 0.1, 600.0),
    Parameter("detect_frozen_images", True, "A camera that repeats its frame counts as silent (not for simulations)"),
    Parameter("estop_topic", "", "std_msgs/Bool: true, or no publisher, stops the robot; empty: none"),
    Parameter(
        "estop_timeout_ms",
        0.0,
        "Longest silence of the emergency stop, ms; 0: only its publisher must be there",
        0.0,
        10000.0,
    ),
    Parameter("deadman_topic", "", "std_msgs/Bool: must repeat true while the policy acts; empty: none"),
    Parameter("deadman_timeout_ms", 300.0, "Longest silence of a held dead-man, ms", 10.0, 10000.0),
    Parameter("heartbeat_topic", "", "std_msgs/Bool: changes with every tick that is not stopped; empty: none"),
    Parameter("controllers", [], "Controllers and hardware that must be active by the controller manager"),
    Parameter("controller_manager", "/controller_manager", "Node whose topic activity says so"),
    Parameter("stream_timeout_s", 10.0, "An attempt waits for fresh streams at most so long, s", 0.1, 600.0),
    Parameter("auto_start", False, "Begin the next attempt by itself; false: on the service start"),
    Parameter("attempts", 0, "Attempts after which the node stands by; 0: no end", 0, 1000000),
    Parameter("max_attempt_s", 60.0, "An attempt is cut after this time, s", 0.1, 36000.0),
    Parameter(
        "label_timeout_s", 30.0, "How long an attempt without an outcome waits for a person's label, s", 0.0, 3600.0
    ),
    Parameter("reset_service", "", "A std_srvs/Trigger that brings the world to its start; empty: a person does"),
    Parameter("reset_timeout_s", 10.0, "How long that may take, s", 0.1, 600.0),
    Parameter("seed", 0, "Of the first attempt; the next one has the next seed", 0, 2**31 - 1),
    Parameter(
        "takeover_mode",
        "relative",
        "Takeover commands move the robot relatively or are targets",
        one_of=("relative", "absolute"),
    ),
    Parameter(
        "takeover_timeout_ms",
        300.0,
        "In a takeover, an older command is not followed: the robot holds, ms",
        1.0,
        10000.0,
    ),
    Parameter("realtime_priority", 0, "SCHED_FIFO priority of the control thread; 0: none", 0, 99),
    Parameter("diagnostics_hz", 2.0, "Rate of /diagnostics, Hz", 0.1, 50.0),
    Parameter("live_view", "", "Rerun: a file.rrd, a viewer's address, or 'spawn'; empty: off"),
)

CAMERA_PARAMETERS = (
    Parameter("camera.{name}.topic", "{name}/image_raw", "Image topic of camera {name}"),
    Parameter("camera.{name}.type", "raw", "sensor_msgs/Image or CompressedImage", one_of=("raw", "compressed")),
    Parameter("camera.{name}.latency_ms", 0.0, "From the exposure of camera {name} to its stamp, ms", 0.0, 1000.0),
)

OUTPUT_PARAMETERS = (
    Parameter("output.{name}.type", "trajectory", "What output {name} sends: see Outputs", one_of=tuple(KINDS)),
    Parameter("output.{name}.topic", "", "Topic or action of output {name}; empty: the usual one of its type"),
    Parameter("output.{name}.joints", [], "Joints that output {name} commands; empty: all. Of a twist: six names"),
    Parameter(
        "output.{name}.points",
        1,
        "Trajectories: number of control periods after which the smooth curve of commands ends",
        1,
        10,
    ),
    Parameter("output.{name}.frame", "", "Frame of a twist or a pose"),
    Parameter("output.{name}.tolerance", 0.0, "Gripper: smaller changes of the command are not sent", 0.0, 1000.0),
    Parameter("output.{name}.max_effort", 0.0, "Gripper: of its goals; 0: the controller's own", 0.0, 10000.0),
)


@dataclass(frozen=True)
class CameraSettings:
    """One camera, see `CAMERA_PARAMETERS`."""

    name: str
    topic: str
    type: str
    latency_ms: float


class Settings:
    """The values of all parameters, as attributes of their names; checked together.

    Args:
        values: name -> value, as ROS gives them.

    Attributes:
        description: the robot's URDF, as XML or as a file; the node takes it from the topic.

    Raises:
        ConfigError: for a value that cannot work, naming the parameter.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)
        self.description: str = self["robot_description"]
        self.cameras = [self._camera(name) for name in self["cameras"]]
        self.joints = tuple(self["joints"])
        self.outputs = [self._output(name) for name in self["outputs"]]
        self.command_joints = tuple(joint for output in self.outputs for joint in output.joints)
        self._check()

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    @property
    def dimensions(self) -> Pair:
        """Names and units of state and action: of the parameters, with the units of the description's joints."""
        units = joint_units(self.description) if self.description else {}
        for output in self.outputs:
            units |= dict(zip(output.joints, KINDS[output.type].units, strict=False))
        state, action = (tuple(units.get(name, "") for name in names) for names in (self.joints, self.command_joints))
        return Dimensions(self.joints, state), Dimensions(self.command_joints, action)

    def path(self, name: str) -> Path | None:
        """Return a parameter that names a file or a folder; None if it is empty."""
        return Path(self[name]).expanduser() if self[name] else None

    def _camera(self, name: str) -> CameraSettings:
        return CameraSettings(name, *(self[parameter.named(name).name] for parameter in CAMERA_PARAMETERS))

    def _output(self, name: str) -> OutputSettings:
        named = [parameter.named(name).name for parameter in OUTPUT_PARAMETERS]
        values = {parameter.rpartition(".")[2]: self[parameter] for parameter in named}
        if (wrong := values["type"]) not in KINDS:
            raise ConfigError(f"output.{name}.type {wrong!r} is no kind of output.{did_you_mean(wrong, KINDS)}")
        kind = KINDS[values["type"]]
        values["joints"] = tuple(values["joints"]) or self.joints
        values["topic"] = values["topic"] or kind.topic.format(name=name)
        if kind.size not in (0, len(values["joints"])):
            raise ConfigError(
                f"output.{name}.type {values['type']} takes {kind.size} numbers, output.{name}.joints names "
                f"{len(values['joints'])}: {', '.join(values['joints'])}"
            )
        return OutputSettings(name, **values)

    def _check(self) -> None:
        if not self.joints:
            raise ConfigError(
                "parameter joints is empty; list the joint names; their order counts for a policy without names"
            )
        if twice := [joint for joint in self.joints if self.joints.count(joint) > 1]:
            raise ConfigError(f"parameter joints names {twice[0]!r} twice; every number of the state is another joint")
        _check_topics("output", self.outputs)
        _check_topics("camera", self.cameras)
        unmeasured = {axis for output in self.outputs if KINDS[output.type].steps for axis in output.joints}
        for joint in self.command_joints:
            if joint not in self.joints and joint not in unmeasured:
                raise ConfigError(f"an output commands joint {joint!r}.{did_you_mean(joint, self.joints)}")
        if len(set(self.command_joints)) != len(self.command_joints) or not self.command_joints:
            raise ConfigError(f"the outputs command {list(self.command_joints)}; every joint must stand there once")
        if self["policy"] == "":
            raise ConfigError("parameter policy is empty; name the folder of a run, a policy or a deployment")


def _check_topics(what: str, parts: Sequence[CameraSettings | OutputSettings]) -> None:
    for one, other in itertools.combinations(parts, 2):
        if one.topic == other.topic:
            raise ConfigError(
                f"{what}s {one.name} and {other.name} have the same topic {one.topic}; give each its own: "
                f"{what}.{other.name}.topic"
            )


def all_parameters(cameras: Sequence[str], outputs: Sequence[str]) -> Iterator[Parameter]:
    """Every parameter of a node with these cameras and outputs."""
    yield from PARAMETERS
    yield from (parameter.named(camera) for camera in cameras for parameter in CAMERA_PARAMETERS)
    yield from (parameter.named(output) for output in outputs for parameter in OUTPUT_PARAMETERS)


def declare(node: Any, parameters: Sequence[Parameter]) -> None:
    """Declare parameters with type, bounds and description.

    Raises:
        ConfigError: if a value given from outside (launch file, command line) does not fit.
    """
    import rclpy.exceptions

    for parameter in parameters:
        # An empty list has no element type in Python; the type alone declares the parameter.
        default = rclpy.Parameter.Type.STRING_ARRAY if parameter.default == [] else parameter.default
        try:
            node.declare_parameter(parameter.name, default, _descriptor(parameter))
        except (
            rclpy.exceptions.InvalidParameterTypeException,
            rclpy.exceptions.InvalidParameterValueException,
        ) as error:
            raise ConfigError(f"parameter {parameter.name}: {error}") from error


def value_of(node: Any, name: str) -> Any:
    """Return the present value of a declared parameter; an unset list is empty."""
    from rclpy.exceptions import ParameterUninitializedException

    try:
        return node.get_parameter(name).value
    except ParameterUninitializedException:
        return []


def declare_all(node: Any) -> None:
    """Declare every parameter of the policy node; cameras and outputs are named by two of them."""
    declare(node, PARAMETERS)
    names = [value_of(node, name) for name in ("cameras", "outputs")]
    declare(node, list(all_parameters(*names))[len(PARAMETERS) :])


def read_settings(node: Any) -> Settings:
    """Return the present values of the declared parameters; errors as of `Settings`."""
    names = [value_of(node, name) for name in ("cameras", "outputs")]
    return Settings({parameter.name: value_of(node, parameter.name) for parameter in all_parameters(*names)})


def markdown_table() -> str:
    """Return the parameters for the documentation."""
    rows = ["| parameter | type | default | bounds | meaning |", "|---|---|---|---|---|"]
    for parameter in all_parameters(["NAME"], ["NAME"]):
        bounds = f"{parameter.low:g} to {parameter.high:g}" if parameter.high > parameter.low else ""
        bounds = " or ".join(parameter.one_of) or bounds
        kind = "string[]" if isinstance(parameter.default, list) else _TYPE_NAMES[type(parameter.default)]
        default = "" if parameter.default in ("", []) else f"`{parameter.default}`"
        rows.append(f"| `{parameter.name}` | {kind} | {default} | {bounds} | {parameter.description} |")
    return "\n".join(rows)


_TYPE_NAMES = {bool: "bool", int: "integer", float: "double", str: "string"}


def _descriptor(parameter: Parameter) -> Any:
    from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor

    descriptor = ParameterDescriptor(description=parameter.description)
    if parameter.one_of:
        descriptor.additional_constraints = f"one of {', '.join(parameter.one_of)}"
    if parameter.high > parameter.low and isinstance(parameter.default, int):
        descriptor.integer_range = [IntegerRange(from_value=int(parameter.low), to_value=int(parameter.high))]
    elif parameter.high > parameter.low:
        descriptor.floating_point_range = [
            FloatingPointRange(from_value=float(parameter.low), to_value=float(parameter.high))
        ]
    return descriptor


def main() -> int:
    """``python -m robot_io.ros2.parameters PAGE`` renews the table in a page, between its two marks."""
    page = Path(sys.argv[1])
    head, begin, rest = page.read_text().partition("<!-- parameters -->\n")
    _, end, tail = rest.partition("<!-- end of parameters -->")
    if not end:
        raise ConfigError(f"{page} has no marks of the table of parameters")
    page.write_text(f"{head}{begin}{markdown_table()}\n{end}{tail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
