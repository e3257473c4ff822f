"""Copies between host and device; flagperf_driver/measuring/defaults.py has all other keys."""

sizes = [1024 * 1024, 16 * 1024 * 1024, 256 * 1024 * 1024, 1024 * 1024 * 1024]  # bytes of a copy
