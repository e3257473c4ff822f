"""Training with Paddle: a suite passes its steps to ``main``. Only this package of the driver imports paddle."""

from flagperf_driver.paddle.main import main
from flagperf_driver.paddle.steps import PaddleSteps as Steps
from flagperf_driver.training.steps import Context

__all__ = ["Context", "Steps", "main"]
