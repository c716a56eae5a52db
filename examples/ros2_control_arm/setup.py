"""The ament package: a robot description, its controllers, and a launch file."""

from pathlib import Path

from setuptools import setup

NAME = "ros2_control_arm"
FOLDERS = ("config", "launch", "urdf")

setup(
    name=NAME,
    version="0.1.0",
    packages=[],
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        *((f"share/{NAME}/{folder}", sorted(map(str, Path(folder).glob("*.*")))) for folder in FOLDERS),
    ],
    install_requires=["setuptools"],
    zip_safe=True,
)
