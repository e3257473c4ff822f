"""Tensors like those of a step: the same type, shape and layout, and its values, or such in the same range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_KEPT = 1 << 20
"""The most numbers of a tensor that are kept; of a larger one so many are looked at."""
NAMES = {
    getattr(torch, name): short
    for short, names in {
        "fp64": ("float64",), "fp32": ("float32",), "bf16": ("bfloat16",), "fp16": ("float16",),
        "fp8": ("float8_e4m3fn", "float8_e5m2"), "nvfp4": ("float4_e2m1fn_x2",),
    }.items()
    for name in names
    if hasattr(torch, name)
}  # fmt: skip
NVFP4 = getattr(torch, "float4_e2m1fn_x2", None)
"""The type with two numbers in a byte; each byte is valid, and torch converts none."""


@dataclass
class TensorSpec:
    """The layout of a tensor, and its values or their range."""

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
    values: Tensor | None = None
    """Those of the step: always of whole numbers and flags, which may be indices or counts, else of a small tensor."""

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
        """Keep the values of the example, or their range, and forget the example."""
        example, self.example = self.example, None
        if example is None or not self.extent or self.dtype is NVFP4:
            return
        memory = example.as_strided((self.extent,), (1,), example.storage_offset())
        if self.extent <= _KEPT or not self.dtype.is_floating_point:
            self.values = memory.to("cpu", copy=True)
            return
        sample = memory[:_KEPT].float()
        sample = sample[sample.isfinite()]
        if sample.numel():
            self.low, self.high = (float(value) for value in sample.aminmax())
            self.mean = float(sample.mean())
            self.deviation = float(sample.std(correction=0))

    def tensor(self) -> Tensor:
        """Return a new tensor with the values of the step, or with random numbers in their range."""
        if self.values is not None:
            memory = self.values.to(self.device, copy=True)
        elif self.dtype is NVFP4:
            memory = torch.randint(256, (self.extent,), dtype=torch.uint8, device=self.device).view(self.dtype)
        else:
            drawn = torch.empty(self.extent, device=self.device).normal_(self.mean, self.deviation)
            memory = drawn.clamp_(self.low, self.high).to(self.dtype)
        return memory.as_strided(self.shape, self.stride)
