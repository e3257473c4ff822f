"""Check that all ranks hold the same weights."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any, Mapping, Sequence

from flagperf_driver.training.checks.drawn_steps import DrawnSteps

SHORTEST, SHARE = 4, 1 / 8
"""The mean gap between two checks (``DrawnSteps``)."""
WHOLE = "the model"
"""The part that every rank holds, where nothing is divided."""
_MAX_LISTED = 5


class ReplicaError(ValueError):
    """The ranks hold different weights."""


class ReplicaSteps:
    """The steps after which the ranks' weights are compared: drawn ones, and every so many if the config says so."""

    def __init__(self, key: str, every: int | None) -> None:
        self._drawn, self._every = DrawnSteps(key, SHORTEST, SHARE), every or 0

    def __contains__(self, step: int) -> bool:
        """Return whether the weights are compared after this step; ask for steps in ascending order."""
        return step in self._drawn or (self._every > 0 and step % self._every == 0)


def digest(weights: Mapping[str, Any]) -> str:
    """Return a digest of numpy arrays by name."""
    whole = hashlib.sha256()
    for name in sorted(weights):
        whole.update(name.encode() + b"\0")
        whole.update(weights[name].tobytes())
    return whole.hexdigest()


def check(parts_of_ranks: Sequence[Mapping[str, str]], step: int) -> None:
    """Raise an error if two ranks hold different digests of the same part of the weights after this step.

    ``parts_of_ranks`` are in the order of the ranks. The ranks that differ from most others are named.
    """
    for part in dict.fromkeys(part for parts in parts_of_ranks for part in parts):
        digests = {rank: parts[part] for rank, parts in enumerate(parts_of_ranks) if part in parts}
        counts = Counter(digests.values())
        if len(counts) > 1:
            raise ReplicaError(_difference(part, digests, counts, step))


def _difference(part: str, digests: Mapping[int, str], counts: Mapping[str, int], step: int) -> str:
    most = max(counts.values())
    usual = [value for value, count in counts.items() if count == most]
    weights = "the weights" if part == WHOLE else f"the weights ({part})"
    if len(usual) == 1:
        others = [rank for rank, value in digests.items() if value != usual[0]]
        who = f"{weights} of {_ranks(others)} differ from those of {_ranks(sorted(digests.keys() - set(others)))}"
    else:
        who = f"{weights} differ between {_ranks(list(digests))}; no value has a majority"
    return (
        f"after step {step} {who}; expected equal weights on all ranks after every step: memory was damaged, or the "
        "ranks did not exchange their gradients, or did not compute the same update"
    )


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:_MAX_LISTED])) + (", ..." if len(ranks) > _MAX_LISTED else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed}"
