"""Robots, policies and processes that stand in for real ones; tests and benchmarks share them."""
