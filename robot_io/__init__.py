"""Robots: safety gate, takeover, recorder, mock robot, robots of ROS 2, environments as robots.

The way of a command, in the control thread (`vla_rl.execution.loop`):

- checked: `gate.py` (watchdogs, latched stop), with `joint_monitor.py` (what the joints measure) and
  `ros2/interlocks.py` (emergency stop, dead-man, other publishers, controllers)
- clamped: `motion_limits.py` (joint limits, workspace, self-collision, rate), with `smoothing.py` (jerk)
- sent: `write` of the robot: `env_robot.py`, `mock_robot.py`, `ros2/robot.py` (`ros2/outputs.py`)
- stopped: the gate latches and brakes, the loop calls `stop` of the robot, a person calls `SafetyGate.rearm`
"""
