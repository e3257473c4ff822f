"""Training with MindSpore: a suite passes its steps to ``main``. Only this package imports it."""

import os

# Set before mindspore is imported: errors only, in the rank's log, and no dump of a graph into the working directory.
os.environ.setdefault("GLOG_v", "3")
os.environ.setdefault("GLOG_logtostderr", "1")
if "FLAGPERF_LOG_DIR" in os.environ:
    os.environ.setdefault("MS_OM_PATH", os.environ["FLAGPERF_LOG_DIR"])

from flagperf_driver.mindspore.main import main
from flagperf_driver.mindspore.steps import MindSporeSteps as Steps
from flagperf_driver.training.steps import Context

__all__ = ["Context", "Steps", "main"]
