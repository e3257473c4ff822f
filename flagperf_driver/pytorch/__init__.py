"""Training with PyTorch: a suite gives its steps, ``main`` trains. Only here the driver imports torch."""

import os

# Before torch is imported: compiled code is kept for later rounds, and would lie in the round's TMPDIR otherwise.
if "FLAGPERF_COMPILED" in os.environ:
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.environ["FLAGPERF_COMPILED"] + "/torchinductor")

from flagperf_driver.pytorch.loop import main
from flagperf_driver.pytorch.steps import Context, Steps

__all__ = ["Context", "Steps", "main"]
