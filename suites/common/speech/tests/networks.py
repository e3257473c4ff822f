"""Checks of the layers over time: they compute what torch's layers compute over (N, C, T)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from common.speech.networks import BatchNorm, Convolution, TimeNorm
from torch import Tensor, nn

N, T = 3, 17


def compared(layer: nn.Module, torchs: nn.Module, channels: int) -> list[bool]:
    """Return whether outputs and gradients agree; both layers have the same weights by name."""
    torch.manual_seed(1)
    for parameter in torchs.parameters():
        nn.init.normal_(parameter)
    layer.load_state_dict(torchs.state_dict())
    audio = torch.randn(N, T, channels)
    results = []
    orders: list[Callable[[Tensor], Tensor]] = [lambda x: x, lambda x: x.transpose(1, 2)]
    for module, order in zip((layer, torchs), orders, strict=True):
        inputs = audio.clone().requires_grad_()
        output = order(module(order(inputs)))
        output.square().sum().backward()
        results.append([output, inputs.grad, *(parameter.grad for parameter in module.parameters())])
    return [torch.allclose(*pair, rtol=1e-4, atol=1e-4) for pair in zip(*results, strict=True)]


def check_convolutions_are_those_of_torch() -> None:
    for channels, options in (
        (16, {"kernel_size": 1}),
        (16, {"kernel_size": 5, "padding": 2}),
        (16, {"kernel_size": 3, "padding": 4, "dilation": 4}),
        (16, {"kernel_size": 4, "padding": 2, "groups": 4}),
        (16, {"kernel_size": 3, "stride": 2, "bias": False}),
        (1, {"kernel_size": 10, "stride": 5, "bias": False}),
        (2, {"kernel_size": 7, "padding": 3}),
        (2, {"kernel_size": 3, "padding": 2, "dilation": 2}),
    ):
        pair = (kind(channels, 8, **options) for kind in (Convolution, nn.Conv1d))  # type: ignore[arg-type]
        assert all(compared(*pair, channels)), options
    other = Convolution(16, 8, 3, padding=1), nn.Conv1d(16, 8, 3, padding=1, dilation=1, padding_mode="circular")
    assert not all(compared(*other, 16)), "the control: another convolution"


def check_norms_are_those_of_torch() -> None:
    assert all(compared(BatchNorm(6), nn.BatchNorm1d(6), 6))
    assert all(compared(TimeNorm(6), nn.GroupNorm(6, 6), 6))
    assert not all(compared(TimeNorm(6), nn.GroupNorm(3, 6), 6)), "the control: two channels in a group"
