"""The launch that docs/ros2.md types, with the launch files and executables as a colcon build installs them.

``python -m benchmarks.ros2_launch JSON`` in a process with ROS, with the arguments of `Launch`; the last line of its
output is JSON. It listens: nothing is set that the page does not type.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from robot_io import ros2
from vla_rl.core.config_files import CONFIGS
from vla_rl.core.errors import UserError

_PACKAGE = Path(ros2.__file__).parent / "vla_rl_ros"
_OUTCOME = re.compile(r"seed \d+: (success|failure)")
_EPISODE_WITHIN_S, _STARTED_WITHIN_S = 20.0, 90.0


def install(folder: Path) -> Path:
    """Install the ament package below a folder, as colcon does; returns the prefix."""
    prefix, source = folder / "install", folder / "vla_rl_ros"
    shutil.copytree(_PACKAGE, source, dirs_exist_ok=True)
    asked = ["install", "--prefix", str(prefix), "--single-version-externally-managed", "--record", "installed.txt"]
    done = subprocess.run([sys.executable, "setup.py", "-q", *asked], cwd=source, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"the ament package does not install: {done.stderr[-2000:]}")
    return prefix


class Launch:
    """The launch of the page as a process.

    Args:
        prefix: where the ament package is installed.
        policy: argument of the launch file; so are the limits, as the page types them.
        episodes: after which it is ended.
    """

    def __init__(self, prefix: Path, policy: str, episodes: int) -> None:
        self._file = prefix / "share" / "vla_rl_ros" / "launch" / "simulation.launch.py"
        self._arguments = {"policy": policy, "limits": str(CONFIGS / "robots" / "tabletop.yaml")}
        self._episodes = episodes
        self._outcomes: list[str] = []
        self._done = threading.Event()
        self._statuses: dict[str, dict[str, str]] = {}

    def run(self) -> dict[str, Any]:
        """Run it to its end. Returns the cell ``episodes`` of `benchmarks.robot`."""
        import rclpy.executors
        from diagnostic_msgs.msg import DiagnosticArray
        from launch import LaunchDescription, LaunchService
        from launch.actions import IncludeLaunchDescription, RegisterEventHandler
        from launch.event_handlers import OnProcessIO
        from launch.launch_description_sources import PythonLaunchDescriptionSource

        context = rclpy.Context()
        rclpy.init(context=context)
        node = rclpy.create_node("observer", context=context)
        node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        executor = rclpy.executors.SingleThreadedExecutor(context=context)
        executor.add_node(node)
        spinning = threading.Thread(target=self._spin, args=(executor,))
        spinning.start()
        included = IncludeLaunchDescription(
            PythonLaunchDescriptionSource(str(self._file)), launch_arguments=self._arguments.items()
        )
        listening = RegisterEventHandler(OnProcessIO(on_stdout=self._on_output, on_stderr=self._on_output))
        service = LaunchService()
        service.include_launch_description(LaunchDescription([listening, included]))
        threading.Thread(target=self._end, args=(service,), daemon=True).start()
        service.run()
        rclpy.try_shutdown(context=context)
        spinning.join()
        if len(self._outcomes) < self._episodes:
            raise UserError(f"the launch ended after {len(self._outcomes)} of {self._episodes} attempts")
        latency = self._statuses["/env_robot: reading to command"]
        return {
            "episodes": {"episodes": len(self._outcomes), "successes": self._outcomes.count("success")},
            "loop": self._statuses["/policy_node: attempts"],
            "latency_ms": {name.removesuffix(" ms"): float(value) for name, value in latency.items()},
        }

    @staticmethod
    def _spin(executor: Any) -> None:
        from rclpy.executors import ExternalShutdownException

        with contextlib.suppress(ExternalShutdownException):
            executor.spin()

    def _end(self, service: Any) -> None:
        self._done.wait(_STARTED_WITHIN_S + self._episodes * _EPISODE_WITHIN_S)
        service.shutdown()

    def _on_output(self, event: Any) -> None:
        self._outcomes += _OUTCOME.findall(event.text.decode(errors="replace"))
        del self._outcomes[self._episodes :]
        if len(self._outcomes) == self._episodes:
            self._done.set()

    def _on_diagnostics(self, message: Any) -> None:
        if not self._done.is_set():
            for status in message.status:
                self._statuses[status.name] = {pair.key: pair.value for pair in status.values}


def main() -> int:
    """Run the launch."""
    config = json.loads(sys.argv[1])
    prefix = install(Path(config.pop("folder")))
    os.environ["AMENT_PREFIX_PATH"] = f"{prefix}:{os.environ.get('AMENT_PREFIX_PATH', '')}"
    packages = next(prefix.glob("lib/python*/site-packages"))
    os.environ["PYTHONPATH"] = f"{packages}:{os.environ.get('PYTHONPATH', '')}"
    print("\n" + json.dumps(Launch(prefix, **config).run()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
