"""Where the parts are put together into runs: configuration, workers, robots, imagination. Knows all parts."""
