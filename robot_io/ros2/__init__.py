"""The ROS 2 side: a lifecycle node, a robot made of topics, and any gymnasium environment as a ROS 2 robot.

Written for ROS 2 Jazzy; `rclpy` and the message packages come from the sourced ROS 2, never from an index of Python
packages. They are imported where they are used, so that parameters and conversions can be read and tested without.

Threads of a node: callbacks of rclpy run in one thread, attempts in another, the control thread. The
two meet in `Streams`, `RosTime`, `OperatorRequests` and `TopicTakeover` only, each with its own lock.
"""
