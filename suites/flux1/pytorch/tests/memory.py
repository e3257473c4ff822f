"""Checks of the estimated memory: within a tenth of what training steps of the transformer allocate on the CPU."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import flow
import memory
import torch
from pictures import Batch
from torch.profiler import ProfilerActivity, profile
from transformer import Shape, Transformer

from flagperf_driver.pytorch import sharding

CONFIG: dict[str, Any] = {
    "latent_channels": 4, "latent_side": 16, "text_tokens": 64, "text_size": 96, "pooled_size": 32,
    "hidden_size": 128, "num_heads": 4, "num_double_blocks": 2, "num_single_blocks": 4, "mlp_ratio": 4,
    "rope_axes": (8, 12, 12), "rope_theta": 1e4, "time_waves": 64, "train_batch_size": 16, "eval_batch_size": 1,
    "gradient_accumulation_steps": 1, "precision": "fp32", "compile": False, "checkpoint_activations": False,
    "fused_optimizer": True,
}  # fmt: skip
CASES: list[dict[str, Any]] = [
    {},
    {"num_double_blocks": 4, "num_single_blocks": 1},
    {"train_batch_size": 32, "checkpoint_activations": "selective"},
    {"train_batch_size": 32, "checkpoint_activations": True},
    {"precision": "bf16"},
    {"train_batch_size": 2, "gradient_accumulation_steps": 2},
]


def _train(config: SimpleNamespace) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Train two steps; return what must stay in memory until the end of the measurement."""
    model = Transformer(Shape.of(config))
    sharding.recompute(model.blocks, config.checkpoint_activations)
    optimizer = torch.optim.AdamW(model.parameters(), fused=config.fused_optimizer)
    count, side = config.train_batch_size, config.latent_side
    latents = torch.randn(2, count, config.latent_channels, side, side)
    text = torch.randn(count, config.text_tokens, config.text_size)
    batch = Batch(*latents, torch.rand(count), text, torch.randn(count, config.pooled_size))
    for _ in range(2):
        for _ in range(config.gradient_accumulation_steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bf16"):
                loss = flow.losses(model, batch).mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model, optimizer


def _peak(config: dict[str, Any]) -> int:
    """Return the most bytes that PyTorch's allocator of the CPU held at once during steps of a training."""
    gc.collect()  # otherwise earlier models are freed in between
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        _train(SimpleNamespace(**config))
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def _estimated(config: dict[str, Any]) -> float:
    return sum(memory.estimate(config, {"replicate": 1, "shard": 1})["bytes"].values())


def check_an_estimate_is_within_a_tenth_of_the_allocated_peak() -> None:
    for case in CASES:
        config = {**CONFIG, **case}
        peak = _peak(config)
        error = _estimated(config) / peak - 1
        assert abs(error) < 0.1, f"{case}: estimated {error:+.1%} of the measured {peak / 2**20:.1f} MiB"
        doubled = {**config, "train_batch_size": 2 * config["train_batch_size"], "num_single_blocks": 8}
        assert abs(_estimated(doubled) / peak - 1) > 0.1, f"the control: {case}"


def check_the_estimated_weights_are_the_transformers() -> None:
    for changes in ({}, {"hidden_size": 96, "num_heads": 3, "mlp_ratio": 3, "latent_channels": 2}):
        config = {**CONFIG, **changes}
        with torch.device("meta"):
            model = Transformer(Shape.of(SimpleNamespace(**config)))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        assert memory.estimate(config, {"replicate": 1, "shard": 1})["bytes"]["weights"] == 4 * parameters
