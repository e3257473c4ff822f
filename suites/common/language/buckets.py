"""Batches of about the same number of tokens, each padded to one of a few lengths: a few static shapes.

A sample belongs to the bucket of the smallest length that is at least its size. A global batch has samples of one
bucket, so all ranks have the same shape in each micro-step. The order is drawn alike on all ranks, so each rank knows
how many tokens all ranks have in a step, and can weigh each token alike without asking the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from common.shares import Array, TooFewSamples


class TokenDraw(NamedTuple):
    """The samples of one batch."""

    indices: Array
    length: int
    """The length that all samples of the batch are padded to."""
    tokens_of_step: float
    """The mean number of tokens in a batch of this optimizer step, over ranks and micro-steps."""


class TokenBuckets:
    """One rank's batches of an epoch; every epoch has a new order, the same on all ranks.

    Samples that do not fill a global batch or an optimizer step are left out, different samples in each epoch, and so
    are samples longer than the longest bucket. The order does not depend on the number of ranks if the global batches
    are equal and the lengths divide ``batch_size`` times the longest length.
    """

    def __init__(
        self,
        sizes: Array,
        tokens: Array,
        lengths: Sequence[int],
        batch_size: int,
        rank: int,
        world_size: int,
        seed: int,
        *,
        accumulation: int = 1,
    ) -> None:
        """Take the size and the tokens of each sample: the size decides on the bucket, the tokens weigh the loss.

        ``lengths`` are those of the buckets, rising. A batch has ``batch_size`` samples of the longest length, and as
        many more of a shorter length as have no more tokens with their padding.
        """
        self._tokens, self._lengths = tokens, tuple(lengths)
        self._rank, self._world_size, self._seed, self._accumulation = rank, world_size, seed, accumulation
        self._epoch, self._start = 0, 0
        self._rows = [batch_size * self._lengths[-1] // length for length in self._lengths]
        buckets = bucket_of(sizes, self._lengths)
        self._samples = [np.flatnonzero(buckets == number) for number in range(len(self._lengths))]
        if not len(self):
            raise TooFewSamples(
                f"{len(sizes)} samples are too few for {accumulation} full batch(es) on each of {world_size} ranks; "
                "reduce train_batch_size or gradient_accumulation_steps"
            )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._epoch = epoch

    def skip(self, batches: int) -> None:
        """Leave out the first batches of the next pass, which a resumed training has done."""
        self._start = batches

    def __len__(self) -> int:
        batches = sum(
            len(samples) // (rows * self._world_size) for samples, rows in zip(self._samples, self._rows, strict=True)
        )
        return batches - batches % self._accumulation

    def __iter__(self) -> Iterator[TokenDraw]:
        start, self._start = self._start, 0  # only this pass skips batches
        batches = self._global_batches()
        for first in range(start - start % self._accumulation, len(self), self._accumulation):
            step = batches[first : first + self._accumulation]
            mean = sum(int(self._tokens[samples].sum()) for _, samples in step) / (len(step) * self._world_size)
            for bucket, samples in step[max(start - first, 0) :]:
                rows = self._rows[bucket]
                mine = samples[self._rank * rows : (self._rank + 1) * rows]
                yield TokenDraw(mine, self._lengths[bucket], mean)

    def _global_batches(self) -> list[tuple[int, Array]]:
        """Return bucket and samples of the epoch's global batches, in their order."""
        rng = np.random.default_rng((self._seed, self._epoch))
        batches = []
        for bucket, (samples, rows) in enumerate(zip(self._samples, self._rows, strict=True)):
            together = rows * self._world_size
            drawn = rng.permutation(samples)[: len(samples) // together * together]
            batches += [(bucket, batch) for batch in drawn.reshape(-1, together)]
        return [batches[place] for place in rng.permutation(len(batches))]


def bucket_of(sizes: Array, lengths: Sequence[int]) -> Array:
    """Return the number of each sample's bucket; samples longer than all buckets get the next number."""
    numbers: Array = np.searchsorted(np.asarray(lengths), sizes)
    return numbers
