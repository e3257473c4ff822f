"""Checks of the matrix products: which are measured, their results, their work, and their time."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import checking
import measurement
import numpy as np
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


def answer(multiply: Callable[..., torch.Tensor], precision: str, size: int = 64) -> None:
    """Run a point whose products torch.mm and torch._int_mm compute this way, and check it."""
    made = computation()
    point = Point("", {"precision": precision, "size": size})
    with mock.patch.object(torch, "mm", multiply), mock.patch.object(torch, "_int_mm", multiply):
        made.prepare(point)
        made.run(200)
    made.check(point)


def check_products_of_random_matrices_are_right() -> None:
    for precision in ("fp64", "fp32", "tf32", "bf16", "fp16", "int8"):
        answer(torch._int_mm if precision == "int8" else torch.mm, precision)
    answer(torch.mm, "fp8")
    answer(torch.mm, "bf16", 512)
    values = measurement.Numbers([1], torch.bfloat16).at(np.arange(10_000))
    assert len(np.unique(values)) > 500, "data that repeat draw less power"


def check_less_than_the_whole_product_is_found() -> None:
    mm, calls = torch.mm, itertools.count()

    def lower(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        product = mm(left.bfloat16(), right.bfloat16()).float()
        return product if out is None else out.copy_(product)

    def of(rows: int) -> Callable[..., torch.Tensor]:
        def part(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
            if out is None:
                return mm(left, right)
            torch.matmul(left[:rows], right, out=out[:rows])
            return out

        return part

    def every_16th(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return mm(left, right, out=out) if out is None or next(calls) % 16 == 0 else out

    def zeros(*_: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return torch.zeros(64, 64) if out is None else out

    def empty(*_: torch.Tensor, **__: torch.Tensor) -> torch.Tensor:
        return torch.empty(0)

    def smaller(left: torch.Tensor, right: torch.Tensor, **_: torch.Tensor) -> torch.Tensor:
        return mm(left[:32, :32], right[:32, :32])

    answer(of(64), "fp32")
    for multiply in (of(32), lower, every_16th, zeros, empty, smaller):
        checking.raises(RuntimeError, functools.partial(answer, multiply, "fp32"), "wrong answer of iteration")


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
