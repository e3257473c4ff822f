"""The toy of all frameworks: its data and initial weights in numpy; imports no framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flagperf_driver import options

TRAIN, EVAL, INPUTS, HIDDEN, CLASSES = 320, 301, 16, 32, 2
DEVICES = {
    "pytorch": ("cpu", "gloo"),
    "paddle": ("cpu", "gloo"),
    "tensorflow2": ("CPU", "ring"),
    "mindspore": ("CPU", "mccl"),
}
"""The names of the CPU and of its collective communication in each framework."""

KEYS = {
    "norm": False,  # a batch norm in the model
    "dropout": 0.0,
    "nan_at": None,  # (rank, batch): its loss is NaN
    "stop_at": None,  # (rank, batch): reading it raises
    "hang_at": None,  # (rank, batch): reading it never ends
    "eval_shares": "even",  # even, uneven, one
    "short_rank": None,
    "skips": False,  # the data have skip()
}
OF_PYTORCH = {"blocks": 0, "compile_with": None}
"""The number of further layers, and a backend of torch.compile."""


class Stopped(RuntimeError):
    """Raised by the toy on request."""


def case(
    framework: str,
    target: float = 2.0,
    also: dict[str, float] | None = None,
    direction: str = "higher",
    synthetic: bool = False,
    throughput_only: bool = False,
    extern: str | None = None,
    seed: int = 42,
    **settings: Any,
) -> dict[str, Any]:
    """Return a case.json of the toy; no training reaches the default target."""
    values = {**options.values(framework), **KEYS, **(OF_PYTORCH if framework == "pytorch" else {})}
    values.update(train_batch_size=32, eval_batch_size=32, max_steps=12, learning_rate=1e-2, eval_steps=6)
    assert not set(settings) - set(values), settings
    device, backend = DEVICES[framework]
    return {
        "schema": 1, "case": f"toy:{framework}:CPU:1:1:1", "model": "toy", "framework": framework, "vendor": "cpu",
        "hardware": "CPU", "nnodes": 1, "nproc": 1, "round": 1, "token": "toy", "seed": seed, "scale": "small",
        "synthetic": synthetic, "throughput_only": throughput_only,
        "metric": {
            "name": "accuracy", "direction": direction, "unit": "fraction", "target": target, "also": also or {},
        },
        "sample_unit": "samples", "device": device, "backend": backend, "modules": [], "device_module": None,
        "data_dir": None, "extern": extern, "config": {**values, **settings},
    }  # fmt: skip


def initial() -> dict[str, Any]:
    """Return the initial weights: of a hidden layer and of the classifier, each (inputs, outputs)."""
    rng = np.random.default_rng(7)
    return {
        "first.weight": rng.standard_normal((INPUTS, HIDDEN)).astype(np.float32) / 4,
        "first.bias": rng.standard_normal(HIDDEN).astype(np.float32) / 10,
        "last.weight": rng.standard_normal((HIDDEN, CLASSES)).astype(np.float32) / 6,
        "last.bias": rng.standard_normal(CLASSES).astype(np.float32) / 10,
    }


def samples(count: int, seed: int) -> tuple[Any, Any]:
    values = np.random.default_rng(seed).standard_normal((count, INPUTS)).astype(np.float32)
    return values, (values[:, :4].sum(1) > 0).astype(np.int64)


class TrainData:
    """Data whose global batches are the same for any number of ranks. The mean of ``added`` is added to the loss."""

    convert: Callable[[Any], Any] = staticmethod(lambda array: array)
    any_ranks = True

    def __init__(self, ctx: Any) -> None:
        self.ctx, self.epoch, self.read = ctx, 0, 0
        self.values, self.labels = samples(TRAIN, seed=0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        whole: int = TRAIN // (self.ctx.config.train_batch_size * self.ctx.data_ranks)
        return whole - int(self.ctx.config.short_rank == self.ctx.rank)

    def __iter__(self) -> Iterator[Any]:
        order = np.random.default_rng((self.ctx.seed, self.epoch)).permutation(TRAIN)
        size = self.ctx.config.train_batch_size * self.ctx.data_ranks
        for number in range(len(self)):
            mine = order[number * size : (number + 1) * size][self.ctx.data_rank :: self.ctx.data_ranks]
            yield self._changed({"values": self.values[mine], "labels": self.labels[mine]})

    def _changed(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.read += 1
        place, config = [self.ctx.rank, self.read], self.ctx.config
        if config.stop_at == place:
            raise Stopped(f"asked to stop at batch {self.read}")
        while config.hang_at == place:
            pass
        batch["added"] = np.full(len(batch["labels"]), np.nan if config.nan_at == place else 0.0, np.float32)
        return {name: self.convert(array) for name, array in batch.items()}


class SkippingData(TrainData):
    """Data that can skip batches at the start of a pass."""

    first = 0

    def skip(self, batches: int) -> None:
        self.first = batches

    def __iter__(self) -> Iterator[Any]:
        first, self.first = self.first, 0
        return (batch for number, batch in enumerate(super().__iter__()) if number >= first)


def train_data(ctx: Any) -> TrainData:
    return SkippingData(ctx) if ctx.config.skips else TrainData(ctx)


class EvalData:
    """The share of one rank in the evaluation set."""

    convert: Callable[[Any], Any] = staticmethod(lambda array: array)

    def __init__(self, ctx: Any) -> None:
        shares = {
            "even": slice(ctx.data_rank, None, ctx.data_ranks),
            "uneven": slice(0, 200) if ctx.data_rank == 0 else slice(200, None),
            "one": slice(0, None) if ctx.data_rank == 0 else slice(0, 0),
        }
        mine = shares[ctx.config.eval_shares if ctx.data_ranks > 1 else "even"]
        self.values, self.labels = (array[mine] for array in samples(EVAL, seed=1))
        self.size = ctx.config.eval_batch_size

    def __iter__(self) -> Iterator[Any]:
        for begin in range(0, len(self.labels), self.size):
            part = slice(begin, begin + self.size)
            yield {"values": self.convert(self.values[part]), "labels": self.convert(self.labels[part])}


STEPS: dict[str, Any] = {
    "create_train_data": train_data,
    "create_eval_data": EvalData,
    "summarize": lambda ctx, sums: {"accuracy": sums[0] / sums[1], "count": sums[1]},
    "count_samples": lambda ctx, batch: len(batch["labels"]),
}
"""The steps that need no framework."""
