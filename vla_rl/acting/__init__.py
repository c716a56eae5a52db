"""Acting: a task or a robot, attempts on it, and the policy or person that decides what is sent."""
