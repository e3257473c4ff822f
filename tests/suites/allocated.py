"""The most bytes that training steps held at once on the CPU, and a comparison with an estimate of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from flagperf_driver.pytorch import sharding

Config = dict[str, Any]


def two_steps(config: SimpleNamespace, model: Any, calculate_loss: Callable[[], Any]) -> tuple[Any, Any]:
    """Train two steps; return what must stay in memory until the end of the measurement."""
    sharding.recompute(model.blocks, config.checkpoint_activations)
    optimizer = torch.optim.AdamW(model.parameters(), fused=config.fused_optimizer)
    for _ in range(2):
        for _ in range(config.gradient_accumulation_steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bf16"):
                loss = calculate_loss()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model, optimizer


def peak(train: Callable[[SimpleNamespace], object], config: Config) -> int:
    """Return the most bytes that PyTorch's allocator of the CPU held at once during the training."""
    gc.collect()  # otherwise earlier models are freed in between
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        train(SimpleNamespace(**config))
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def check_estimates(
    configs: Sequence[Config], train: Callable[[SimpleNamespace], object], estimated: Callable[[Config], float],
    **more_layers: int,
) -> None:  # fmt: skip
    """Check that each estimate is within a tenth of the peak, and that of the double batch of a larger model is not."""
    for config in configs:
        most = peak(train, config)
        error = estimated(config) / most - 1
        assert abs(error) < 0.1, f"{config}: estimated {error:+.1%} of the measured {most / 2**20:.1f} MiB"
        doubled = {**config, "train_batch_size": 2 * config["train_batch_size"], **more_layers}
        assert abs(estimated(doubled) / most - 1) > 0.1, f"the control: {config}"
