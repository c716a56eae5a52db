"""Known benchmarks behind the interface of our own tasks.

Their packages are optional: the extra is called `benchmarks`.
"""
