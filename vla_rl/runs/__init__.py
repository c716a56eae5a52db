"""Where the parts are put together into runs: configuration, workers, robots, imagination. Knows everything below it."""
