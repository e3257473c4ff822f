"""Train FLUX.1 from random weights."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process

from flagperf_driver.pytorch import main

import steps

if __name__ == "__main__":
    main(steps.STEPS)
