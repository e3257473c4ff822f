"""Seeds of a training's random numbers, all derived from the round's seed.

``derive(seed, purpose, rank)`` is the first 32 bits of the SHA-256 of ``"<seed>/<purpose>/<rank>"``: each purpose has
an independent stream, adding a purpose changes no other stream, and all machines and Python versions get the same
seeds. For numbers that must be equal on all ranks (initial weights, order of the samples) leave ``rank`` at 0.
"""

from __future__ import annotations

import hashlib

MODEL = "model"
RANK = "rank"  # random numbers that may differ between ranks: dropout, augmentation


def derive(seed: int, purpose: str, rank: int = 0) -> int:
    """Return a seed below 2**32, which every library accepts."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{rank}".encode()).digest()
    return int.from_bytes(digest[:4], "little")
