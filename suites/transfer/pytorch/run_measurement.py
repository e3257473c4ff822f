"""Measure copies between the host and its device."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process
from flagperf_driver.pytorch.measuring import main

from measurement import Transfer

if __name__ == "__main__":
    main(Transfer)
