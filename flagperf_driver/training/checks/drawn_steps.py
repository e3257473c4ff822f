"""Draw the steps of a training at which it is checked, so that no code can know them before."""

from __future__ import annotations

import hashlib
import os

_random = os.urandom  # bound here: a vendor's code is imported later


def secret() -> str:
    """Return a random text that no code outside this process knows."""
    return _random(16).hex()


class DrawnSteps:
    """Steps with random gaps between them, of ``shortest`` steps or a ``share`` of the steps so far in the mean.

    So a training of any length has several drawn steps, and a long one spends no more time on them than a short one.
    No gap is longer than twice the mean, and after a drawn step any of the next steps may be drawn too.
    They are drawn from a key: the same on all ranks, made of the round's token, a secret of the first rank, which
    nothing stores, and the kind of the check.
    """

    def __init__(self, key: str, shortest: int, share: float) -> None:
        self._key = key
        self._shortest, self._share = shortest, share
        self._next = 0

    def __contains__(self, step: int) -> bool:
        """Return whether this step is drawn; ask for steps in ascending order."""
        while step > self._next:
            longest = 2 * max(self._shortest, int(self._next * self._share))
            digest = hashlib.sha256(f"{self._key}/{self._next}".encode()).digest()
            self._next += 1 + int.from_bytes(digest[:8], "big") % longest
        return step == self._next
