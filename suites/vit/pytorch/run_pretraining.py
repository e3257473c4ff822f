"""Train ViT-B/16 to a top-1 accuracy."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process

from dataclasses import replace

from common.images import steps
from flagperf_driver.pytorch import main

import model

if __name__ == "__main__":
    main(replace(steps.classification(model.create_model), compile_model=model.compile_model))
