"""Sizes from a cache to the memory of a device; flagperf_driver/measuring/defaults.py has all other keys."""

sizes = [10_000, 100_000, 1_000_000, 10_000_000, 100_000_000]  # numbers in the vector
