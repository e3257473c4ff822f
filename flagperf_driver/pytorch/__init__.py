"""Training with PyTorch: a suite gives its steps, ``main`` trains. Only here the driver imports torch."""

from flagperf_driver.pytorch.loop import main
from flagperf_driver.pytorch.steps import Context, Steps

__all__ = ["Context", "Steps", "main"]
