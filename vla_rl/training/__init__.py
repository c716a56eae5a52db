"""Practice rounds, checkpoints and rollouts. Knows robots, simulators and world models only through protocols."""
