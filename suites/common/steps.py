"""What the PyTorch steps of several homes of shared code need: loading of batches, and pixels on the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from common.reading import Reader
from common.shares import Draw, Repeated, Share, Source, SourceError
from flagperf_driver.pytorch import Context


class Loader:
    """Reads a rank's share of a source, in this process or in advance by worker processes."""

    def __init__(self, source: Source, share: Share, num_workers: int = 0, *, pin: bool = False) -> None:
        """With ``pin`` workers' batches, and repeated ones, are in memory from which the device copies faster."""
        self._share = share
        if pin and isinstance(source, Repeated):
            source = source.converted(_pinned)
        self._batches: Iterable[Any] = (
            _parallel(source, share, num_workers, pin=pin) if num_workers else Reader(source, share)
        )

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
        for batch in self._batches:
            if isinstance(batch, SourceError):
                raise batch
            yield batch


class _ErrorsAsBatches:
    """Returns a worker's error as its batch: the DataLoader would put the worker's traceback into the message."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, draw: Draw) -> Any:
        try:
            return self._source[draw]
        except SourceError as error:
            return error


def _pinned(part: Any) -> Any:
    return torch.as_tensor(part).pin_memory() if isinstance(part, (np.ndarray, Tensor)) else part


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


def normalised(ctx: Context, pixels: Tensor, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """Return bytes on the device, (N, 3, H, W), as normalised numbers in the layout that the config sets."""
    layout = torch.channels_last if ctx.config.channels_last else torch.contiguous_format
    shift, scale = _of_bytes(ctx.device, tuple(mean), tuple(deviation))
    return pixels.to(torch.float32, memory_format=layout).sub(shift).div_(scale)


@cache
def _of_bytes(device: torch.device, *moments: tuple[float, ...]) -> tuple[Tensor, ...]:
    """Return mean and deviation of bytes; kept, because a copy for each batch would be a synchronization."""
    return tuple(torch.tensor(of, device=device).mul_(255).view(3, 1, 1) for of in moments)
