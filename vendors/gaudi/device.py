"""Hooks where Gaudi's module of torch differs from others; README.md lists the sources."""

from typing import Any

import torch


def set_device(name: str, local_rank: int, local_world_size: int) -> torch.device:  # noqa: ARG001 - a hook's signature
    """Return the device without a number: a process opens one module, by LOCAL_RANK, and no other."""
    return torch.device(name)


def seed(device: Any, value: int) -> None:  # noqa: ARG001 - a hook's signature
    """Seed the device's generator, which torch.manual_seed does not know."""
    torch.hpu.random.manual_seed(value)
