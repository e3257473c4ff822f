"""Texts as tokens: long arrays for all of them, and batches of one length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from common.shares import Array, Draw

IGNORED = -100
"""The target where the loss does not count."""


class Text(NamedTuple):
    """A batch."""

    tokens: Array
    """(N, length)"""
    targets: Array
    """(N, length): the next token of each place, or IGNORED."""


@dataclass(frozen=True)
class Lines:
    """Text i has the tokens from first[i] to first[i + 1]; those from asked[i] on, counted in the text, are targets."""

    tokens: Array
    first: Array
    asked: Array
    length: int
    pad: int
    answered: Array | None = None
    """For each text, the text whose targets it gets; None: its own."""

    def __len__(self) -> int:
        return len(self.asked)

    def __getitem__(self, draw: Draw) -> Text:
        own = draw.indices
        other = own if self.answered is None else self.answered[own]
        place = np.arange(self.length + 1)
        tokens = np.where(place < self._sizes(own), self._at(own, place), self.pad)
        # The k-th target is at the same distance from the first one in both texts.
        target = place[1:] - self.asked[own, None] + self.asked[other, None]
        inside = (place[1:] >= self.asked[own, None]) & (place[1:] < self._sizes(own)) & (target < self._sizes(other))
        return Text(tokens[:, :-1], np.where(inside, self._at(other, target), IGNORED))

    def _sizes(self, texts: Array) -> Array:
        sizes: Array = (self.first[texts + 1] - self.first[texts])[:, None]
        return sizes

    def _at(self, texts: Array, place: Array) -> Array:
        """Return the tokens at places of texts; any token at places outside."""
        found: Array = self.tokens[np.clip(self.first[texts, None] + place, 0, len(self.tokens) - 1)]
        return found.astype(np.int64)

    def with_other_targets(self, seed: int) -> Lines:
        """Return the same texts, each with the targets of another, for a control that must not learn."""
        order = np.random.default_rng(seed).permutation(len(self))
        answered = np.empty_like(order)
        answered[order] = np.roll(order, 1)
        return replace(self, answered=answered)


def join(texts: Iterable[Sequence[int]], asked: Sequence[int], length: int, pad: int) -> Lines:
    """Return texts of at most length + 1 tokens each."""
    rows = list(texts)
    first = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    tokens = np.array([token for row in rows for token in row], np.int64)
    return Lines(tokens, first, np.array(asked, np.int64), length, pad)
