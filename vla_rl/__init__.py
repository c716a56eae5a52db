"""vla-rl: robots that act in action chunks without waiting for their policy, and learn from every episode.

This package imports nothing heavy: the computer on a robot runs ``core``, ``execution``, ``robot_io`` and
``deploy_trt.runtime`` without torch.
"""

__version__ = "0.1.0"
