"""Training with TensorFlow 2 and Keras 3: a suite passes its steps to ``main``. Only this package imports them."""

import os

# Set before tensorflow is imported: no messages of its start, and only as much of a device's memory as tensors need.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from flagperf_driver.tensorflow2.main import main
from flagperf_driver.tensorflow2.steps import TensorFlowSteps as Steps
from flagperf_driver.training.steps import Context

__all__ = ["Context", "Steps", "main"]
