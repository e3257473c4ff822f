"""Checks of the matrix products: which are measured, their results, their work, and their time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from unittest import mock

import checking
import measurement
import torch

from flagperf_driver.measuring.measurement import Point
from flagperf_driver.pytorch import distributed
from tests.suites import bare_loop

WITHIN = 0.05


def computation(peaks: tuple[str, ...] = (), **settings: Any) -> measurement.Computation:
    ctx = checking.context("reference", sizes=[256, 512], **settings)
    return measurement.Computation(replace(ctx, peaks={f"peak_tflops.{name}": 1e12 for name in peaks}))


def precisions(**settings: Any) -> list[str]:
    return list(dict.fromkeys(point.values["precision"] for point in computation(**settings).points()))


def check_the_declared_precisions_are_measured_and_fp32_always() -> None:
    assert precisions(peaks=("int8", "bf16")) == ["fp32", "bf16", "int8"]
    assert precisions() == ["fp32", "bf16", "fp16"]
    assert precisions(peaks=("bf16",), precisions=["fp64"]) == ["fp32", "fp64"]
    checking.raises(ValueError, lambda: computation(precisions=["fp42"]), "'fp42'", "choose from fp64")


def check_a_precision_that_torch_cannot_compute_is_an_error_only_if_it_is_asked_for() -> None:
    measurement.TYPES["new"] = "float42"
    try:
        assert precisions(peaks=("new", "bf16")) == ["fp32", "bf16"]
        checking.raises(ValueError, lambda: computation(precisions=["new"]), "cannot multiply in new on cpu", "float42")
    finally:
        del measurement.TYPES["new"]


def check_a_precision_that_another_rank_cannot_compute_is_not_measured() -> None:
    other = [float(precision == "bf16") for precision in measurement.TYPES]
    with mock.patch.object(distributed, "maximum", lambda own, _: [max(both) for both in zip(own, other, strict=True)]):
        assert precisions() == ["fp32", "fp16"]


def check_the_work_is_two_operations_for_each_product_of_elements() -> None:
    points = list(computation(peaks=("bf16",), sustained_s=5.0, sustained_size=128).points())
    made = computation()
    assert [point.name for point in points] == [
        "fp32 256", "fp32 512", "bf16 256", "bf16 512", "bf16 128 for 5 s",
    ]  # fmt: skip
    assert made.work(points[0]) == {"matmul_fp32": 33_554_432.0}
    assert made.work(points[4]) == {"matmul_sustained": 4_194_304.0}
    assert points[4].seconds == 5.0
    assert not [point for point in computation(sustained_s=0).points() if point.seconds]


def check_products_of_random_matrices_are_right() -> None:
    made = computation()
    for precision, tolerance in (("fp64", 1e-12), ("fp32", 1e-5), ("bf16", 1e-2), ("int8", 0.0), ("fp8", 1e-2)):
        product: Any = made._product(precision, 64)
        left, right = (matrix.double() for matrix in product.args)
        expected = left @ right
        error = ((product().double() - expected).abs().max() / expected.abs().max()).item()
        assert error <= tolerance, (precision, error)
        assert left.unique().numel() > 50, f"{precision}: data that repeat draw less power"
        assert not torch.equal(left, right), precision


def check_a_product_takes_as_long_as_in_a_bare_loop() -> None:
    left, right = torch.randn(512, 512), torch.randn(512, 512)
    out = torch.mm(left, right)
    point = Point("fp32 512", {"precision": "fp32", "size": 512})

    def bare() -> object:
        return torch.mm(left, right, out=out)

    ratio = bare_loop.ratio(computation(), point, bare, WITHIN)
    assert abs(ratio - 1) <= WITHIN, ratio

    class Slower(measurement.Computation):
        def run(self, iterations: int) -> None:
            super().run(math.ceil(iterations * 1.25))  # the control

    slower = Slower(checking.context("reference"))
    assert bare_loop.ratio(slower, point, bare, WITHIN) > 1 + WITHIN
