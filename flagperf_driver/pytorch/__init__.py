"""Training with PyTorch: a suite passes its steps to ``main``. Only this package of the driver imports torch."""

import os

# Set before torch is imported: later rounds reuse compiled code, but the default folder in TMPDIR is the round's own.
if "XDG_CACHE_HOME" in os.environ:
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.environ["XDG_CACHE_HOME"] + "/torchinductor")

from flagperf_driver.pytorch.context import PyTorchContext as Context
from flagperf_driver.pytorch.main import main
from flagperf_driver.pytorch.steps import PyTorchSteps as Steps

__all__ = ["Context", "Steps", "main"]
