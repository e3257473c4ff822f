"""Layers whose products are computed in float8, mxfp8 or nvfp4; weights, gradients and sums keep their types.

The three products of a layer are that of the forward pass, and those of the gradients of inputs and weights. Both
factors of each are rounded:

- ``float8``: each tensor has a scale of its own, so that its largest value is float8's; values are e4m3.
- ``mxfp8``: blocks of 32 values along the sum have a scale that is a power of two (e8m0); values are e4m3.
- ``nvfp4``: blocks of 16 values have a scale in e4m3, and a tensor one in fp32; values are e2m1: 0, 0.5, 1, 1.5, 2, 3,
  4, 6. Blocks of weights are 16x16, so that they are rounded alike in both directions. Gradients are rounded at random,
  right in the mean. Before the product of the weights' gradient, both factors are mixed by a Hadamard matrix along the
  sum, which spreads outliers and leaves the product as it is.

On accelerators torchao has the kernels. A CPU computes with the rounded values in fp32: float8 by torchao, the others
here, by the same rules, so that a training on a CPU shows whether a format reaches the target, but no speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from flagperf_driver.pytorch import Context

FORMATS = ("float8", "mxfp8", "nvfp4")
MX_BLOCK, NV_BLOCK = 32, 16
_E4M3, _E2M1 = 448.0, 6.0
"""The largest values."""
_SMALLEST_SCALE = 2.0**-6
"""The smallest normal e4m3."""
SIGNS = (1, -1, -1, 1, -1, 1, 1, 1, -1, -1, 1, -1, 1, 1, -1, -1)
"""A fixed draw, which makes the mixture of a tensor with regular values random; all ranks need the same."""


def convert(ctx: Context, blocks: Iterable[nn.Module]) -> None:
    """Compute the products of the blocks' layers in the config's precision, if it is one of ``FORMATS``."""
    name, on_cpu = ctx.config.precision, ctx.device.type == "cpu"
    if name not in FORMATS:
        return
    if name != "float8" and ctx.parallel.tensor > 1:
        raise ValueError(f"precision = {name!r} computes whole layers; set parallel without tensor, or use float8")
    with _torchao(name):
        if name == "float8":
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training

            for block in blocks:
                convert_to_float8_training(block, config=Float8LinearConfig(emulate=on_cpu))
            return
        product = partial(_Emulated.apply, EMULATED[name]) if on_cpu else _kernels(name)
    for parent in [module for block in blocks for module in block.modules()]:
        for key, layer in parent.named_children():
            if type(layer) is nn.Linear:
                setattr(parent, key, LowPrecisionLinear(layer, product))


@contextmanager
def _torchao(name: str) -> Iterator[None]:
    """Explain what to do if torchao or a part of it is missing."""
    try:
        yield
    except ImportError as error:
        raise ValueError(
            f"precision = {name!r} needs torchao ({error}); install torchao, for example by a line torchao==0.18.0 in "
            "the vendor's config/requirements.txt, or use another precision"
        ) from error


class LowPrecisionLinear(nn.Linear):
    """A layer with the parameters of another one, and its own product of inputs and weights."""

    def __init__(self, layer: nn.Linear, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self._product = product

    def forward(self, x: Tensor) -> Tensor:
        kind, weight = x.device.type, self.weight
        if torch.is_autocast_enabled(kind):  # which does not know this product
            x, weight = (one.to(torch.get_autocast_dtype(kind)) for one in (x, weight))
        y = self._product(x.flatten(0, -2), weight).unflatten(0, x.shape[:-1])
        return y if self.bias is None else y + self.bias.to(y.dtype)


# -- accelerators


def _kernels(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return torchao's product; its layers would ask for parameters of their own."""
    if torch.version.hip is not None:
        raise ValueError(f"precision = {name!r}: torchao 0.18.0 trains in it on NVIDIA's chips only; use float8")
    if name == "nvfp4":
        from torchao.prototype.moe_training.nvfp4_training.nvfp4_linear import nvfp4_linear

        return partial(nvfp4_linear, sign_vector=SIGNS)
    from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    return partial(
        _to_mxfp8_then_scaled_mm,
        kernel_preference=KernelPreference.AUTO,
        scale_calculation_mode=ScaleCalculationMode.RCEIL,
    )


# -- emulation


@dataclass(frozen=True)
class Emulation:
    """The rounding of each factor, along its last dimension, which is summed over."""

    inputs: Callable[[Tensor], Tensor]
    weights: Callable[[Tensor], Tensor]
    gradients: Callable[[Tensor], Tensor]
    mix: Callable[[Tensor], Tensor] = lambda values: values
    """Applied to both factors of the weights' gradient."""


class _Emulated(torch.autograd.Function):
    """The three products of a layer with the rounded values of their factors, summed in fp32."""

    @staticmethod
    def forward(ctx: Any, emulation: Emulation, x: Tensor, weight: Tensor) -> Tensor:
        ctx.emulation = emulation
        ctx.save_for_backward(x, weight)
        return _multiply(emulation.inputs(x), emulation.weights(weight)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        (x, weight), own = ctx.saved_tensors, ctx.emulation
        of_x = _multiply(own.gradients(gradient), own.weights(weight.t()))
        of_weight = _multiply(own.gradients(own.mix(gradient.t())), own.inputs(own.mix(x.t())))
        return None, of_x.to(x.dtype), of_weight.to(weight.dtype)


def _multiply(left: Tensor, right: Tensor) -> Tensor:
    with torch.autocast(left.device.type, enabled=False):
        return F.linear(left, right)


def mxfp8(values: Tensor) -> Tensor:
    """Return the values rounded to mxfp8, in fp32: the scale is the smallest power of two that loses no largest one."""
    blocks = _blocks(values, MX_BLOCK)
    exponent = (blocks.abs().amax(-1, keepdim=True) / _E4M3).log2().ceil().clamp(-127, 127)
    scaled = (blocks * torch.exp2(-exponent)).clamp(-_E4M3, _E4M3).to(torch.float8_e4m3fn)
    return (scaled.float() * torch.exp2(exponent)).view(values.shape)


def nvfp4(values: Tensor, *, square: bool = False, at_random: bool = False) -> Tensor:
    """Return the values rounded to nvfp4, in fp32; ``square`` shares a scale with the same columns of 16 rows."""
    blocks = _blocks(values, NV_BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True)
    of_tensor = largest.amax() / (_E4M3 * _E2M1)
    of_tensor = torch.where(of_tensor == 0, 1.0, of_tensor)
    if square:
        rows = largest.unflatten(0, (_whole(len(values), NV_BLOCK), NV_BLOCK))
        largest = rows.amax(1, keepdim=True).expand_as(rows).flatten(0, 1)
    scale = (largest / _E2M1 / of_tensor).clamp(_SMALLEST_SCALE, _E4M3).to(torch.float8_e4m3fn).float()
    scaled = (blocks * (1 / of_tensor / scale)).clamp(-_E2M1, _E2M1)
    return (e2m1(scaled, at_random=at_random) * (scale * of_tensor)).view(values.shape)


def e2m1(values: Tensor, *, at_random: bool = False) -> Tensor:
    """Return values from -6 to 6 rounded to e2m1, to the nearest, of two equally near to the even one, or at random."""
    # The bits of the exponent alone are the power of two below; below 1 steps are as large as above it.
    power = (values.abs().clamp(min=1).view(torch.int32) & 0x7F800000).view(torch.float32)
    steps = values / (power / 2)
    whole = (steps + torch.rand_like(steps)).floor() if at_random else steps.round()
    return whole * (power / 2)


def mixed(values: Tensor) -> Tensor:
    """Return the values with each 16 along the last dimension multiplied by a Hadamard matrix, with random signs."""
    matrix = torch.ones(1, 1)
    for _ in range(4):
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    matrix = matrix * torch.tensor(SIGNS)[:, None] / 4
    with torch.autocast(values.device.type, enabled=False):
        return (_blocks(values, NV_BLOCK) @ matrix).to(values.dtype).view(values.shape)


def _blocks(values: Tensor, size: int) -> Tensor:
    """Return a matrix with its last dimension divided into blocks, in fp32."""
    return values.float().unflatten(-1, (_whole(values.shape[-1], size), size)).contiguous()


def _whole(length: int, size: int) -> int:
    if length % size:
        raise ValueError(f"a product sums over {length} values, which are not blocks of {size}; use another precision")
    return length // size


EMULATED = {
    "mxfp8": Emulation(mxfp8, mxfp8, mxfp8),
    "nvfp4": Emulation(nvfp4, partial(nvfp4, square=True), partial(nvfp4, at_random=True), mixed),
}
