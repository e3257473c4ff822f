"""Train Mask R-CNN to mean average precisions of boxes and masks."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process

from common.detection import steps
from flagperf_driver.pytorch import main

import model

if __name__ == "__main__":
    main(steps.detection(model.create_model))
