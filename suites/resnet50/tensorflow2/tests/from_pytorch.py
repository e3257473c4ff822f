"""Give the model the weights of PyTorch's suite."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

PARTS = {
    "kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias", "moving_mean": "running_mean",
    "moving_variance": "running_var",
}  # fmt: skip
"""Keras' names of a layer's variables, and PyTorch's."""


def load(model: keras.Model, file: Path) -> None:
    """Load the file, which has the names of PyTorch's state dict."""
    with np.load(file) as stored:
        for variable in model.variables:
            layer, name = variable.path.split("/")[-2:]
            value = stored[f"{layer}.{PARTS[name]}"]
            if name == "kernel":  # (outputs, inputs, height, width) or (outputs, inputs)
                value = value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
            assert variable.shape == value.shape, variable.path
            variable.assign(value)
