"""Reads a rank's share of a source in the rank's process, for every framework."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from common.shares import Share, Source

AHEAD = 4
"""The number of batches per thread that are read in advance."""


class Reader:
    """Reads the batches in turn, or in advance by threads: decoding and resizing of pictures run in parallel."""

    def __init__(self, source: Source, share: Share, threads: int = 0) -> None:
        self._source, self._share, self._threads = source, share, threads

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._share.set_epoch(epoch)

    def skip(self, batches: int) -> None:
        """Leave out the first batches of the next pass, without reading them."""
        self._share.skip(batches)

    @property
    def any_ranks(self) -> bool:
        """Whether a training may continue on another number of ranks."""
        return getattr(self._share, "any_ranks", False)

    def __len__(self) -> int:
        return len(self._share)

    def __iter__(self) -> Iterator[Any]:
        if not self._threads:
            return (self._source[draw] for draw in self._share)
        return self._in_advance()

    def _in_advance(self) -> Iterator[Any]:
        waiting: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(self._threads) as pool:
            try:
                for draw in self._share:
                    waiting.append(pool.submit(self._source.__getitem__, draw))
                    if len(waiting) > AHEAD * self._threads:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
