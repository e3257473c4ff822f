"""Megatron's preprocessed data: a file .bin with the tokens of all documents, and .idx with the size and place of each.

The index is mapped into memory, so that the ranks of a host share it. The tokens are read document by document: a map
of a file that is larger than the memory reads many pages around each document, and a cut file or a lost network would
end the process without a message. The samples are Megatron's: the shuffled
documents are joined, sample i has the tokens from i x length to (i + 1) x length, both included, and the samples
are shuffled too. Sizes, places and order of the samples are those of GPTDataset of megatron-core.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

from common.shares import Array, Draw, SourceError

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, type of the tokens, number of sequences, number of ends of documents."""
VERSION = 1
TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""The types of tokens, by the number that the index has; 6 and 7 are floating-point numbers."""

BLOCK = 1 << 20
"""The number of documents whose sizes are checked together."""


class Documents:
    """The documents of a file .bin and of the .idx beside it, in the order of the files."""

    def __init__(self, path: Path) -> None:
        self.data, index = path, path.with_suffix(".idx")
        code, self.sizes, self._places = _read_index(index)
        self._dtype = np.dtype(TYPES[code])
        self.tokens = _count_tokens(index, self.sizes, self._places, self._dtype.itemsize)
        expected = self.tokens * self._dtype.itemsize
        try:
            self._file = self.data.open("rb", buffering=0)
            found = self.data.stat().st_size
        except OSError as error:
            raise SourceError(f"{self.data}: cannot be read ({error.strerror}); copy the file again") from None
        if found != expected:
            raise SourceError(f"{self.data}: {found} bytes, expected {expected} by {index.name}; copy both files again")

    def __len__(self) -> int:
        return len(self.sizes)

    def read(self, number: int, skipped: int, count: int) -> Array:
        """Return at most ``count`` tokens of a document after the first ones."""
        size = min(count, int(self.sizes[number]) - skipped) * self._dtype.itemsize
        try:
            content = os.pread(self._file.fileno(), size, int(self._places[number]) + skipped * self._dtype.itemsize)
        except OSError as error:
            raise SourceError(f"{self.data}: cannot be read ({error.strerror})") from None
        if len(content) != size:
            raise SourceError(f"{self.data}: the file was cut while it was read; copy it again")
        return np.frombuffer(content, self._dtype)


def _read_index(path: Path) -> tuple[int, Array, Array]:
    """Return the type of the tokens, the size of each document in tokens and its place in bytes."""
    try:
        with path.open("rb") as file:
            head = file.read(HEADER.size)
            if len(head) < HEADER.size or not head.startswith(MAGIC):
                raise SourceError(f"{path}: not an index of Megatron's data; copy the file again")
            _, version, code, count, ends = HEADER.unpack(head)
            if version != VERSION or code not in TYPES:
                raise SourceError(
                    f"{path}: version {version}, tokens of type {code}; expected version {VERSION}, "
                    f"whole numbers (types {', '.join(map(str, TYPES))})"
                )
            found, expected = path.stat().st_size, HEADER.size + 12 * count + 8 * ends
            if found != expected or not count:
                raise SourceError(
                    f"{path}: {found} bytes, expected {expected} for {count} documents; copy the file again"
                )
        rest = np.memmap(path, np.uint8, "r", HEADER.size).view(np.ndarray)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}); copy the file again") from None
    return code, rest[: 4 * count].view("<i4"), rest[4 * count : 12 * count].view("<i8")


def _count_tokens(path: Path, sizes: Array, places: Array, itemsize: int) -> int:
    """Return the tokens of all documents; check that the documents lie one after the other."""
    tokens = 0
    for first in range(0, len(sizes), BLOCK):
        block = sizes[first : first + BLOCK].astype(np.int64)
        ends = tokens + np.cumsum(block)
        if block.min() < 0 or (places[first : first + BLOCK] != (ends - block) * itemsize).any():
            raise SourceError(f"{path}: sizes and places of the documents do not match; copy the file again")
        tokens = int(ends[-1])
    return tokens


class Samples:
    """Rows of ``length`` + 1 tokens; the last token of a row is the first one of the next row of the same epoch."""

    def __init__(
        self, documents: Documents, length: int, vocab_size: int, seed: int | None = None, count: int | None = None
    ) -> None:
        """Shuffle each epoch by the seed, or keep the order of the files without one; take the first ``count`` rows."""
        self._documents, self._length, self._vocab_size, self._seed = documents, length, vocab_size, seed
        available = (documents.tokens - 1) // length
        if available < (count or 1):
            raise SourceError(
                f"{documents.data}: {documents.tokens} tokens; expected at least {(count or 1) * length + 1} "
                f"for {count or 1} sequences of max_seq_length = {length}"
            )
        self._count = count or available
        self._arrange(0)

    def _arrange(self, epoch: int) -> None:
        """Find the order of the documents, in which of them each sample begins and where, and the samples' order."""
        self._epoch = epoch
        documents = self._documents
        order = np.arange(len(documents), dtype=np.int32 if len(documents) < 2**31 else np.int64)
        samples = np.arange(self._count, dtype=np.int64)
        if self._seed is not None:
            # The generator and the order of its calls are Megatron's, whose first epoch has the seed alone.
            random = np.random.RandomState((self._seed, epoch) if epoch else self._seed)
            random.shuffle(order)
            random.shuffle(samples)
        ends = np.cumsum(documents.sizes[order], dtype=np.int64)
        begins = np.arange(self._count, dtype=np.int64) * self._length
        self._first = np.searchsorted(ends, begins, side="right")
        self._skipped = begins - (ends[self._first] - documents.sizes[order[self._first]])
        self._order, self._samples = order, samples

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, draw: Draw) -> Array:
        if draw.epoch != self._epoch and self._seed is not None:
            self._arrange(draw.epoch)
        rows = np.empty((len(draw.indices), self._length + 1), np.int64)
        for row, index in zip(rows, draw.indices, strict=True):
            self._fill(row, int(self._samples[index]))
        low, high = int(rows.min()), int(rows.max())
        if low < 0 or high >= self._vocab_size:
            # A device would fail on such a token without a useful message.
            raise SourceError(
                f"{self._documents.data}: tokens from {low} to {high}; expected 0 to {self._vocab_size - 1} for "
                f"vocab_size = {self._vocab_size}; use data of the same tokenizer, or copy the file again"
            )
        return rows

    def _fill(self, row: Array, sample: int) -> None:
        place, skipped, filled = int(self._first[sample]), int(self._skipped[sample]), 0
        while filled < len(row):
            part = self._documents.read(self._order[place], skipped, len(row) - filled)
            row[filled : filled + len(part)] = part
            place, skipped, filled = place + 1, 0, filled + len(part)
