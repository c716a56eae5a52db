"""Known benchmarks as tasks of vla-rl. Each suite is an extra of this package, see docs/known_benchmarks.md."""
