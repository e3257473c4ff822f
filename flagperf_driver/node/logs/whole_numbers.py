"""The largest whole numbers that are accepted from a file, a host or a log."""

LARGEST_INT = (1 << 63) - 1
"""Readers of the stored files, such as orjson and pandas, keep whole numbers in 64 bits."""
LARGEST_COUNT = 1 << 53
"""A float can hold every whole number up to this number exactly."""
