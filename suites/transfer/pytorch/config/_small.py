"""Copies in the memory of a CPU, which has no device: about five seconds."""

sizes = [1024 * 1024, 64 * 1024 * 1024]
point_warmup_s = 0.1
point_least_s = 0.4
point_most_s = 1.0
