"""Dense matrix products of random data, by precision and size, checked by rows of the products times a vector."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from common.measuring.answers import SHIFTS, Array, Numbers, Samples, signs

from flagperf_driver.driver import Config
from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.pytorch import Context, distributed

TYPES = {
    "fp64": "float64", "fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16",
    "fp8": "float8_e4m3fn", "int8": "int8",
}  # fmt: skip
"""The type of the matrices by precision."""
USUAL = ("fp32", "bf16", "fp16")
"""Measured on a chip without a declared peak."""
SUSTAINED = ("bf16", "fp16", "tf32", "fp32")
"""What a training computes in; the first of them that is measured is sustained."""
_TRIAL = 64
_ALLOWED = {"fp64": 1e-10, "fp32": 1e-4, "tf32": 5e-3, "bf16": 2e-2, "fp16": 2e-2, "fp8": 5e-2, "int8": 0.0}
"""The largest error of a row, as a share of it: above the rounding of its precision, below that of a lower one."""


class Computation(Measurement):
    """2 n^3 operations of a product of two n x n matrices into an existing matrix."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._product: Product | None = None
        self._precisions = self._on_every_rank([precision for precision in self._asked() if self._works(precision)])

    def points(self) -> Iterator[Point]:
        config = self._ctx.config
        for precision in self._precisions:
            for size in sorted(config.sizes):
                yield Point(f"{precision} {size}", {"precision": precision, "size": size}, series=precision)
        sustained = next((precision for precision in SUSTAINED if precision in self._precisions), None)
        if config.sustained_s and sustained:
            size = config.sustained_size
            name = f"{sustained} {size} for {config.sustained_s:g} s"
            yield Point(name, {"precision": sustained, "size": size}, seconds=config.sustained_s)

    def work(self, point: Point) -> Mapping[str, float]:
        figure = "sustained" if point.seconds else point.values["precision"]
        return {f"matmul_{figure}": 2.0 * point.values["size"] ** 3}

    def prepare(self, point: Point) -> None:
        self._product = Product(self._ctx, point.values["precision"], point.values["size"])

    def run(self, iterations: int) -> None:
        assert self._product is not None
        multiply = self._product.multiply
        for _ in range(iterations):
            multiply()

    def check(self, point: Point) -> None:
        assert self._product is not None
        self._product.check(f"rank {self._ctx.rank}: matrix product {point.name}")

    def release(self) -> None:
        self._product = None

    def _asked(self) -> list[str]:
        """Return the precisions of the config, else those whose peak the chip declares; fp32 always, and first."""
        declared = [precision for precision in TYPES if f"peak_tflops.{precision}" in self._ctx.peaks]
        chosen = self._ctx.config.precisions or declared or USUAL
        if unknown := [precision for precision in chosen if precision not in TYPES]:
            raise ValueError(f"precisions={chosen!r}: unknown precision {unknown[0]!r}; choose from {', '.join(TYPES)}")
        return list(dict.fromkeys(["fp32", *chosen]))

    def _works(self, precision: str) -> bool:
        """Return True if the device multiplies in this precision; raise an error if the config asks for it."""
        try:
            Product(self._ctx, precision, _TRIAL).multiply()
            self._ctx.hooks.synchronize(self._ctx.device)
        except (RuntimeError, NotImplementedError, AttributeError, TypeError) as error:
            problem = f"torch {torch.__version__} cannot multiply in {precision} on {self._ctx.device.type}: {error}"
            if precision in (self._ctx.config.precisions or ["fp32"]):
                raise ValueError(f"{problem}; set precisions without it") from error
            print(f"{precision} is not measured: {problem}")
            return False
        return True

    def _on_every_rank(self, precisions: list[str]) -> list[str]:
        """Return the precisions that all ranks can measure: versions and devices may differ."""
        lacks = distributed.maximum([precision not in precisions for precision in TYPES], self._ctx.device)
        lacking = set(itertools.compress(TYPES, lacks))
        if lost := [precision for precision in precisions if precision in lacking]:
            print(f"{', '.join(lost)}: not measured, because another rank cannot measure it")
        return [precision for precision in precisions if precision not in lacking]


class Product:
    """A product of a matrix of random numbers by another one, from the next row on in each iteration."""

    def __init__(self, ctx: Context, precision: str, size: int) -> None:
        lowered = "tf32" if precision == "tf32" else "fp32"
        ctx.hooks.settings(ctx.device, Config({**ctx.config.as_dict(), "precision": lowered}))
        dtype, self._size, self._precision = getattr(torch, TYPES[precision]), size, precision
        self._left, self._right = (Numbers([ctx.seed, ctx.rank, side], dtype) for side in range(2))
        left, right = (
            numbers.fill(torch.empty(rows * size, dtype=dtype, device=ctx.device)).view(-1, size)
            for numbers, rows in ((self._left, size + SHIFTS - 1), (self._right, size))
        )
        # Some chips multiply these precisions only with the right matrix by columns, as a layer's weight is.
        self._by_columns = precision in ("int8", "fp8")
        lefts = [left[shift : shift + size] for shift in range(SHIFTS)]
        self._calls = _calls(precision, lefts, right.t() if self._by_columns else right)
        self._samples = Samples(ctx.device, size, size)

    def multiply(self) -> None:
        samples = self._samples
        samples.after(self._calls[samples.iteration % SHIFTS](), self._size**2)

    def check(self, work: str) -> None:
        """Compare rows of the products, times a vector drawn now, with those of numpy in fp64."""
        vector = signs(self._size)
        rows = self._right.rows(self._size)
        column: Array = (
            sum(sign * row for sign, row in zip(vector, rows, strict=True))
            if self._by_columns
            else ([row @ vector for row in rows])
        )
        self._samples.check(
            work,
            lambda iteration, places: self._left.at(places + iteration % SHIFTS * self._size) @ column,
            _ALLOWED[self._precision],
            vector,
        )


def _calls(precision: str, lefts: list[torch.Tensor], right: torch.Tensor) -> list[Callable[[], torch.Tensor]]:
    """Return a call for each left matrix; all write their product into the same matrix, except with fp8."""
    if precision == "fp8":
        one = torch.ones((), device=right.device)
        options: dict[str, Any] = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": True}
        return [functools.partial(torch._scaled_mm, left, right, **options) for left in lefts]
    multiply = torch._int_mm if precision == "int8" else torch.mm
    product = multiply(lefts[0], right)
    return [functools.partial(multiply, left, right, out=product) for left in lefts]
