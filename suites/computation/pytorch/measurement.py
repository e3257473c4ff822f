"""Dense matrix products of random data, by precision and size."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

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


class Computation(Measurement):
    """2 n^3 operations of a product of two n x n matrices into an existing matrix."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._multiply: Callable[[], object] = lambda: None
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
        self._multiply = self._product(point.values["precision"], point.values["size"])

    def run(self, iterations: int) -> None:
        multiply = self._multiply
        for _ in range(iterations):
            multiply()

    def release(self) -> None:
        self._multiply = lambda: None

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
            self._product(precision, _TRIAL)()
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

    def _product(self, precision: str, size: int) -> Callable[[], object]:
        """Return a call that multiplies two random matrices."""
        device, config = self._ctx.device, self._ctx.config
        lowered = "tf32" if precision == "tf32" else "fp32"
        self._ctx.hooks.settings(device, Config({**config.as_dict(), "precision": lowered}))
        if precision == "int8":
            whole = [torch.randint(-128, 128, (size, size), dtype=torch.int8, device=device) for _ in range(2)]
            return _into(torch._int_mm, whole[0], whole[1].t())
        dtype = getattr(torch, TYPES[precision])
        exact = torch.float64 if dtype is torch.float64 else torch.float32
        left, right = (torch.randn(size, size, device=device, dtype=exact).to(dtype) for _ in range(2))
        if precision == "fp8":
            one = torch.ones((), device=device)
            options: dict[str, Any] = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16}
            # Tensor cores of some chips accept fp8 only with the right matrix by columns, as a layer's weight is.
            return functools.partial(torch._scaled_mm, left, right.t(), use_fast_accum=True, **options)
        return _into(torch.mm, left, right)


def _into(multiply: Callable[..., torch.Tensor], left: torch.Tensor, right: torch.Tensor) -> Callable[[], object]:
    """Return a call that writes the product into the same matrix each time."""
    return functools.partial(multiply, left, right, out=multiply(left, right))
