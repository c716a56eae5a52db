"""The ament package: executables, launch files and parameters for ROS; the code is the Python package vla-rl.

What package.xml states (version, description, license) is read from it. Its version is that of this package's own
interface: it changes when executables, launch files or parameters do.
"""

from pathlib import Path
from xml.etree import ElementTree

from setuptools import setup

NAME = "vla_rl_ros"
MANIFEST = ElementTree.parse("package.xml")

setup(
    name=NAME,
    version=MANIFEST.findtext("version"),
    packages=[],
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        *((f"share/{NAME}/{folder}", sorted(map(str, Path(folder).glob("*.*")))) for folder in ("launch", "config")),
    ],
    install_requires=["setuptools"],
    zip_safe=True,
    license=MANIFEST.findtext("license"),
    description=MANIFEST.findtext("description"),
    entry_points={
        "console_scripts": [
            "policy_node = vla_rl.acting.ros2_node:main",
            "env_robot = robot_io.ros2.env_node:main",
        ]
    },
)
