"""The config keys that only PyTorch has, with their default values, beside those of ``flagperf_driver/defaults.py``.

The harness reads this file without PyTorch, so it imports nothing of it.
"""

from __future__ import annotations

from typing import Literal

compile = False  # noqa: A001 - torch.compile
compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = "default"  # mode of torch.compile
channels_last = False  # memory format of pictures
fused_optimizer = True  # if the device supports it
parallel: str | dict[str, int] = "ddp"
"""How ranks share a model: a copy each (ddp), a part each (fsdp), or a table, as in ``{"shard": 4, "tensor": 2}``, on
the command line ``shard=4,tensor=2``: the ranks that share each copy's weights, and those that compute each layer
together for the same samples. ``expert`` divides the experts of a mixture. ``replicate``, the number of copies, takes
the remaining ranks; so does one axis of -1.
"""
cudnn_benchmark = True  # try the algorithms of each shape and keep the fastest
cudnn_deterministic = False  # use only algorithms that repeat their results

MUTABLE = [
    "channels_last", "compile", "compile_mode", "cudnn_benchmark", "cudnn_deterministic", "fused_optimizer", "parallel",
]  # fmt: skip
"""Keys that a vendor's file and ``--set`` may override in every suite of PyTorch."""
