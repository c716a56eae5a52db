"""The ament package: executables, launch files and parameters for ROS; the code is the Python package vla-rl."""

from pathlib import Path

from setuptools import setup

NAME = "vla_rl_ros"

setup(
    name=NAME,
    version="0.1.0",
    packages=[],
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        *((f"share/{NAME}/{folder}", sorted(map(str, Path(folder).iterdir()))) for folder in ("launch", "config")),
    ],
    install_requires=["setuptools"],
    zip_safe=True,
    license="Apache-2.0",
    description="Vision-language-action policies on a robot",
    entry_points={
        "console_scripts": [
            "policy_node = vla_rl.runs.ros2_node:main",
            "env_robot = robot_io.ros2.env_node:main",
        ]
    },
)
