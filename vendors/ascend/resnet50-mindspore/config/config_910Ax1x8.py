"""Eight devices, to the target. FlagPerf's batch of 32 and learning rate of 0.1 are the suite's values."""

max_samples = 133_116_700
num_workers = 8
