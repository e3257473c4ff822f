"""gpt-oss-20b's reference scale: a smaller model learns Megatron's files; a step of two layers, and the size."""

from __future__ import annotations

from tests.suites import trials
from tests.suites.tiny_data import megatron as tiny

SMALLER = {**tiny.SMALLER, "num_experts": 4, "experts_per_token": 2, "checkpoint_activations": False}
CUT, write = f"{tiny.TRAIN}.idx", tiny.write
PARAMETERS = 20_914_757_184
"""https://huggingface.co/openai/gpt-oss-20b, here exactly by the sizes in its ``config.json``: "21B parameters"."""
STEP = {
    **tiny.STEP, "max_seq_length": 160, "loss_chunk": 100, "hidden_size": 64, "intermediate_size": 32, "num_experts": 4,
    "num_heads": 8, "num_kv_heads": 2,
}  # fmt: skip
FROZEN = "blocks.0.mixture.router.weight"


def judge(trained: trials.Trained) -> None:
    assert trained.metrics["log_perplexity"] < trained.losses[0]
