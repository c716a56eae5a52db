"""A policy that cannot be trained here, behind a small network that imitates it: its proxy."""

from vla_rl.policies.proxy.model import ProxiedPolicy, ProxyConfig

__all__ = ["ProxiedPolicy", "ProxyConfig"]
