"""Baselines that the benchmarks compare with: algorithms and execution strategies, installed as a plug-in."""
