"""Ask a training for its states at moments that no rank knows before: each cuts the training into a further segment.

The agent also draws which segments are kept for the replay, each by its share of the time. A rank learns of both when
the segment is over.
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
SHARE = 0.02
"""The mean length of a segment, as a share of the training so far, within these limits."""
MOST_KEPT = 3


class StateRequests:
    """The requests to the first rank of a round: a file that the rank removes when it obeys."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / layout.SAVE_STATE
        self._beats = folder / "rank0.progress"
        self._random = random.SystemRandom()
        self._asked = False
        self._cuts: list[float] = []
        self._next_s, self._least_step = 0.0, 1
        # By the numbers of the kept segments, from 1, a random key: the largest ones are kept (Efraimidis, Spirakis,
        # 2006: weighted random sampling with a reservoir). Those of the request count when it is obeyed.
        self._kept: dict[int, float] = {}
        self._requested: dict[int, float] = {}

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
        self._kept = self._requested
        self._asked = False
        self._cuts.append(now)
        mean_s = min(max(SHORTEST_S, SHARE * (now - self._cuts[0])), LONGEST_S)
        self._next_s = now + mean_s * self._random.uniform(0.5, 1.5)
        self._least_step = step + SHORTEST_STEPS

    def _ask(self) -> None:
        keys = {**self._kept}
        if len(self._cuts) > 1:
            keys[len(self._cuts) - 1] = self._random.random() ** (1 / max(self._cuts[-1] - self._cuts[-2], 1e-3))
        largest = sorted(keys, key=lambda number: -keys[number])[:MOST_KEPT]
        self._requested = {number: keys[number] for number in largest}
        written = self._file.with_suffix(".tmp")
        written.write_text(json.dumps({"keep": largest}), "utf-8")
        written.replace(self._file)
        self._asked = True

    def _is_obeyed(self) -> bool:
        return self._asked and not self._file.exists()

    def to_json(self) -> dict[str, Any]:
        """Return how many states the training saved after its start, and the kept segments as they are drawn."""
        kept = self._requested if self._is_obeyed() else self._kept
        return {"saved": max(len(self._cuts) - 1, 0) + self._is_obeyed(), "kept": [*kept]}
