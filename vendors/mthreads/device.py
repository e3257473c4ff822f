"""What PyTorch's own switches do not reach on a MUSA device; where it is documented is in README.md."""

from typing import Any

import torch

from flagperf_driver.pytorch import device as usual


def settings(device: torch.device, config: Any) -> None:
    """MuDNN's TF32 has a switch of its own."""
    usual.settings(device, config)
    torch.backends.mudnn.allow_tf32 = config.precision != "fp32"
