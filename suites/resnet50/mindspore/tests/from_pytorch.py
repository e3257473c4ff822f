"""Give the model the weights of PyTorch's suite."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn

PARTS = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
"""MindSpore's names of a batch norm's parameters, and PyTorch's."""


def load(model: nn.Cell, file: Path) -> None:
    """Load the file, which has the names of PyTorch's state dict."""
    with np.load(file) as stored:
        for parameter in model.get_parameters():
            layer, _, name = parameter.name.rpartition(".")
            value = stored[f"{layer}.{PARTS.get(name, name)}"]
            assert parameter.shape == value.shape, parameter.name
            parameter.set_data(ms.Tensor(value))
