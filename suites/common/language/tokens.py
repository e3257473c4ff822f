"""Batches of tokens for models that predict the next token: Megatron's data, the small text, or random tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from common.language.megatron import Documents, Samples
from common.language.text_bytes import VOCABULARY, TextBytes
from common.shares import Array, Draw, EvalShare, Repeated, Share, Source, TrainShare
from flagperf_driver import seeds
from flagperf_driver.training.steps import Context

SYNTHETIC_BATCHES = 4
SYNTHETIC_STEPS = 100_000
"""The length of an epoch of random tokens."""


class Tokens(NamedTuple):
    """A batch: at each place a token and the token that follows it."""

    inputs: Array
    """int64, sequences x max_seq_length."""
    targets: Array
    """int64, the same shape."""


class SplitRows:
    """Batches of a source of rows, each of which has one token more than a sequence."""

    def __init__(self, rows: Source, shuffle_seed: int | None = None) -> None:
        """Take the rows, and the seed of a control: it shuffles each row, so that no token follows from others."""
        self._rows, self._shuffle_seed = rows, shuffle_seed

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, draw: Draw) -> Tokens:
        rows = self._rows[draw]
        if self._shuffle_seed is not None:
            for row, index in zip(rows, draw.indices, strict=True):
                np.random.default_rng((self._shuffle_seed, draw.epoch, int(index))).shuffle(row)
        return split(rows)


def split(rows: Array) -> Tokens:
    """Return a batch of rows, each of which has one token more than a sequence."""
    return Tokens(np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:]))


class OrderedTrainShare(TrainShare):
    """As TrainShare, for a source that shuffles each epoch itself."""

    def _order(self, rng: np.random.Generator) -> Array:  # noqa: ARG002 - as in TrainShare
        return np.arange(self._samples)


def train(ctx: Context) -> tuple[Source, Share]:
    """Return the sequences for the training, and this rank's share of each epoch."""
    source, size = _source(ctx, training=True), ctx.config.train_batch_size
    share = TrainShare if ctx.config.train_data is None else OrderedTrainShare
    return source, share(len(source), size, ctx.data_rank, ctx.data_ranks, ctx.seed)


def evaluation(ctx: Context) -> tuple[Source, Share]:
    """Return the sequences of the evaluation, the same for all seeds, and this rank's share."""
    source, size, ranks = _source(ctx, training=False), ctx.config.eval_batch_size, ctx.data_ranks
    batches = {len(EvalShare(len(source), size, rank, ranks)) for rank in range(ranks)}
    if ctx.parallel.expert > 1 and len(batches) > 1:
        raise ValueError(
            f"{len(source)} sequences of the evaluation, in batches of {size} on {ranks} ranks: the ranks have "
            f"{' or '.join(map(str, sorted(batches)))} batches; expected equally many, because ranks that divide the "
            f"experts exchange tokens in each batch; set another eval_batch_size"
        )
    return source, EvalShare(len(source), size, ctx.data_rank, ranks)


def _source(ctx: Context, *, training: bool) -> Source:
    config = ctx.config
    if ctx.synthetic:
        return _random(ctx, training=training)
    file = config.train_data if training else config.eval_data
    rows = _text(ctx, training=training) if file is None else _documents(ctx, file, training=training)
    return SplitRows(rows, ctx.seed if training and config.shuffle_labels else None)


def _documents(ctx: Context, file: str, *, training: bool) -> Samples:
    """Return Megatron's samples for the training; for the evaluation the first ones in the order of the file."""
    config = ctx.config
    if ctx.data_dir is None:
        raise ValueError(f"{file}: the folder is missing; pass --data-dir, or --synthetic to measure throughput only")
    seed, count = (ctx.seed, None) if training else (None, config.eval_sequences)
    return Samples(Documents(ctx.data_dir / file), config.max_seq_length, config.vocab_size, seed, count)


def _text(ctx: Context, *, training: bool) -> TextBytes:
    config = ctx.config
    if config.vocab_size != VOCABULARY:
        raise ValueError(f"vocab_size = {config.vocab_size}; expected {VOCABULARY} for the bytes of the bundled text")
    return TextBytes(config.max_seq_length, training=training, count=None if training else config.eval_sequences)


def _random(ctx: Context, *, training: bool) -> Repeated:
    """Return batches of random tokens, which cost no more than the copy to the device."""
    config = ctx.config
    size = config.train_batch_size if training else config.eval_batch_size
    rng = np.random.default_rng(seeds.derive(ctx.seed, seeds.RANK, ctx.data_rank))
    shape = (SYNTHETIC_BATCHES, size, config.max_seq_length + 1)
    batches = [split(rows) for rows in rng.integers(0, config.vocab_size, shape)]
    return Repeated(batches, size * ctx.data_ranks * (SYNTHETIC_STEPS if training else 1))
