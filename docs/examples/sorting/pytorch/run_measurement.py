"""Measure how fast a device sorts."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process
from flagperf_driver.pytorch.measuring import main

from measurement import Sorting

if __name__ == "__main__":
    main(Sorting)
