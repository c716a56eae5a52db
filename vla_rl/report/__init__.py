"""Metric sinks, statistics, the HTML report of a run, and pictures. Knows core, data, credit, advantage; no torch."""
