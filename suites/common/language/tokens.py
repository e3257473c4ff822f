"""Batches of tokens for models that predict the next token: the small text, or random tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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


def train(ctx: Context) -> tuple[Source, Share]:
    """Return the sequences for the training, and this rank's share of each epoch."""
    config = ctx.config
    if ctx.synthetic:
        count = SYNTHETIC_STEPS * config.train_batch_size * ctx.world_size
        source: Source = _random(ctx, config.train_batch_size, count)
    else:
        source = SplitRows(_text(ctx, training=True), ctx.seed if config.shuffle_labels else None)
    return source, TrainShare(len(source), config.train_batch_size, ctx.rank, ctx.world_size, ctx.seed)


def evaluation(ctx: Context) -> tuple[Source, Share]:
    """Return the sequences of the evaluation, the same for all seeds, and this rank's share."""
    size = ctx.config.eval_batch_size
    if ctx.synthetic:
        source: Source = _random(ctx, size, size * ctx.world_size)
    else:
        source = SplitRows(_text(ctx, training=False))
    return source, EvalShare(len(source), size, ctx.rank, ctx.world_size)


def _text(ctx: Context, *, training: bool) -> TextBytes:
    if ctx.config.vocab_size != VOCABULARY:
        raise ValueError(
            f"vocab_size = {ctx.config.vocab_size}; expected {VOCABULARY} for the bytes of the bundled text"
        )
    return TextBytes(
        ctx.config.max_seq_length, training=training, count=None if training else ctx.config.eval_sequences
    )


def _random(ctx: Context, size: int, count: int) -> Repeated:
    """Return batches of random tokens, which cost no more than the copy to the device."""
    config = ctx.config
    rng = np.random.default_rng(seeds.derive(ctx.seed, seeds.RANK, ctx.rank))
    shape = (SYNTHETIC_BATCHES, size, config.max_seq_length + 1)
    return Repeated([split(rows) for rows in rng.integers(0, config.vocab_size, shape)], count)
