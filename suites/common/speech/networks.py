"""PyTorch layers over time: (N, T, C) in and out, the layout in which devices multiply matrices.

A convolution of torch over (N, C, T) has its input copied to that order and its output copied back. These layers have
the weights and the names of torch's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

FEW = 8
"""A device's matrix kernels read at least this number of channels at once: fewer would be filled up with zeros."""


class Convolution(nn.Conv1d):
    """A convolution over time."""

    def forward(self, x: Tensor) -> Tensor:
        (stride,), (padding,), (dilation,) = self.stride, self.padding, self.dilation
        return convolved(x, self.weight, self.bias, stride, padding, dilation, self.groups)


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve over time."""
    kernel = weight.shape[2]
    if (kernel, stride, padding, groups) == (1, 1, 0, 1):
        return functional.linear(x, weight[..., 0], bias)
    if weight.shape[1] < FEW and (dilation, groups) == (1, 1):
        windows = functional.pad(x, (0, 0, padding, padding)).unfold(1, kernel, stride)
        return functional.linear(windows.flatten(2), weight.flatten(1), bias)
    sizes: Any = [(1, stride), (0, padding), (1, dilation)]
    return over_time(functional.conv2d(image(x), weight[:, :, None], bias, *sizes, groups))


class BatchNorm(nn.BatchNorm2d):
    """Batch normalization of the channels."""

    def forward(self, x: Tensor) -> Tensor:
        return over_time(super().forward(image(x)))


class TimeNorm(nn.GroupNorm):
    """Normalizes each channel of each sample over time: as many groups as channels."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x.float(), 1, correction=0, keepdim=True)
        scale = (variance + self.eps).rsqrt() * self.weight
        return torch.addcmul(self.bias - mean * scale, x, scale)


def image(x: Tensor) -> Tensor:
    """Return a picture one pixel high, (N, C, 1, T), which is channels_last in memory."""
    return x.transpose(1, 2)[:, :, None]


def over_time(x: Tensor) -> Tensor:
    """Return a picture one pixel high as (N, T, C)."""
    return x[:, :, 0].transpose(1, 2)
