"""The largest whole numbers that are read from a file, a host or a log."""

LARGEST_INT = (1 << 63) - 1
"""The readers of our files, orjson and pandas among them, keep whole numbers in 64 bits."""
LARGEST_COUNT = 1 << 53
"""Every whole number up to this one is a float, too."""
