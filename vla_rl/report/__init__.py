"""Metric sinks, statistics, and the one-file HTML report of a run. Knows `vla_rl.core` and `vla_rl.data`; no torch."""
