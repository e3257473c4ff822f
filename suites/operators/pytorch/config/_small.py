"""The training at its small scale, on one core per rank: about 20 seconds."""

compare_s = 5.0
compiled = False
point_warmup_s = 0.01
point_least_s = 0.04
point_most_s = 0.1
