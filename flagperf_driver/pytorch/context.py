"""The context of PyTorch's steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from flagperf_driver.pytorch.hooks import Hooks
from flagperf_driver.training import steps


@dataclass(frozen=True)
class PyTorchContext(steps.Context):
    """The context that is passed to every step."""

    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable
    hooks: Hooks = field(default_factory=Hooks)
    """Device functions: the defaults or the vendor's."""
