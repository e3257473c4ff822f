"""The training loop of all frameworks: it needs Python alone, and drives a framework's ``Trainer``."""

from flagperf_driver.training.loop import Training
from flagperf_driver.training.trainer import Trainer

__all__ = ["Trainer", "Training"]
