"""Eight cards, to the target. FlagPerf publishes -5.7461."""

num_workers = 8
