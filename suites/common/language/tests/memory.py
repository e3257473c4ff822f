"""Checks of the estimated memory: within a tenth of what training steps of the decoder allocate on the CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from common.language import memory
from common.language.decoder import Decoder, Shape
from common.language.mixture import MixtureDecoder, MixtureShape

from tests.suites import allocated

CONFIG = {
    "vocab_size": 2048, "num_layers": 3, "hidden_size": 128, "num_heads": 4, "num_kv_heads": 2, "head_size": 32,
    "intermediate_size": 352, "tied_embeddings": False, "norm_epsilon": 1e-5, "rope_theta": 1e4, "rope_factor": 1.0,
    "rope_low": 1.0, "rope_high": 4.0, "rope_old_context": 256, "init_std": 0.02, "loss_chunk": 128,
    "max_seq_length": 256, "train_batch_size": 4, "gradient_accumulation_steps": 1, "precision": "fp32",
    "compile": False, "checkpoint_activations": False, "fused_optimizer": True,
}  # fmt: skip
MIXTURE = {
    **CONFIG, "rope_theta": 1e4, "num_experts": 8, "experts_per_token": 2, "attention_window": 64,
    "intermediate_size": 128, "balance_factor": 0.0, "grouped_products": True,
}  # fmt: skip
CASES: list[dict[str, Any]] = [
    {},
    {"train_batch_size": 8, "checkpoint_activations": "selective"},
    {"train_batch_size": 16, "checkpoint_activations": True},
    {"precision": "bf16"},
    {"tied_embeddings": True, "vocab_size": 8192, "loss_chunk": 512},
    {"train_batch_size": 2, "gradient_accumulation_steps": 2},
    MIXTURE,
    {**MIXTURE, "train_batch_size": 8, "checkpoint_activations": "selective"},
    {**MIXTURE, "train_batch_size": 16, "checkpoint_activations": True},
    {**MIXTURE, "precision": "bf16"},
]


def _model(config: SimpleNamespace) -> Decoder:
    """Return a decoder with ordinary weights."""
    if not hasattr(config, "num_experts"):
        return Decoder(Shape.of(config))
    model = MixtureDecoder(MixtureShape.of(config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(float(name.endswith("norm.weight")), 0.02)
    return model


def _train(config: SimpleNamespace) -> object:
    model = _model(config)
    tokens = torch.randint(config.vocab_size, (config.train_batch_size, config.max_seq_length + 1))
    return allocated.two_steps(config, model, lambda: model(tokens[:, :-1], tokens[:, 1:]))


def _estimated(config: dict[str, Any]) -> float:
    return sum(memory.estimate(config, {"replicate": 1, "shard": 1, "expert": 1, "tensor": 1})["bytes"].values())


def check_an_estimate_is_within_a_tenth_of_the_allocated_peak() -> None:
    allocated.check_estimates([{**CONFIG, **case} for case in CASES], _train, _estimated, num_layers=6)


def check_the_estimated_weights_are_the_decoders() -> None:
    for config in (CONFIG, {**CONFIG, "tied_embeddings": True}, MIXTURE):
        with torch.device("meta"):
            model = _model(SimpleNamespace(**config))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        weights = memory.estimate(config, {"replicate": 1, "shard": 1, "expert": 1, "tensor": 1})["bytes"]["weights"]
        assert weights == 4 * parameters
