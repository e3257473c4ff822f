"""Give a training the order of its data, epoch by epoch, once its time counts: nothing can be computed before.

The data of an epoch, their order and their changes follow from a number. Without a replay it is the epoch's number.
With one it follows from a secret of the training, and the first rank asks for it when the epoch begins.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Callable

from flagperf_driver import layout, seeds
from flagperf_driver.node.folder import LogFolder

_LONGEST = 9  # digits of an epoch


class EpochOrders:
    """The orders of a training's epochs; ``has_begun`` returns whether the first rank has logged TRAIN_START."""

    def __init__(self, folder: LogFolder, secret: int, has_begun: Callable[[], bool]) -> None:
        self._folder, self._secret, self._has_begun = folder, secret, has_begun
        self._asked: int | None = None
        self.given: dict[int, int] = {}
        """The orders by their epochs."""
        pipe = folder.path / layout.ORDERS_ASKED
        for path in (pipe, folder.path / layout.ORDER):
            path.unlink(missing_ok=True)
        os.mkfifo(pipe, 0o600)
        # This process also writes, so that the pipe never ends.
        self.pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def read(self) -> None:
        """Read the epoch that the rank asks for."""
        with suppress(BlockingIOError):
            for word in os.read(self.pipe, 1 << 12).split():
                if word.isdigit() and len(word) <= _LONGEST:
                    self._asked = int(word)

    def process(self) -> None:
        """Answer the rank if it has asked and its time counts; called often, and immediately after ``read``."""
        if self._asked is None or not self._has_begun():
            return
        epoch, self._asked = self._asked, None
        # Below 2**31, which every generator of random numbers takes.
        self.given[epoch] = seeds.derive(self._secret, "order", epoch) >> 1
        self._folder.write(layout.ORDER, json.dumps({"epoch": epoch, "order": self.given[epoch]}) + "\n")
