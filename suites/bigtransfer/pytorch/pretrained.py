"""Load the published initial weights, Google's NumPy file ``BiT-M-R152x2.npz``."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
from timm.models.resnetv2 import ResNetV2
from torch import nn

HEAD = "resnet/head/conv2d/bias"
DAMAGED = (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile, zlib.error)


class BigTransferCheckpointError(ValueError):
    """The file does not contain the initial weights of this model."""


def load(net: ResNetV2, path: Path, classes: int) -> None:
    """Load all weights except those of the head, which become zero; the file's head must have so many classes."""
    if not path.is_file():
        raise BigTransferCheckpointError(
            f"{path}: file not found; init_checkpoint is a path relative to the data directory"
        )
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = len(arrays[HEAD])
        net.load_pretrained(str(path))
    except (KeyError, RuntimeError) as error:
        raise BigTransferCheckpointError(f"{path} does not fit the model: {error.args[0]}") from error
    except DAMAGED as error:
        raise BigTransferCheckpointError(
            f"{path}: cannot be read as a NumPy .npz file: {error}; copy the file again"
        ) from error
    if found != classes:
        raise BigTransferCheckpointError(
            f"{path}: the head has {found} classes; expected {classes}, as before any fine-tuning"
        )
    nn.init.zeros_(net.head.fc.weight)
    nn.init.zeros_(net.head.fc.bias)
