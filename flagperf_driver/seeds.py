"""Every random number of a training comes from its round's seed.

``derive(seed, purpose, rank)`` is the first 32 bits of the SHA-256 of ``"<seed>/<purpose>/<rank>"``:
independent streams that do not move when another purpose is added, equal on every machine and every Python.
What must be equal on all ranks (the initial weights, the order of the samples) leaves ``rank`` at 0.
"""

from __future__ import annotations

import hashlib

MODEL = "model"
RANK = "rank"  # what may differ between ranks: dropout, augmentation


def derive(seed: int, purpose: str, rank: int = 0) -> int:
    """A seed below 2**32, which every library takes."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{rank}".encode()).digest()
    return int.from_bytes(digest[:4], "little")
