"""Give the model the weights of PyTorch's suite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from checkpoint import load_weights, with_standard_names
from mindspore import nn


def load(model: nn.Cell, file: Path) -> None:
    """Load the file, which has the names of PyTorch's state dict."""
    with np.load(file) as stored:
        load_weights(model, with_standard_names(stored), file)
