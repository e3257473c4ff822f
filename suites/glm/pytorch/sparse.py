"""Read ReCoRD in FlagPerf's encoded format, ``{train,eval}_sparse.hdf5``, with one row for each candidate.

Each entry is a group as the package h5sparse writes it: a sparse matrix (``data``, ``indices``, ``indptr``) with its
shape and its format, ``csc`` (by columns) or ``csr`` (by rows), in the attributes ``h5sparse_shape`` and
``h5sparse_format``:

    text, target, logit_mask   [sequences, length]   tokens; the next token; 1 if the next token is of the answer
    position                   [2 * sequences, length]   for each sequence the positions in the text, then in the span
    mask                       [sequences, 1]   the length of Part A
    choice_start_end           [examples, 2]   the sequences of an example
    answer_idx, answer_start_end   evaluation only: the right candidates, and the range of them for each example

In the training file the first candidate is right. This layout is taken from the public programs that write and read
these files; the published files are in the format ``csc``. It was not tested with the published files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from cloze import ClozeSet, Symbols
from record import RecordError

Array = np.ndarray[Any, Any]
ROWS = ("text", "position", "target", "logit_mask", "mask", "choice_start_end")
RIGHT = ("answer_idx", "answer_start_end")
CHUNK = 8192
SYMBOLS = Symbols(pad=0, cls=101, mask=103, start=30522, end=30523)
"""Symbols of the uncased vocabulary of 30,522 wordpieces, and the two symbols after it."""


class Rows:
    """A sparse matrix in memory, ordered by rows; ``dense`` returns some of its rows."""

    def __init__(self, group: Any) -> None:
        self.shape = tuple(int(size) for size in group.attrs["h5sparse_shape"])
        self.data, self.indices, self.indptr = (group[part][()] for part in ("data", "indices", "indptr"))
        layout = group.attrs["h5sparse_format"]
        layout = layout.decode() if isinstance(layout, bytes) else str(layout)
        if layout == "csc":
            self._order_by_rows()
        elif layout != "csr":
            raise RecordError(f"{group.name}: h5sparse_format is {layout!r}; expected csc or csr")

    def _order_by_rows(self) -> None:
        """Convert from columns to rows, column by column: no sort, and no second copy of a large index."""
        starts = np.append(0, np.cumsum(np.bincount(self.indices, minlength=self.shape[0])))
        free, data, columns = starts[:-1].copy(), np.empty_like(self.data), np.empty(len(self.data), np.int32)
        for column in range(self.shape[1]):
            entries = slice(self.indptr[column], self.indptr[column + 1])
            rows = self.indices[entries]
            places = free[rows]
            data[places], columns[places] = self.data[entries], column
            free[rows] += 1
        self.data, self.indices, self.indptr = data, columns, starts

    def dense(self, start: int = 0, stop: int | None = None, step: int = 1) -> Array:
        rows = np.arange(start, self.shape[0] if stop is None else stop)
        counts = np.diff(self.indptr)[rows]
        entries = slice(self.indptr[rows[0]], self.indptr[rows[-1] + 1]) if len(rows) else slice(0)
        filled = np.zeros((len(rows), self.shape[1]), dtype=np.int64)
        filled[np.repeat(np.arange(len(rows)), counts), self.indices[entries]] = self.data[entries]
        return filled[::step]


def read(path: Path, *, training: bool, vocab_size: int, length: int) -> ClozeSet:
    import h5py  # not installed for the small data

    if not path.is_file():
        raise RecordError(f"{path}: file not found")
    try:
        with h5py.File(path, "r") as file:
            required = ROWS if training else ROWS + RIGHT
            missing = [name for name in required if name not in file]
            if missing:
                raise RecordError(f"missing {', '.join(missing)}; found {', '.join(sorted(file))}")
            data = _cloze_set({name: Rows(file[name]) for name in required}, training)
        _check(data, vocab_size, length)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error
    except (OSError, KeyError, IndexError, ValueError) as error:
        expected = "expected FlagPerf's sparse HDF5 file; download it again if it is damaged"
        raise RecordError(f"{path}: cannot be read: {error}; {expected}") from error
    return data


def _check(data: ClozeSet, vocab_size: int, length: int) -> None:
    """Raise an error for values that the model cannot take, or that would be cut off."""
    for name, tokens in (("text", data.texts), ("target", data.answers)):
        low, high = (int(value) for value in tokens.aminmax())
        if low < 0 or high >= vocab_size:
            wrong = low if low < 0 else high
            raise RecordError(f"{name} contains token {wrong}; expected 0 to {vocab_size - 1} (vocab_size)")
    longest = int((data.text_length + data.answer_length).max())
    if longest > length:
        raise RecordError(f"a text with its answer has {longest} tokens; expected at most max_seq_length = {length}")
    if not bool(((data.mask_at >= 0) & (data.mask_at < data.text_length)).all()):
        raise RecordError("position: the place of a [MASK] is outside its text")


def _cloze_set(rows: dict[str, Rows], training: bool) -> ClozeSet:
    text_length = rows["mask"].dense().reshape(-1)
    texts, answers, mask_at, answer_length = [], [], [], []
    for start in range(0, len(text_length), CHUNK):
        stop = min(start + CHUNK, len(text_length))
        lengths = text_length[start:stop]
        text = rows["text"].dense(start, stop)
        texts.append(text[np.arange(text.shape[1]) < lengths[:, None]].astype(np.int32))
        of_answer = rows["logit_mask"].dense(start, stop) != 0
        answers.append(rows["target"].dense(start, stop)[of_answer].astype(np.int32))
        answer_length.append(of_answer.sum(1))
        mask_at.append(rows["position"].dense(2 * start, 2 * stop, 2)[np.arange(stop - start), lengths])
    answer_lengths, first = np.concatenate(answer_length), _first(rows["choice_start_end"].dense())
    return ClozeSet(
        symbols=SYMBOLS,
        texts=torch.from_numpy(np.concatenate(texts)),
        text_start=torch.from_numpy(np.cumsum(text_length) - text_length),
        text_length=torch.from_numpy(text_length),
        mask_at=torch.from_numpy(np.concatenate(mask_at)),
        answers=torch.from_numpy(np.concatenate(answers)),
        answer_start=torch.from_numpy(np.cumsum(answer_lengths) - answer_lengths),
        answer_length=torch.from_numpy(answer_lengths),
        right=torch.from_numpy(_right(rows, first, training)),
        first=torch.from_numpy(first),
    )


def _first(choices: Array) -> Array:
    first = np.append(choices[:, 0], choices[-1, 1])
    if not np.array_equal(first[1:], choices[:, 1]):
        raise RecordError("choice_start_end: the candidates of consecutive examples must be consecutive")
    return first


def _right(rows: dict[str, Rows], first: Array, training: bool) -> Array:
    right = np.zeros(first[-1], dtype=bool)
    if training:
        right[first[:-1]] = True
    else:
        spans = rows["answer_start_end"].dense()
        example = np.repeat(np.arange(len(spans)), spans[:, 1] - spans[:, 0])
        right[first[example] + rows["answer_idx"].dense().reshape(-1)[: len(example)]] = True
    return right
