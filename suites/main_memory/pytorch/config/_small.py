"""Arrays for a core of a CPU: about ten seconds. A larger array is added if the last cache is larger."""

sizes = [256 * 1024, 128 * 1024 * 1024]
capacity_most = 1024 * 1024 * 1024
point_warmup_s = 0.1
point_least_s = 0.4
point_most_s = 1.0
