"""Batches of masked sequences: MLPerf's HDF5 shards, the small text, or synthetic sequences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from common.language.mlperf_shards import Arrays, EvalShards, TrainShards
from common.language.wikipedia import EvalText, TrainText
from common.shares import turn
from flagperf_driver.training.steps import Context

Batch = Arrays
"""input_ids, segment_ids, input_mask (samples x length), positions, labels (samples x predictions),
next_sentence_labels (samples)."""


def create_train_data(ctx: Context) -> Iterable[Batch]:
    """Return this rank's share of an epoch."""
    if ctx.synthetic:
        return Synthetic(ctx)
    return TrainText(ctx) if ctx.config.train_data is None else TrainShards(ctx)


def create_eval_data(ctx: Context) -> Iterable[Batch]:
    """Return this rank's share of the evaluation set; synthetic data have no evaluation set."""
    if ctx.synthetic:
        return []
    return EvalText(ctx) if ctx.config.eval_data is None else EvalShards(ctx)


def count_samples(ctx: Context, batch: Batch) -> int:  # noqa: ARG001 - a step's signature
    """Return the number of sequences."""
    return int(batch["input_ids"].shape[0])


def count_tokens(ctx: Context, batch: Batch) -> tuple[int, int, int]:  # noqa: ARG001 - a step's signature
    """Return the tokens of the batch without padding, of full sequences, and all that are computed."""
    mask = batch["input_mask"]
    return int(mask.sum()), mask.size, mask.size


def summarize(ctx: Context, sums: list[float]) -> dict[str, float]:  # noqa: ARG001 - a step's signature
    """Return the accuracy over all masked tokens of the set."""
    correct, count = sums
    return {"mlm_accuracy": correct / count if count else float("nan")}


class Synthetic:
    """Repeats a few full batches of random tokens: real shapes, no input cost, for throughput only."""

    BATCHES = 8
    STEPS_PER_EPOCH = 100_000

    def __init__(self, ctx: Context) -> None:
        self.epoch = 0
        self.batches = [
            synthetic_batch(ctx, np.random.default_rng((ctx.seed, ctx.data_rank, i))) for i in range(self.BATCHES)
        ]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.STEPS_PER_EPOCH

    def __iter__(self) -> Iterator[Batch]:
        return (self.batches[turn(self.epoch, step, self.BATCHES)] for step in range(self.STEPS_PER_EPOCH))


def synthetic_batch(ctx: Context, rng: np.random.Generator) -> Batch:
    """Return a random batch of sequences with full length and all predictions."""
    config = ctx.config
    samples, length, predictions = (
        config.train_batch_size,
        config.max_seq_length,
        config.max_predictions_per_seq,
    )
    places = rng.random((samples, length - 1)).argsort(axis=1)[:, :predictions] + 1
    drawn = {
        "input_ids": rng.integers(0, config.vocab_size, (samples, length)),
        "segment_ids": np.arange(length)[None].repeat(samples, 0) >= length // 2,
        "input_mask": np.ones((samples, length)),
        "positions": np.sort(places, axis=1),
        "labels": rng.integers(0, config.vocab_size, (samples, predictions)),
        "next_sentence_labels": rng.integers(0, 2, samples),
    }
    return {name: array.astype(np.int64) for name, array in drawn.items()}
