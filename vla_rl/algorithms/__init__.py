"""Algorithms: how experience changes the policy. One file each, one protocol (`base.Algorithm`), chosen by name."""
