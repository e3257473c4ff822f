"""Measure the memory of a device: its bandwidth and how much can be allocated."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process
from flagperf_driver.pytorch.measuring import main

from measurement import MainMemory

if __name__ == "__main__":
    main(MainMemory)
