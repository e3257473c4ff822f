"""Checks of the formats of products: their values, as torchao rounds them, and what cannot compute in them."""

from __future__ import annotations

import importlib.util
import sys
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

import checking
import torch
from common.language import low_precision
from common.language.low_precision import EMULATED, e2m1, mixed, mxfp8, nvfp4
from torch import Tensor, nn


def drawn(rows: int, columns: int) -> Tensor:
    """Return rows of very different sizes, one of zeros."""
    sizes = torch.logspace(-2, 2, rows)[:, None]
    sizes[3] = 0
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)) * sizes


def converted(precision: str, *, device: str = "cpu", tensor: int = 1) -> nn.Sequential:
    block = nn.Sequential(nn.Linear(64, 32, bias=False))
    config, parallel = SimpleNamespace(precision=precision), SimpleNamespace(tensor=tensor)
    ctx: Any = SimpleNamespace(config=config, parallel=parallel, device=torch.device(device))
    low_precision.convert(ctx, [block])
    return block


def check_values_are_rounded_to_the_nearest_of_the_format() -> None:
    given, even = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1], [0, 1, 1, 2, 2, 4, 4, 6]
    assert e2m1(torch.tensor(given)).tolist() == even
    assert e2m1(-torch.tensor(given)).tolist() == [-one for one in even]
    block = torch.tensor([1000.0, 3.3, 0.01, *[0.0] * 29])[None]  # the scale is 4: 1000 / 4 is at most 448
    assert mxfp8(block)[0, :3].tolist() == [1024, 3.25, 2**-7]
    block = torch.tensor([6 * 448.0, 3.3 * 448, *[0.0] * 14, 6.0, 3.3, *[0.0] * 14])[None]
    assert nvfp4(block)[0, [0, 1, 16, 17]].tolist() == [6 * 448, 3 * 448, 6, 3]


def check_random_rounding_is_right_in_the_mean() -> None:
    for value in (2.3, -2.3, 0.1):
        rounded = e2m1(torch.full((20_000,), value), at_random=True)
        assert len(rounded.unique()) == 2
        assert abs(float(rounded.mean()) - value) < 0.02
    assert float(e2m1(torch.tensor(2.3))) == 2


def check_square_blocks_are_rounded_alike_in_both_directions() -> None:
    values = drawn(64, 128)
    assert torch.equal(nvfp4(values, square=True).t(), nvfp4(values.t(), square=True))
    assert not torch.equal(nvfp4(values).t(), nvfp4(values.t()))


def check_mixing_spreads_outliers_and_leaves_a_product_as_it_is() -> None:
    values = drawn(64, 128)
    values[7, 5] = 1e4
    assert torch.allclose(mixed(values) @ mixed(values).t(), values @ values.t(), rtol=1e-4, atol=1e-1)
    assert mixed(values)[7, :16].abs().max() < 0.3 * values[7].max()


def check_values_and_products_are_torchaos() -> None:
    if importlib.util.find_spec("torchao") is None:
        raise unittest.SkipTest("torchao is not installed: pip install torchao==0.18.0")
    from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm as product
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    for kind in (torch.float32, torch.bfloat16):
        values = drawn(64, 128).to(kind)
        scale = per_tensor_amax_to_scale(values.abs().max())
        theirs = NVFP4Tensor.to_nvfp4(values, per_tensor_scale=scale).dequantize(torch.float32)
        assert torch.equal(nvfp4(values), theirs)
    x, weight, gradient = (drawn(*shape) for shape in ((64, 128), (32, 128), (64, 32)))
    results = []
    for multiply in (
        lambda *two: product(*two, KernelPreference.EMULATED, ScaleCalculationMode.RCEIL),
        lambda *two: low_precision._Emulated.apply(EMULATED["mxfp8"], *two),
    ):
        leaves = [one.clone().requires_grad_() for one in (x, weight)]
        y = multiply(*leaves)
        y.backward(gradient)
        results.append([y.detach(), *(leaf.grad for leaf in leaves)])
    assert all(map(torch.equal, *results))


def check_gradients_are_near_the_exact_ones_and_those_of_rounded_values() -> None:
    x = torch.randn(128, 64, generator=torch.Generator().manual_seed(2))
    for name, most in (("mxfp8", 0.05), ("nvfp4", 0.25)):
        layer = converted(name)[0]
        exact, leaf = x.clone().requires_grad_(), x.clone().requires_grad_()
        (exact @ layer.weight.t()).square().sum().backward()
        of_exact, layer.weight.grad = layer.weight.grad, None
        layer(leaf).square().sum().backward()
        for ours, theirs in ((leaf.grad, exact.grad), (layer.weight.grad, of_exact)):
            assert 0 < float((ours - theirs).norm() / theirs.norm()) < most, name
        assert layer(x.bfloat16()).dtype == torch.bfloat16


def check_what_cannot_compute_in_a_format_is_named_with_the_fix() -> None:
    with mock.patch.dict(sys.modules, {"torchao": None, "torchao.float8": None}):
        checking.raises(ValueError, lambda: converted("float8"), "torchao==0.18.0", "requirements.txt", "'float8'")
    with mock.patch.object(torch.version, "hip", "7.2"):
        checking.raises(ValueError, lambda: converted("mxfp8", device="cuda"), "NVIDIA's chips only", "use float8")
    checking.raises(ValueError, lambda: converted("nvfp4", tensor=2), "set parallel without tensor")
    checking.raises(ValueError, lambda: mxfp8(torch.ones(2, 48)), "48 values", "blocks of 32")
    assert type(converted("bf16")[0]) is nn.Linear
