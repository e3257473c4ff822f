"""CPM's texts for training and evaluation, and the shares of the ranks."""

from __future__ import annotations

import lines
import numpy as np
import questions
import stc
import torch
from common.shares import EvalShare, Repeated, Source, TrainShare
from common.steps import Loader
from lines import Lines, Text

from flagperf_driver import seeds
from flagperf_driver.pytorch import Context
from flagperf_driver.pytorch import device as devices

QUESTIONS_SEED = 20201201
"""The seed of the small scale's questions, the same for all runs."""
SYNTHETIC_BATCHES = 4


def create_train_data(ctx: Context) -> Loader:
    """Return this rank's share of every epoch."""
    source = _source(ctx, training=True)
    share = TrainShare(len(source), ctx.config.train_batch_size, ctx.data_rank, ctx.data_ranks, ctx.seed)
    return Loader(source, share, _workers(ctx), pin=devices.pins(ctx.device))


def create_eval_data(ctx: Context) -> Loader:
    """Return this rank's share of the evaluation's texts."""
    source = _source(ctx, training=False)
    share = EvalShare(len(source), ctx.config.eval_batch_size, ctx.data_rank, ctx.data_ranks)
    return Loader(source, share, _workers(ctx), pin=devices.pins(ctx.device))


def count_samples(ctx: Context, batch: Text) -> int:  # noqa: ARG001 - a step's signature
    """Return the number of texts."""
    return len(batch.tokens)


def _source(ctx: Context, *, training: bool) -> Source:
    if ctx.synthetic:
        return _synthetic(ctx, training=training)
    texts = _questions(ctx, training=training) if ctx.config.dataset == "questions" else _stc(ctx, training=training)
    return texts.with_other_targets(ctx.seed) if training and ctx.config.shuffle_labels else texts


def _questions(ctx: Context, *, training: bool) -> Lines:
    """Return generated questions: some for the evaluation, others for the training."""
    config, characters = ctx.config, questions.Characters()
    drawn = questions.draw(config.train_questions + config.eval_questions, QUESTIONS_SEED)
    chosen = drawn[config.eval_questions :] if training else drawn[: config.eval_questions]
    asked = [len(question) + 1 for question, _ in chosen]
    return lines.join(map(characters.encode, chosen), asked, config.seq_length, characters.pad)


def _stc(ctx: Context, *, training: bool) -> Lines:
    config = ctx.config
    if ctx.data_dir is None:
        raise stc.StcError("CPM's reference scale needs data; pass --data-dir, or --synthetic for throughput only")
    path = ctx.data_dir / (config.train_data if training else config.eval_data)
    return stc.read(path, ctx.data_dir / config.tokenizer, config.vocab_size, config.seq_length)


def _synthetic(ctx: Context, *, training: bool) -> Source:
    """Return batches of random tokens without padding, which cost no more than the copy to the device."""
    config = ctx.config
    count = config.train_batch_size if training else config.eval_batch_size
    rng = np.random.default_rng(seeds.derive(ctx.seed, seeds.RANK, ctx.data_rank))
    batches = []
    for _ in range(SYNTHETIC_BATCHES):
        drawn = torch.from_numpy(rng.integers(0, config.vocab_size, (count, config.seq_length + 1)))
        batches.append(Text(*(part.contiguous() for part in (drawn[:, :-1], drawn[:, 1:]))))
    return Repeated(batches, config.synthetic_texts if training else count * ctx.data_ranks)


def _workers(ctx: Context) -> int:
    """Return the number of loader processes; synthetic batches need no process."""
    return 0 if ctx.synthetic else int(ctx.config.num_workers)
