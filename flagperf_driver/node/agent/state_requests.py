"""Ask a training for its states at moments that no rank knows before: each cuts the training into a further segment.

The agent also draws which segment is kept for the replay, each with the probability of its share of the time. A rank
learns of both when the segment is over.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

from flagperf_driver import layout
from flagperf_driver.heartbeat import INIT, read_heartbeat

SHORTEST_STEPS, SHORTEST_S, LONGEST_S = 10, 1.0, 90.0
SHARE = 0.03
"""The mean length of a segment, as a share of the training so far, within these limits."""


class StateRequests:
    """The requests to the first rank of a round: a file that the rank removes when it obeys."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / layout.SAVE_STATE
        self._beats = folder / "rank0.progress"
        self._random = random.SystemRandom()
        self._asked = self._keeps = False
        self._cuts: list[float] = []
        self._next_s, self._least_step = 0.0, 1
        self._kept = 0

    def process(self) -> None:
        """Ask for a state if it is time; called often."""
        now = time.monotonic()
        if (self._asked and self._file.exists()) or now < self._next_s:
            return
        beat = read_heartbeat(self._beats)
        if beat is None or beat.phase == INIT or beat.step < self._least_step:
            return
        if self._asked or not self._cuts:
            self._cut(now, beat.step)
        else:
            self._ask()

    def _cut(self, now: float, step: int) -> None:
        """Begin a segment, and draw when it ends."""
        self._kept = self._kept_now()
        self._asked = False
        self._cuts.append(now)
        mean_s = min(max(SHORTEST_S, SHARE * (now - self._cuts[0])), LONGEST_S)
        self._next_s = now + mean_s * self._random.uniform(0.5, 1.5)
        self._least_step = step + SHORTEST_STEPS

    def _ask(self) -> None:
        begin, before, last = self._cuts[0], *self._cuts[-2:][:1], self._cuts[-1]
        self._keeps = len(self._cuts) > 1 and self._random.random() * (last - begin) < last - before
        written = self._file.with_suffix(".tmp")
        written.write_text(json.dumps({"keep": self._keeps}), "utf-8")
        written.replace(self._file)
        self._asked = True

    def _is_obeyed(self) -> bool:
        return self._asked and not self._file.exists()

    def _kept_now(self) -> int:
        """Return the number of the kept segment, by the requests that the training has obeyed; 0: none."""
        return len(self._cuts) - 1 if self._keeps and self._is_obeyed() else self._kept

    def to_json(self) -> dict[str, Any]:
        """Return how many states the training saved after its start, and the number of the kept segment; 0: none."""
        return {"saved": max(len(self._cuts) - 1, 0) + self._is_obeyed(), "kept": self._kept_now()}
