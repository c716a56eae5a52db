"""Imagination: the learned world model and its gymnasium environment. May import vla_rl.core, vla_rl.data and layers of
vla_rl.policies; policies, robots and simulators come in through protocols.
"""
