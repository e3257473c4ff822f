"""The small data: characters of real Wikipedia text, masked at run time like BERT's pretraining data."""

from __future__ import annotations

import lzma
import re
import string
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.shares import RankContext

Ids = NDArray[np.int64]

PAD, CLS, SEP, MASK, FIRST = range(5)
ALPHABET = string.ascii_lowercase + "., "
VOCABULARY = FIRST + len(ALPHABET)
FILE = Path(__file__).with_name("wikipedia-cc-by-sa-3.0.txt.xz")
EVAL_SHARE = 0.1
"""The last tenth of the text, split at the end of a paragraph, is for evaluation only."""


def read_text(path: Path) -> tuple[str, str]:
    """Return the text for training and the text for evaluation."""
    text = lzma.decompress(path.read_bytes()).decode("utf-8")
    end = text.index("\n", int(len(text) * (1 - EVAL_SHARE))) + 1
    return text[:end], text[end:]


def encode(text: str) -> Ids:
    """Convert text to numbers: lower case, other characters as spaces, several spaces as one space."""
    plain = re.sub(f"[^{re.escape(ALPHABET)}]+", " ", text.lower())
    letters = re.sub(" +", " ", plain).encode("ascii")
    table = np.zeros(128, dtype=np.int64)
    table[np.frombuffer(ALPHABET.encode("ascii"), dtype=np.uint8)] = np.arange(FIRST, VOCABULARY)
    numbered: Ids = table[np.frombuffer(letters, dtype=np.uint8)]
    return numbered


def split_rows(characters: Ids, length: int) -> Ids:
    """Split the text into rows of the sequence length minus 3, for [CLS] and two [SEP]."""
    width = length - 3
    return characters[: len(characters) // width * width].reshape(-1, width)


def pair(first: Ids, second: Ids, follows: NDArray[np.bool_]) -> Ids:
    """Build ``[CLS] A [SEP] B [SEP]``; B is the second half of A's row if ``follows``, else of another row."""
    samples, width = first.shape
    half = width // 2
    column = np.full((samples, 1), SEP, dtype=np.int64)
    rest = np.where(follows[:, None], first[:, half:], second[:, half:])
    return np.concatenate([np.full_like(column, CLS), first[:, :half], column, rest, column], axis=1)


def mask(sequences: Ids, predictions: int, rng: np.random.Generator) -> tuple[Ids, Ids, Ids]:
    """Choose characters to predict; 80 % become [MASK], 10 % another character, 10 % stay.

    Return the inputs, the positions and the true characters at these positions.
    """
    lot = np.where(sequences < FIRST, 2.0, rng.random(sequences.shape))
    positions = np.sort(np.argpartition(lot, predictions, axis=1)[:, :predictions], axis=1)
    labels = np.take_along_axis(sequences, positions, axis=1)
    fate = rng.random(labels.shape)
    other = rng.integers(FIRST, VOCABULARY, labels.shape)
    seen = np.where(fate < 0.8, MASK, np.where(fate < 0.9, other, labels))
    inputs = sequences.copy()
    np.put_along_axis(inputs, positions, seen, axis=1)
    return inputs, positions, labels


def make_batch(first: Ids, second: Ids, predictions: int, rng: np.random.Generator) -> dict[str, Ids]:
    """Make a batch of rows: pair them and mask characters."""
    follows = rng.random(len(first)) < 0.5
    inputs, positions, labels = mask(pair(first, second, follows), predictions, rng)
    segments = np.zeros_like(inputs)
    segments[:, first.shape[1] // 2 + 2 :] = 1
    return {
        "input_ids": inputs,
        "segment_ids": segments,
        "input_mask": np.ones_like(inputs),
        "positions": positions,
        "labels": labels,
        "next_sentence_labels": (~follows).astype(np.int64),  # 0: B follows A, as in BERT's data
    }


class TrainText:
    """A rank's share of the rows; seed and epoch determine the order and the masks."""

    def __init__(self, ctx: RankContext) -> None:
        self.ctx = ctx
        self.epoch = 0
        characters = encode(read_text(FILE)[0])
        if ctx.config.shuffle_labels:  # a control: no character can be predicted from its context
            characters = np.random.default_rng(ctx.seed).permutation(characters)
        self.rows = split_rows(characters, ctx.config.max_seq_length)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.rows) // (self.ctx.config.train_batch_size * self.ctx.data_ranks)

    def __iter__(self) -> Iterator[dict[str, Ids]]:
        ctx, size = self.ctx, self.ctx.config.train_batch_size
        order = np.random.default_rng((ctx.seed, self.epoch)).permutation(len(self.rows))
        order = order[ctx.data_rank :: ctx.data_ranks]
        for i in range(len(self)):
            rng = np.random.default_rng((ctx.seed, self.epoch, i, ctx.data_rank))
            first = self.rows[order[i * size : (i + 1) * size]]
            second = self.rows[rng.integers(0, len(self.rows), size)]
            yield make_batch(first, second, ctx.config.max_predictions_per_seq, rng)


class EvalText:
    """A rank's share of sequences spread over the evaluation text, the same for all seeds."""

    def __init__(self, ctx: RankContext) -> None:
        rows = split_rows(encode(read_text(FILE)[1]), ctx.config.max_seq_length)
        count, size = min(ctx.config.num_eval_samples, len(rows)), ctx.config.eval_batch_size
        chosen = rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]
        rng = np.random.default_rng(0)
        whole = make_batch(chosen, rng.permutation(chosen), ctx.config.max_predictions_per_seq, rng)
        start, end = (count * part // ctx.data_ranks for part in (ctx.data_rank, ctx.data_rank + 1))
        self.batches: list[dict[str, Ids]] = [
            {name: array[i : min(i + size, end)] for name, array in whole.items()} for i in range(start, end, size)
        ]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Ids]]:
        return iter(self.batches)
