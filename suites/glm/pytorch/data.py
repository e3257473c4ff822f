"""GLM's data for training and evaluation, the shares of the ranks, the loss and the metric."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol

import cloze
import counts
import record
import sparse
import torch
from cloze import Batch, ClozeSet
from record import RecordError
from torch import Tensor, nn

from flagperf_driver.pytorch import Context
from flagperf_driver.pytorch import device as devices

EVAL_SEED = 20210327
"""The seed of the evaluation's questions, the same for all runs."""


class Order(Protocol):
    """Returns the examples of each batch of this rank in an epoch."""

    def __call__(self, epoch: int) -> list[Tensor]: ...


@dataclass
class Batches:
    """A rank's batches; one pass is an epoch."""

    data: ClozeSet
    order: Order
    config: SimpleNamespace
    pinned: bool = False
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.order(self.epoch))

    def __iter__(self) -> Iterator[Batch]:
        config = self.config
        for chosen in self.order(self.epoch):
            batch = cloze.collate(
                self.data, chosen, config.max_seq_length, config.max_answer_length, config.max_candidates,
                pack=config.pack_tokens,
            )  # fmt: skip
            yield _pin(batch) if self.pinned else batch


def _pin(batch: Batch) -> Batch:
    return {name: part.pin_memory() if isinstance(part, Tensor) else part for name, part in batch.items()}


def shuffled(size: int, batch: int, rank: int, world_size: int, seed: int) -> Order:
    """Return an order of training: a random order of batches, of which each rank takes every world_size-th batch."""
    if size < batch * world_size:
        raise RecordError(
            f"{size} examples are too few for one batch of {batch} on each of {world_size} ranks; "
            "reduce train_batch_size"
        )

    def order(epoch: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        permutation = torch.randperm(size, generator=generator)
        whole = permutation[: size - size % (batch * world_size)].view(-1, world_size, batch)
        return list(whole[:, rank])

    return order


def shared_out(candidates: Tensor, batch: int, rank: int, world_size: int) -> Order:
    """Return an order of evaluation: each example on one rank, sorted by number of candidates to save padding."""
    share = candidates.argsort(stable=True)[rank::world_size]
    batches = list(share.split(batch)) if len(share) else []
    return lambda epoch: batches  # noqa: ARG005 - the same in every epoch


def train(ctx: Context) -> Batches:
    data = _read(ctx, training=True)
    if ctx.config.shuffle_labels:
        data = with_wrong_labels(data, ctx.seed)
    order = shuffled(len(data), ctx.config.train_batch_size, ctx.data_rank, ctx.data_ranks, ctx.seed)
    return Batches(data, order, ctx.config, pinned=devices.pins(ctx.device))


def evaluation(ctx: Context) -> Batches:
    data = _read(ctx, training=False)
    order = shared_out(data.candidates, ctx.config.eval_batch_size, ctx.data_rank, ctx.data_ranks)
    return Batches(data, order, ctx.config, pinned=devices.pins(ctx.device))


def _read(ctx: Context, *, training: bool) -> ClozeSet:
    config = ctx.config
    if ctx.synthetic:
        return synthetic(config, config.synthetic_examples * ctx.data_ranks, ctx.seed + training)
    if ctx.scale == "small":
        count, seed = (config.train_examples, ctx.seed) if training else (config.eval_examples, EVAL_SEED)
        return small(config, count, seed, training=training)
    if ctx.data_dir is None:
        raise RecordError(
            "GLM's reference scale needs data; pass --data-dir, or --synthetic to measure throughput only"
        )
    path = ctx.data_dir / (config.train_data if training else config.eval_data)
    if path.suffix in (".hdf5", ".h5"):
        return sparse.read(path, training=training, vocab_size=config.vocab_size, length=config.max_seq_length)
    tokenizer = _tokenizer(ctx.data_dir / config.vocab_file, config.vocab_size)
    questions = record.read(path, training=training, candidates=config.max_candidates, seed=ctx.seed)
    return cloze.encode(questions, tokenizer, config.max_seq_length, config.max_answer_length)


def _tokenizer(path: Path, vocab_size: int) -> record.WordPieces:
    """Return the tokenizer; ``vocab_size`` is its number of tokens, rounded up to a multiple of 128."""
    tokenizer = record.WordPieces(path)
    if not vocab_size - 128 < tokenizer.size <= vocab_size:
        raise RecordError(
            f"{path}: {tokenizer.size - record.ADDED} lines; expected {vocab_size - 127 - record.ADDED} to "
            f"{vocab_size - record.ADDED} for vocab_size = {vocab_size}"
        )
    return tokenizer


def small(config: SimpleNamespace, count: int, seed: int, *, training: bool) -> ClozeSet:
    """Return generated questions; each pair of numbers is used either in training or in the evaluation."""
    held_out = counts.pairs(config.eval_pairs, EVAL_SEED)
    allowed = counts.ALL_PAIRS - held_out if training else held_out
    questions = counts.examples(count, seed, allowed, config.max_candidates if training else 4)
    return cloze.encode(questions, counts.Words(), config.max_seq_length, config.max_answer_length)


def with_wrong_labels(data: ClozeSet, seed: int) -> ClozeSet:
    """Give every example the candidates and the right answer of another example, for a control that must not learn.

    Marking another candidate of the same example as right would not be enough: candidates relate to their text.
    """
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    other = torch.empty_like(order)
    other[order] = order.roll(1)
    rows = data.first[other].repeat_interleave(data.candidates)
    return replace(
        data, text_start=data.text_start[rows], text_length=data.text_length[rows], mask_at=data.mask_at[rows]
    )


def synthetic(config: SimpleNamespace, count: int, seed: int) -> ClozeSet:
    """Return random tokens in the shapes of the real data, for throughput only."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, size: int) -> Tensor:
        return torch.randint(low, high, (size,), generator=generator)

    longest, group = config.max_seq_length - config.max_answer_length, config.max_candidates
    sequences = count * group
    text_length = draw(longest // 2, longest + 1, count)
    mask_at = text_length * 9 // 10
    answer_length = draw(2, config.max_answer_length // 2 + 2, sequences)
    symbols = counts.Words().symbols
    right = torch.zeros(count, group, dtype=torch.bool)
    right[torch.arange(count), draw(0, group, count)] = True
    return ClozeSet(
        symbols=symbols,
        texts=draw(symbols.end + 1, config.vocab_size, int(text_length.sum())).int(),
        text_start=(text_length.cumsum(0) - text_length).repeat_interleave(group),
        text_length=text_length.repeat_interleave(group),
        mask_at=mask_at.repeat_interleave(group),
        answers=draw(symbols.end + 1, config.vocab_size, int(answer_length.sum())).int(),
        answer_start=answer_length.cumsum(0) - answer_length,
        answer_length=answer_length,
        right=right.flatten(),
        first=torch.arange(0, sequences + 1, group),
    )


def calculate_loss(ctx: Context, model: nn.Module, batch: Batch) -> Tensor:
    config = ctx.config
    return cloze.loss(cloze.scores(model, batch, config.max_candidates), batch, config.generative_weight)


def evaluate_batch(ctx: Context, model: nn.Module, batch: Batch) -> Tensor:
    correct = cloze.correct(cloze.scores(model, batch, ctx.config.max_candidates), batch)
    return torch.stack([correct.sum(), torch.ones_like(correct).sum()])


def summarize(ctx: Context, sums: list[float]) -> dict[str, float]:  # noqa: ARG001 - a step's signature
    right, questions = sums
    return {"accuracy": right / questions, "questions": questions}


def count_samples(ctx: Context, batch: Batch) -> int:  # noqa: ARG001 - a step's signature
    """Return the number of sequences, one per candidate; padding does not count."""
    return int(batch["sequences"])


def count_tokens(ctx: Context, batch: Batch) -> tuple[int, int, int]:  # noqa: ARG001 - a step's signature
    """Return the tokens without padding, of full sequences, and all that are computed, padded candidates included."""
    tokens = batch["tokens"]
    return int(batch["used_tokens"]), int(batch["sequences"]) * tokens.shape[-1], batch.get("rows", tokens).numel()
