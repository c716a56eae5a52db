"""Pictures of a run for the README and docs/method.md, by matplotlib."""
