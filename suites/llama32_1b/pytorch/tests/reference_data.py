"""Checks of the reference data: a smaller model learns Megatron's files."""

from __future__ import annotations

import checking

from tests.suites import trials
from tests.suites.tiny_data import megatron as tiny

SMALLER, CUT, write = tiny.SMALLER, f"{tiny.TRAIN}.idx", tiny.write
TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)


def check_documents_are_read_and_learnt() -> None:
    trained = TINY.check_learnt(TINY.folder("documents"))
    assert trained.metrics["log_perplexity"] < trained.losses[0]
