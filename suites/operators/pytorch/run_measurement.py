"""Measure the operators of a training's step."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process
from flagperf_driver.pytorch.measuring import main

from measurement import Operators

if __name__ == "__main__":
    main(Operators)
