"""Give the model the weights of PyTorch's suite."""

from __future__ import annotations

from pathlib import Path

from checkpoint import load_checkpoint
from paddle import nn


def load(model: nn.Layer, file: Path) -> None:
    """Load the file, which has the names of PyTorch's state dict."""
    load_checkpoint(model, file)
