"""Check that all ranks hold the same weights, and that weights without a copy change in updates only."""

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
    digests_of: dict[str, dict[int, str]] = {}
    for rank, parts in enumerate(parts_of_ranks):
        for part, digest in parts.items():
            digests_of.setdefault(part, {})[rank] = digest
    for part, digests in digests_of.items():
        counts = Counter(digests.values())
        if len(counts) > 1:
            raise ReplicaError(_difference(part, digests, counts, step))


def check_at_rest(changes: Sequence[tuple[str, int] | None]) -> None:
    """Raise an error if a rank's own weights changed between two updates: ``Trainer.changed_at_rest`` of each rank."""
    found = [(step, rank, name) for rank, (name, step) in ((r, change) for r, change in enumerate(changes) if change)]
    if found:
        step, rank, name = min(found)
        raise ReplicaError(
            f"{name} changed on rank {rank} between the updates of steps {step - 1} and {step}; expected equal bits "
            "until the next update: memory was damaged, or other code wrote to it"
        )


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
