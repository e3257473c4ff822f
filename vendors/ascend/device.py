"""Settings of an NPU that PyTorch's own switches do not change; README.md lists the sources."""

from typing import Any

import torch

from flagperf_driver.pytorch import device as usual


def settings(device: torch.device, config: Any) -> None:
    """Turn HF32, Ascend's TF32, off for fp32: convolutions use it by default."""
    usual.settings(device, config)
    torch.npu.conv.allow_hf32 = torch.npu.matmul.allow_hf32 = config.precision != "fp32"


def grad_scaler(device: torch.device) -> Any:  # noqa: ARG001 - a hook's signature
    """Return torch_npu's scaler: on overflow a 910A returns the largest number, which other scalers do not detect."""
    return torch.npu.amp.GradScaler()
