"""Read ReCoRD in FlagPerf's encoded format, ``{train,eval}_sparse.hdf5``, with one row for each candidate.

Each entry is a group with a sparse matrix of rows (``data``, ``indices``, ``indptr``, and the shape in the attribute
``h5sparse_shape``):

    text, target, logit_mask   [sequences, length]   tokens; the next token; 1 if the next token is of the answer
    position                   [2 * sequences, length]   for each sequence the positions in the text, then in the span
    mask                       one number per sequence: the length of Part A
    choice_start_end           [examples, 2]   the sequences of an example
    answer_idx, answer_start_end   evaluation only: the right candidates, and the range of them for each example

In the training file the first candidate is right. This layout is taken from the public program that reads these files;
it was not tested with the real files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from cloze import ClozeSet, Symbols
from record import RecordError

ROWS = ("text", "position", "target", "logit_mask", "mask", "choice_start_end")
RIGHT = ("answer_idx", "answer_start_end")
CHUNK = 8192
SYMBOLS = Symbols(pad=0, cls=101, mask=103, start=30522, end=30523)
"""Symbols of the uncased vocabulary of 30,522 wordpieces, and the two symbols after it."""


class Rows:
    """A sparse matrix in memory; ``dense`` returns some of its rows."""

    def __init__(self, group: Any) -> None:
        self.data, self.indices, self.indptr = (group[part][()] for part in ("data", "indices", "indptr"))
        self.shape = tuple(int(size) for size in group.attrs["h5sparse_shape"])

    def dense(self, start: int = 0, stop: int | None = None, step: int = 1) -> np.ndarray[Any, Any]:
        rows = np.arange(start, self.shape[0] if stop is None else stop)
        counts = np.diff(self.indptr)[rows]
        entries = slice(self.indptr[rows[0]], self.indptr[rows[-1] + 1]) if len(rows) else slice(0)
        filled = np.zeros((len(rows), self.shape[1]), dtype=np.int64)
        filled[np.repeat(np.arange(len(rows)), counts), self.indices[entries]] = self.data[entries]
        return filled[::step]


def read(path: Path, *, training: bool) -> ClozeSet:
    import h5py  # not installed for the small data

    if not path.is_file():
        raise RecordError(f"{path}: file not found")
    with h5py.File(path, "r") as file:
        required = ROWS if training else ROWS + RIGHT
        missing = [name for name in required if name not in file]
        if missing:
            raise RecordError(f"{path}: missing {', '.join(missing)}; found {', '.join(sorted(file))}")
        return _cloze_set({name: Rows(file[name]) for name in required}, training)


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


def _first(choices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    first = np.append(choices[:, 0], choices[-1, 1])
    if not np.array_equal(first[1:], choices[:, 1]):
        raise RecordError("choice_start_end: the candidates of consecutive examples must be consecutive")
    return first


def _right(rows: dict[str, Rows], first: np.ndarray[Any, Any], training: bool) -> np.ndarray[Any, Any]:
    right = np.zeros(first[-1], dtype=bool)
    if training:
        right[first[:-1]] = True
    else:
        spans = rows["answer_start_end"].dense()
        example = np.repeat(np.arange(len(spans)), spans[:, 1] - spans[:, 0])
        right[first[example] + rows["answer_idx"].dense().reshape(-1)[: len(example)]] = True
    return right
