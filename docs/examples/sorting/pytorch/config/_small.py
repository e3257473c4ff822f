"""Small vectors, for a core of a CPU."""

sizes = [10_000, 100_000]
point_least_s = 0.5
point_most_s = 1.0
