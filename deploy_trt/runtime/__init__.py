"""What runs on the robot computer: a deployment folder behind the loop's `Policy` protocol.

Dependency law: numpy and `vla_rl.core`, and inside a backend the one library that it is named after. No torch.
"""
