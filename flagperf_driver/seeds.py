"""Every random number of a training comes from its round's seed.

``derive(seed, purpose, rank)`` is the first 32 bits of the SHA-256 of ``"<seed>/<purpose>/<rank>"``:
independent streams that do not move when another purpose is added, equal on every machine and every Python.
What must be equal on all ranks (the initial weights, the order of the samples) leaves ``rank`` at 0.
"""

from __future__ import annotations

import hashlib
import random

MODEL = "model"
DATA = "data"
RANK = "rank"  # what may differ between ranks: dropout, augmentation


def derive(seed: int, purpose: str, rank: int = 0) -> int:
    """A seed below 2**32, which every library takes."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{rank}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def seed_python(seed: int, rank: int = 0) -> None:
    """Seed the standard library's generator of this rank."""
    random.seed(derive(seed, RANK, rank))


def environment(seed: int) -> dict[str, str]:
    """What must be set before a rank's Python starts: the order of its sets of strings."""
    return {"PYTHONHASHSEED": str(derive(seed, "hash"))}
