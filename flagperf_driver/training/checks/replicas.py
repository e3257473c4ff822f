"""Check that all ranks hold the same weights."""

from __future__ import annotations

import hashlib
from typing import Any, Mapping, Sequence

SHORTEST, SHARE = 4, 1 / 8
"""The mean gap between two checks (``DrawnSteps``)."""
_MAX_LISTED = 5


class ReplicaError(ValueError):
    """The ranks hold different weights."""


def digest(weights: Mapping[str, Any]) -> str:
    """Return a digest of numpy arrays by name."""
    whole = hashlib.sha256()
    for name in sorted(weights):
        whole.update(name.encode() + b"\0")
        whole.update(weights[name].tobytes())
    return whole.hexdigest()


def check(digests: Sequence[str], step: int) -> None:
    """Raise an error if the ranks' digests after this step differ; ``digests`` are in the order of the ranks."""
    others = [rank for rank, value in enumerate(digests) if value != digests[0]]
    if others:
        listed = ", ".join(map(str, others[:_MAX_LISTED])) + (", ..." if len(others) > _MAX_LISTED else "")
        raise ReplicaError(
            f"after step {step} the weights of {'rank' if len(others) == 1 else 'ranks'} {listed} differ from those of "
            "rank 0; expected equal weights on all ranks after every step: the ranks did not exchange their gradients "
            "in this step, or did not compute the same update"
        )
