"""Checks of the reference data: a smaller model learns Megatron's files."""

from __future__ import annotations

import checking

from tests.suites import trials
from tests.suites.tiny_data import megatron as tiny

SMALLER = {
    "vocab_size": tiny.VOCAB_SIZE, "num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2,
    "intermediate_size": 64, "init_std": 0.1, "max_seq_length": 32, "samples_per_item": 32, "eval_sequences": 20,
    "train_batch_size": 8, "eval_batch_size": 4, "gradient_accumulation_steps": 1, "learning_rate": 1e-2,
    "lr_warmup": 0, "parallel": "ddp", "num_workers": 0, "eval_samples": None,
}  # fmt: skip
CUT = f"{tiny.TRAIN}.idx"
write = tiny.write
TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)


def check_documents_are_read_and_learnt() -> None:
    trained = TINY.check_learnt(TINY.folder("documents"))
    assert trained.metrics["log_perplexity"] < trained.losses[0]
