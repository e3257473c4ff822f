"""Checks of the estimated memory: within a tenth of what training steps of the transformer allocate on the CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import flow
import memory
import torch
from pictures import Batch
from transformer import Shape, Transformer

from tests.suites import allocated

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


def _train(config: SimpleNamespace) -> object:
    model = Transformer(Shape.of(config))
    count, side = config.train_batch_size, config.latent_side
    latents = torch.randn(2, count, config.latent_channels, side, side)
    text = torch.randn(count, config.text_tokens, config.text_size)
    batch = Batch(*latents, torch.rand(count), text, torch.randn(count, config.pooled_size))
    return allocated.two_steps(config, model, lambda: flow.losses(model, batch).mean())


def _estimated(config: dict[str, Any]) -> float:
    return sum(memory.estimate(config, {"replicate": 1, "shard": 1})["bytes"].values())


def check_an_estimate_is_within_a_tenth_of_the_allocated_peak() -> None:
    allocated.check_estimates([{**CONFIG, **case} for case in CASES], _train, _estimated, num_single_blocks=8)


def check_the_estimated_weights_are_the_transformers() -> None:
    for changes in ({}, {"hidden_size": 96, "num_heads": 3, "mlp_ratio": 3, "latent_channels": 2}):
        config = {**CONFIG, **changes}
        with torch.device("meta"):
            model = Transformer(Shape.of(SimpleNamespace(**config)))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        assert memory.estimate(config, {"replicate": 1, "shard": 1})["bytes"]["weights"] == 4 * parameters
