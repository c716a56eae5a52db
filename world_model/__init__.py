"""Imagination: learned video world models as gymnasium environments. May import vla_rl.core, vla_rl.data and
vla_rl.advantage; policies, robots and simulators come in through protocols.
"""
