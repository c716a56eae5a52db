"""The table of parameters is what the node declares, what the page shows, and what `rollout --robot ros2` takes."""

import json
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import yaml

import robot_io.ros2
from robot_io.ros2.outputs import KINDS
from robot_io.ros2.parameters import PARAMETERS, Settings, all_parameters, markdown_table
from tests.fakes.ros2_scripts import ros_or_skip, said_by
from vla_rl.acting.robots.ros2 import settings_from
from vla_rl.core.errors import ConfigError

PACKAGE = Path(robot_io.ros2.__file__).parent / "vla_rl_ros"
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "ros2_parameters.md"
JOINTS = ["a", "b", "c"]


def settings(**values: Any) -> Settings:
    defaults = {parameter.name: parameter.default for parameter in all_parameters([], ["arm"])}
    return Settings({**defaults, "policy": "runs/demo", "joints": JOINTS, **values})


def test_the_page_shows_the_parameters_of_the_code() -> None:
    assert markdown_table() in PAGE.read_text(), f"run: python -m robot_io.ros2.parameters {PAGE}"


def test_every_parameter_is_within_its_own_bounds() -> None:
    for parameter in all_parameters(["front"], ["arm"]):
        if parameter.high > parameter.low:
            assert parameter.low <= float(parameter.default) <= parameter.high  # type: ignore[arg-type]
        if parameter.one_of:
            assert parameter.default in parameter.one_of
        assert "{" not in parameter.name + parameter.description


def test_outputs_share_the_joints() -> None:
    found = settings(outputs=["arm"])
    assert found.command_joints == ("a", "b", "c")
    with pytest.raises(ConfigError, match="commands joint 'd'"):
        settings(**{"output.arm.joints": ["d"]})
    with pytest.raises(ConfigError, match="must stand there once"):
        settings(**{"output.arm.joints": ["a", "a"]})
    with pytest.raises(ConfigError, match="joints is empty"):
        settings(joints=[])
    with pytest.raises(ConfigError, match="policy is empty"):
        settings(policy="")


def test_options_of_rollout_are_the_parameters() -> None:
    found = settings_from({"joints": JOINTS, "cameras": ["front"], "camera": {"front": {"latency_ms": 30}}})
    assert found.cameras[0].latency_ms == 30.0
    assert found.cameras[0].topic == "front/image_raw"
    with pytest.raises(ConfigError, match="Did you mean 'max_attempt_s'"):
        settings_from({"joints": JOINTS, "max_attempts_s": 3})


@pytest.mark.parametrize("file", ["example.yaml", "simulation.yaml"])
def test_the_parameter_files_of_the_package_fit(file: str) -> None:
    (content,) = yaml.safe_load((PACKAGE / "config" / file).read_text()).values()
    assert settings_from(content["ros__parameters"]).command_joints


def test_the_ament_package_is_whole() -> None:
    package = ElementTree.parse(PACKAGE / "package.xml").getroot()
    name = package.findtext("name")
    assert (PACKAGE / "resource" / str(name)).exists()
    assert package.findtext("export/build_type") == "ament_python"
    needed = {element.text for element in package.iter("exec_depend")}
    imported = {"rclpy", "sensor_msgs", "std_msgs", "std_srvs", "trajectory_msgs", "diagnostic_msgs", "rosgraph_msgs"}
    imported |= {"controller_manager_msgs"}
    imported |= {kind.interface.partition(".")[0] for kind in KINDS.values()}
    assert imported <= needed
    assert f"script_dir=$base/lib/{name}" in (PACKAGE / "setup.cfg").read_text()
    setup = (PACKAGE / "setup.py").read_text()
    for entry in ("vla_rl.acting.ros2_node:main", "robot_io.ros2.env_node:main"):
        module, _, function = entry.partition(":")
        source = Path(__file__).parents[3] / f"{module.replace('.', '/')}.py"
        assert entry in setup
        assert f"\ndef {function}(" in source.read_text()


def test_the_layout_shows_what_the_node_has() -> None:
    content = json.loads((PACKAGE / "config" / "foxglove.json").read_text())

    def panels(part: Any) -> list[str]:
        return [part] if isinstance(part, str) else panels(part["first"]) + panels(part["second"])

    assert sorted(panels(content["layout"])) == sorted(content["configById"])
    source = (PACKAGE.parent / "node.py").read_text() + (PACKAGE.parent / "wiring.py").read_text()
    for name, panel in content["configById"].items():
        if name.startswith("CallService"):
            service = panel["serviceName"].removeprefix("/policy_node/")
            assert f'"{service}"' in source, f"the node has no service {service}"
    shown = settings(cameras=["front", "wrist"], **camera_defaults("front", "wrist"))
    pictures = [panel["imageMode"]["imageTopic"] for panel in content["configById"].values() if "imageMode" in panel]
    assert pictures == [f"/{camera.topic}" for camera in shown.cameras]
    commanded = content["configById"]["Plot!commands"]["paths"][0]["value"]
    assert commanded.startswith(f"/{shown.outputs[0].topic}.points[0].positions[")


def camera_defaults(*cameras: str) -> dict[str, Any]:
    return {parameter.name: parameter.default for parameter in list(all_parameters(cameras, []))[len(PARAMETERS) :]}


RECORD = """
import importlib.util, json, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("record", sys.argv[1])
record = importlib.util.module_from_spec(spec)
spec.loader.exec_module(record)
from launch import LaunchContext
context = LaunchContext()
context.launch_configurations.update(params=sys.argv[2], namespace="left", out="/bags/monday")
entities = record.generate_launch_description().entities
(process,) = entities[-1].execute(context)
command = ["".join(part.perform(context) for part in word) for word in process.cmd]
print(json.dumps([command, record.topics_of(Path(sys.argv[2]), "")]))
"""


@pytest.mark.parametrize("file", ["example.yaml", "simulation.yaml"])
def test_the_recording_takes_every_topic_of_the_parameters(file: str, tmp_path: Path) -> None:
    environment = ros_or_skip()
    path = tmp_path / file
    (content,) = yaml.safe_load((PACKAGE / "config" / file).read_text()).values()
    values = {**content["ros__parameters"], "estop_topic": "/estop", "deadman_topic": "pedal"}
    path.write_text(yaml.safe_dump({"/**": {"ros__parameters": values}}))
    launch_file = str(PACKAGE / "launch" / "record.launch.py")
    recorded, topics = said_by(RECORD, launch_file, str(path), environment=environment)
    expected = settings_from(values)
    for topic in [part.topic for part in (*expected.cameras, *expected.outputs)] + ["joint_states", "pedal"]:
        assert f"/{topic.lstrip('/')}" in topics
        assert f"/left/{topic}" in recorded
    assert "/estop" in recorded
    assert recorded[:7] == ["ros2", "bag", "record", "-s", "mcap", "-o", "/bags/monday"]


@pytest.mark.parametrize("file", ["Dockerfile", "Dockerfile.jetson"])
def test_the_images_copy_what_is_there_and_build_this_package(file: str) -> None:
    """Whether they build is for a machine with Docker; that they name what exists is for here."""
    text = (PACKAGE / "docker" / file).read_text()
    root = Path(__file__).parents[3]
    assert f"vla-rl/{PACKAGE.relative_to(root)} " in text
    copied = [line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    needed = {*project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"], "configs", "pyproject.toml"}
    assert needed | {project["project"]["readme"], *project["project"]["license-files"]} <= set(copied)
    assert all((root / name).exists() for name in copied)
    assert "ros" in project["project"]["optional-dependencies"]
