"""Llama 3.1 8B's reference scale: a smaller model learns Megatron's files; a step of two layers, and the size."""

from __future__ import annotations

from tests.suites import trials
from tests.suites.tiny_data import megatron as tiny

SMALLER, CUT, write = tiny.SMALLER, f"{tiny.TRAIN}.idx", tiny.write
PARAMETERS = 8_030_261_248
"""https://huggingface.co/meta-llama/Llama-3.1-8B, here exactly by the sizes in its ``config.json``:
two tables of 128,256 x 4096, 32 blocks of 218,112,000 and the norm."""
STEP = tiny.STEP


def judge(trained: trials.Trained) -> None:
    assert trained.metrics["log_perplexity"] < trained.losses[0]
