"""The table of parameters is what the node declares, what the page shows, and what `rollout --robot ros2` takes."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import yaml

import robot_io.ros2
from robot_io.ros2.outputs import KINDS
from robot_io.ros2.parameters import Settings, all_parameters, markdown_table
from vla_rl.core.errors import ConfigError
from vla_rl.runs.robots.ros2 import settings_from

PACKAGE = Path(robot_io.ros2.__file__).parent / "vla_rl_ros"
PAGE = Path(__file__).parents[3] / "docs" / "ros2.md"
JOINTS = ["a", "b", "c"]


def settings(**values: Any) -> Settings:
    defaults = {parameter.name: parameter.default for parameter in all_parameters([], ["arm"])}
    return Settings({**defaults, "policy": "runs/demo", "joints": JOINTS, **values})


def test_the_page_shows_the_parameters_of_the_code() -> None:
    assert markdown_table() in PAGE.read_text(), "run: python -m robot_io.ros2.parameters docs/ros2.md"


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
    imported |= {kind.interface.partition(".")[0] for kind in KINDS.values()}
    assert imported <= needed
    assert f"script_dir=$base/lib/{name}" in (PACKAGE / "setup.cfg").read_text()
    setup = (PACKAGE / "setup.py").read_text()
    for entry in ("vla_rl.runs.ros2_node:main", "robot_io.ros2.env_node:main"):
        module, _, function = entry.partition(":")
        source = Path(__file__).parents[3] / f"{module.replace('.', '/')}.py"
        assert entry in setup
        assert f"\ndef {function}(" in source.read_text()
