"""Tensors like those of a step: the same type, shape and layout, and random values in the same range."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_SAMPLE = 1 << 20
"""The most elements of a tensor whose values are looked at, except of whole numbers, which may be indices."""
_LARGEST = 2.0**52
NAMES = {
    getattr(torch, name): short
    for short, names in {
        "fp64": ("float64",), "fp32": ("float32",), "bf16": ("bfloat16",), "fp16": ("float16",),
        "fp8": ("float8_e4m3fn", "float8_e5m2"),
    }.items()
    for name in names
    if hasattr(torch, name)
}  # fmt: skip
_SIGNED = {
    getattr(torch, f"u{name}"): getattr(torch, name)
    for name in ("int16", "int32", "int64")
    if hasattr(torch, f"u{name}")
}
"""Whole numbers without a sign, for which torch has few functions: they are handled as numbers with a sign."""


@dataclass
class TensorSpec:
    """The layout of a tensor, and the range of its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: torch.device
    example: Tensor | None
    """Until its values have been observed."""
    low: float = 0.0
    high: float = 1.0
    mean: float = 0.5
    deviation: float = 0.25

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        return cls(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.device, tensor.detach())

    @property
    def layout(self) -> tuple[Any, ...]:
        return self.dtype, self.shape, self.stride, self.device.type

    @property
    def extent(self) -> int:
        """The elements of memory from the first to the last one."""
        if not all(self.shape):
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def bytes(self) -> int:
        return self.extent * self.dtype.itemsize

    def __str__(self) -> str:
        """Return for example fp32[8,128]; of another layout than row by row with the strides: fp32[8,128]/[1,8]."""
        name = NAMES.get(self.dtype, str(self.dtype).removeprefix("torch."))
        text = f"{name}[{','.join(map(str, self.shape))}]"
        usual = torch.empty(self.shape, device="meta").stride()
        return text if self.stride == usual else f"{text}/[{','.join(map(str, self.stride))}]"

    def observe(self) -> None:
        """Look at the values of the example, and forget it."""
        example, self.example = self.example, None
        if example is None or not self.extent or self.dtype is torch.bool or self.dtype.is_complex:
            return
        memory = example.as_strided((self.extent,), (1,), example.storage_offset())
        if not self.dtype.is_floating_point:
            limits = memory.view(_SIGNED.get(self.dtype, self.dtype)).aminmax()
            self.low, self.high = (min(max(float(value), -_LARGEST), _LARGEST) for value in limits)
            return
        sample = memory[:_SAMPLE].float()
        sample = sample[sample.isfinite()]
        if sample.numel():
            self.low, self.high = (float(value) for value in sample.aminmax())
            self.mean = float(sample.mean())
            self.deviation = float(sample.std(correction=0))

    def tensor(self) -> Tensor:
        """Return a new tensor with random values."""
        if self.dtype.is_floating_point:
            drawn = torch.empty(self.extent, device=self.device).normal_(self.mean, max(self.deviation, 0.0))
            memory = drawn.clamp_(self.low, self.high).to(self.dtype)
        elif self.dtype is torch.bool:
            memory = torch.rand(self.extent, device=self.device) < 0.5
        elif self.dtype.is_complex:
            memory = torch.randn(self.extent, dtype=self.dtype, device=self.device)
        else:
            memory = torch.empty(self.extent, dtype=_SIGNED.get(self.dtype, self.dtype), device=self.device)
            memory = memory.random_(math.floor(self.low), math.floor(self.high) + 1).view(self.dtype)
        return memory.as_strided(self.shape, self.stride)
