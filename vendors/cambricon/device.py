"""Settings of an MLU that PyTorch's own switches do not change; README.md lists the sources."""

from typing import Any

import torch

from flagperf_driver.pytorch import device as usual


def settings(device: torch.device, config: Any) -> None:
    """Turn TF32 off for fp32 with CNNL's own switches: convolutions use it by default."""
    usual.settings(device, config)
    torch.backends.cnnl.allow_tf32 = torch.backends.mlu.matmul.allow_tf32 = config.precision != "fp32"
