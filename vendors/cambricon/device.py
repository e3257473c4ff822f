"""What PyTorch's own switches do not reach on an MLU; where it is documented is in README.md."""

from typing import Any

import torch

from flagperf_driver.pytorch import device as usual


def settings(device: torch.device, config: Any) -> None:
    """CNNL's TF32 has switches of its own, and convolutions compute in it unless they are told otherwise."""
    usual.settings(device, config)
    torch.backends.cnnl.allow_tf32 = torch.backends.mlu.matmul.allow_tf32 = config.precision != "fp32"
