"""What PyTorch's own switches do not reach on an NPU; where it is documented is in README.md."""

from typing import Any

import torch

from flagperf_driver.pytorch import device as usual


def settings(device: torch.device, config: Any) -> None:
    """HF32 is Ascend's TF32, and convolutions compute in it unless they are told otherwise."""
    usual.settings(device, config)
    torch.npu.conv.allow_hf32 = torch.npu.matmul.allow_hf32 = config.precision != "fp32"


def grad_scaler(device: torch.device) -> Any:  # noqa: ARG001 - a hook's signature
    """A 910A gives the largest number where others give infinity: only torch_npu's own scaler sees that."""
    return torch.npu.amp.GradScaler()
