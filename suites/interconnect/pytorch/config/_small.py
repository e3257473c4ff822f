"""Fewer sizes, for cores of a CPU: less than a minute."""

sizes = [1024, 65536, 1048576, 16777216]
pair_bytes = 4194304
point_least_s = 0.5
point_most_s = 1.5
