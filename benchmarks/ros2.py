"""The former name of `benchmarks.robot`: the same cells, table and keys."""

from benchmarks.robot import add_arguments, run, table

__all__ = ["add_arguments", "run", "table"]
