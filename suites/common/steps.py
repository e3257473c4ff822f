"""Loading of batches for the PyTorch steps of every home of shared code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from common.shares import Draw, Share, Source, SourceError


class Loader:
    """Reads a rank's share of a source, in this process or in advance by worker processes."""

    def __init__(self, source: Source, share: Share, num_workers: int = 0, *, pin: bool = False) -> None:
        self._share = share
        self._batches: Iterable[Any] = (
            _parallel(source, share, num_workers, pin=pin) if num_workers else _Inline(source, share)
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._share.set_epoch(epoch)

    def skip(self, batches: int) -> None:
        """Leave out the first batches of the next pass, without reading them."""
        self._share.skip(batches)

    def __len__(self) -> int:
        return len(self._share)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            if isinstance(batch, SourceError):
                raise batch
            yield batch


class _Inline:
    def __init__(self, source: Source, share: Share) -> None:
        self._source, self._share = source, share

    def __iter__(self) -> Iterator[Any]:
        return (self._source[draw] for draw in self._share)


class _ErrorsAsBatches:
    """Returns a worker's error as its batch: the DataLoader would put the worker's traceback into the message."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, draw: Draw) -> Any:
        try:
            return self._source[draw]
        except SourceError as error:
            return error


def _parallel(source: Source, share: Share, num_workers: int, *, pin: bool) -> DataLoader[Any]:
    return DataLoader(
        _ErrorsAsBatches(source),  # a key is a Draw, not an int
        sampler=share,
        batch_size=None,  # a draw is a batch already
        num_workers=num_workers,
        pin_memory=pin,
        # Newer Pythons default to new processes, which would import the rank's program and its framework again.
        multiprocessing_context="fork",
        persistent_workers=True,
        prefetch_factor=4,
    )
