"""The ranks' shares of the samples, epoch by epoch: for samples of any kind, in Python and numpy only.

A *source* reads the batch that a ``Draw`` selects; a *share* yields one rank's draws of an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from flagperf_driver.training.batches import converted

Array: TypeAlias = npt.NDArray[Any]


class RankContext(Protocol):
    """What a reader must know of its rank; the steps' context of every framework has it."""

    config: Any
    seed: int
    """The round's seed, the same on all ranks."""
    data_dir: Path | None

    @property
    def data_rank(self) -> int:
        """Which share of the samples the rank reads."""

    @property
    def data_ranks(self) -> int:
        """The number of shares."""


class SourceError(ValueError):
    """A source cannot read its data; the message names the file."""


class TooFewSamples(ValueError):
    """There are too few samples for one batch on each rank."""


class Share(Protocol):
    """One rank's batches of an epoch."""

    def set_epoch(self, epoch: int) -> None: ...

    def skip(self, batches: int) -> None: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Draw]: ...


class Draw(NamedTuple):
    """The samples of one batch, and their epoch; random changes of a sample depend on both."""

    epoch: int
    indices: Array
    copies: Array | None = None
    """For each sample, which of its copies in this epoch it is, from 0; None: every sample occurs once."""
    number: int = 0
    """Of the batch in the epoch."""


class Source(Protocol):
    """Reads batches: named tuples or dicts of numpy arrays."""

    def __len__(self) -> int: ...

    def __getitem__(self, draw: Draw) -> Any: ...


class TrainShare:
    """One rank's part of each global batch; every epoch has a new order, the same on all ranks.

    Samples that do not fill a global batch are left out, different samples in each epoch. With equal global
    batches the order does not depend on the number of ranks.

    With ``repeats``, a global batch has that many copies of fewer samples, far apart from each other, and an epoch of
    the same length has fewer different samples: repeated augmentation (https://arxiv.org/abs/1902.05509).
    """

    def __init__(
        self, samples: int, batch_size: int, rank: int, world_size: int, seed: int, *, repeats: int = 1
    ) -> None:
        self._samples, self._batch_size, self._rank, self._world_size = samples, batch_size, rank, world_size
        self._seed, self._epoch, self._start, self._repeats = seed, 0, 0, repeats
        self.any_ranks = repeats == 1
        """Whether any number of ranks reads the same samples in each step, if a step has as many samples."""
        if not len(self):
            raise TooFewSamples(
                f"{samples} samples are too few for one batch of {batch_size} on each of {world_size} ranks; "
                "reduce train_batch_size"
            )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._epoch = epoch

    def skip(self, batches: int) -> None:
        """Leave out the first batches of the next pass, which a resumed training has done."""
        self._start = batches

    def __len__(self) -> int:
        return self._samples // (self._batch_size * self._world_size)

    def __iter__(self) -> Iterator[Draw]:
        epoch, start, self._start = self._epoch, self._start, 0  # only this pass skips batches
        order = self._order(np.random.default_rng((self._seed, epoch)))
        different = math.ceil(self._batch_size * self._world_size / self._repeats)  # samples of a global batch
        places = self._rank * self._batch_size + np.arange(self._batch_size)
        copies = None if self._repeats == 1 else places // different
        for batch in range(start, len(self)):
            yield Draw(epoch, order[batch * different + places % different], copies, batch)

    def _order(self, rng: np.random.Generator) -> Array:
        return rng.permutation(self._samples)


class GroupedTrainShare(TrainShare):
    """As TrainShare, but all samples of a global batch are of one group, such as pictures of one shape.

    The samples of a group that do not fill a global batch are left out, different samples in each epoch. An epoch
    begins with a batch of each group: what is compiled for a shape is compiled before the measured steps.
    """

    def __init__(self, groups: Array, batch_size: int, rank: int, world_size: int, seed: int) -> None:
        """Take the number of each sample's group."""
        self._together = batch_size * world_size
        self._groups = [np.flatnonzero(groups == group) for group in np.unique(groups)]
        super().__init__(len(groups), batch_size, rank, world_size, seed)
        self.any_ranks = False

    def __len__(self) -> int:
        return sum(len(group) // self._together for group in self._groups)

    def _order(self, rng: np.random.Generator) -> Array:
        size = self._together
        batches = [rng.permutation(group)[: len(group) // size * size].reshape(-1, size) for group in self._groups]
        first, others = (
            np.concatenate([of_group[part] for of_group in batches]) for part in (slice(1), slice(1, None))
        )
        return np.concatenate([rng.permutation(first), rng.permutation(others)]).reshape(-1)


class EvalShare:
    """One rank's part of all samples; the last batch may be shorter, and a rank may have no batch."""

    def __init__(self, samples: int, batch_size: int, rank: int, world_size: int) -> None:
        self._mine, self._batch_size = np.arange(rank, samples, world_size), batch_size

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: all epochs are the same."""

    def skip(self, batches: int) -> None:
        """Do nothing: an evaluation is never resumed."""

    def __len__(self) -> int:
        return math.ceil(len(self._mine) / self._batch_size)

    def __iter__(self) -> Iterator[Draw]:
        for batch in range(len(self)):
            yield Draw(0, self._mine[batch * self._batch_size :][: self._batch_size], None, batch)


class GroupedEvalShare(EvalShare):
    """As EvalShare, but all samples of a batch are of one group."""

    def __init__(self, groups: Array, batch_size: int, rank: int, world_size: int) -> None:
        """Take the number of each sample's group."""
        super().__init__(len(groups), batch_size, rank, world_size)
        mine = np.argsort(groups, kind="stable")[self._mine]
        ends = np.flatnonzero(np.diff(groups[mine])) + 1
        self._batches = [
            part[first : first + batch_size]
            for part in np.split(mine, ends)
            for first in range(0, len(part), batch_size)
        ]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Draw]:
        return (Draw(0, batch, None, number) for number, batch in enumerate(self._batches))


def turn(epoch: int, number: int, count: int) -> int:
    """Return which of ``count`` repeated batches is the batch ``number`` of an epoch, the same on all ranks.

    All are used once, in an order that the epoch determines, then again in another one.
    """
    again, place = divmod(number, count)
    return int(np.random.default_rng((epoch, again)).permutation(count)[place])


class Repeated:
    """A few batches, made once and returned in ``turn``: for throughput only, at no cost of reading."""

    def __init__(self, batches: Sequence[Any], samples: int) -> None:
        self._batches, self._samples = batches, samples

    def converted(self, convert: Callable[[Any], Any]) -> Repeated:
        """Return the same batches with other arrays."""
        return Repeated([converted(batch, convert) for batch in self._batches], self._samples)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, draw: Draw) -> Any:
        batch, count = self._batches[turn(draw.epoch, draw.number, len(self._batches))], len(draw.indices)
        return type(batch)(*(None if part is None else part[:count] for part in batch))
