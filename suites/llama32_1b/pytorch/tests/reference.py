"""Llama 3.2 1B's reference scale: a smaller model learns Megatron's files; a step of two layers, and the size."""

from __future__ import annotations

from tests.suites import trials
from tests.suites.tiny_data import megatron as tiny

SMALLER, CUT, write = tiny.SMALLER, f"{tiny.TRAIN}.idx", tiny.write
PARAMETERS = 1_235_814_400
"""https://huggingface.co/meta-llama/Llama-3.2-1B, here exactly by the sizes in its ``config.json``:
one table of 128,256 x 2048, 16 blocks of 60,821,504 and the norm."""
STEP = tiny.STEP


def judge(trained: trials.Trained) -> None:
    assert trained.metrics["log_perplexity"] < trained.losses[0]
