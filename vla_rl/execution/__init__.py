"""Executing action chunks without ever waiting for the policy: tick-clock executor, strategies, control loop,
inference process, virtual clock.

Imports `vla_rl.core` only, so that the computer on a robot runs it without torch.
"""
