"""The toy's case.json; does not import torch."""

from __future__ import annotations

from typing import Any

from flagperf_driver import options

TOY_KEYS = {
    "norm": False,  # a batch norm in the model
    "dropout": 0.0,
    "blocks": 0,  # number of layers in a ModuleList, which FSDP shards separately
    "nan_at": None,  # (rank, step)
    "stop_at": None,  # (rank, step) that raises
    "eval_shares": "even",  # even, uneven, one
    "short_rank": None,
    "skips": False,  # the data have skip()
    "no_data": False,
    "compile_with": None,  # a backend of torch.compile
}


def config(**settings: Any) -> dict[str, Any]:
    values = options.values("pytorch")
    values.update(TOY_KEYS)
    values.update(train_batch_size=32, eval_batch_size=32, max_steps=12, learning_rate=1e-2, eval_steps=6)
    unknown = set(settings) - set(values)
    assert not unknown, unknown
    values.update(settings)
    return values


def case(
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
    return {
        "schema": 1, "case": "toy:pytorch:CPU:1:1:1", "model": "toy", "framework": "pytorch", "vendor": "cpu",
        "hardware": "CPU", "nnodes": 1, "nproc": 1, "round": 1, "token": "toy", "seed": seed, "scale": "small",
        "synthetic": synthetic, "throughput_only": throughput_only,
        "metric": {
            "name": "accuracy", "direction": direction, "unit": "fraction", "target": target, "also": also or {},
        },
        "sample_unit": "samples", "device": "cpu", "backend": "gloo", "modules": [], "device_module": None,
        "data_dir": None, "extern": extern, "config": config(**settings),
    }  # fmt: skip
