"""The small data of language models: the bytes of real Wikipedia text, in rows of equal length."""

from __future__ import annotations

import numpy as np

from common.language.wikipedia import FILE, read_text
from common.shares import Array, Draw

VOCABULARY = 256


class TextBytes:
    """Rows of ``length`` + 1 bytes of the text for training, or of the text for evaluation.

    A row begins with the last byte of the row before it, so that every byte but the first one is predicted once.
    """

    def __init__(self, length: int, *, training: bool, count: int | None = None) -> None:
        """Take all rows, or ``count`` rows that are spread over the text."""
        text = read_text(FILE)[0 if training else 1].encode("utf-8")
        rows = (len(text) - 1) // length
        numbers = np.arange(rows) if count is None else np.linspace(0, rows - 1, min(count, rows)).astype(np.int64)
        self._bytes = np.frombuffer(text, np.uint8)
        self._starts = numbers * length
        self._row = np.arange(length + 1)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, draw: Draw) -> Array:
        return self._bytes[self._starts[draw.indices][:, None] + self._row].astype(np.int64)
