"""The states that a training saves for its replay, at moments that no rank knows before: the agent asks for them.

The states cut the training into segments. The agent also draws which segments are kept; the states of the others are
removed, so that at most ten are on the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from pathlib import Path

from flagperf_driver import layout
from flagperf_driver.driver import Rank

_LOOK_S = 0.001
MOST_PAUSES = 0.01
"""The largest share of the time that the pauses of saving may take: a request waits until it is kept."""


def ask_for_order(folder: Path, epoch: int) -> int:
    """Ask the agent for the order of an epoch's data, and wait for its answer; if it is gone, it ends this process."""
    pipe = os.open(folder / layout.ORDERS_ASKED, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(pipe, b"%d\n" % epoch)
    finally:
        os.close(pipe)
    while True:
        with contextlib.suppress(FileNotFoundError):
            answer = json.loads((folder / layout.ORDER).read_text("utf-8"))
            if answer["epoch"] == epoch:
                return int(answer["order"])
        time.sleep(_LOOK_S)


class SavedStates:
    """The states of one start of a training; without a folder it saves none."""

    def __init__(self, rank: Rank) -> None:
        folder = rank.case.replay.get("states")
        self.folder = Path(folder) if folder else None
        self._request = rank.log_dir / layout.SAVE_STATE if rank.log_dir and folder and not rank.world.rank else None
        self._asks_in = rank.log_dir if not rank.world.rank else None
        self._steps: list[int] = []
        self._kept: set[int] = set()
        self._present: set[int] = set()
        self._begin = 0.0

    def begin(self) -> None:
        """Remove the states of an earlier start; the first rank calls it before the first state is saved."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)  # the agent has made it, where ranks may not
            for path in self.folder.iterdir():
                shutil.rmtree(path)

    def start(self) -> None:
        """Note when the training starts."""
        self._begin = time.perf_counter()

    def end(self) -> None:
        """Obey no further request: the training has ended, and its last state follows."""
        self._request = None

    def order(self, epoch: int) -> int | None:
        """Return the order of an epoch's data for the first rank, which asks the agent of its host for it."""
        return ask_for_order(self._asks_in, epoch) if self._asks_in else None

    def is_saved(self, step: int) -> bool:
        return step in self._steps

    def is_due(self, pauses: list[float]) -> bool:
        """Return True if the agent asks for a state; ``pauses``: of the states since the start."""
        if self._request is None or not self._request.exists():
            return False
        next_pause = pauses[-1] if pauses else 0.0
        return sum(pauses) + next_pause <= MOST_PAUSES * (time.perf_counter() - self._begin)

    def add(self, step: int) -> list[Path]:
        """Add a state, and return those that no segment needs any more, as the agent's request says."""
        assert self.folder is not None
        keep = self._take_request()
        if keep is not None:
            self._kept = {step for number in keep for step in self._steps[number - 1 : number + 1]}
        # Without a request the training has ended, and the segment before the last one is not decided.
        undecided = self._steps[-2:] if keep is None else self._steps[-1:]
        needed = {*self._steps[:1], *self._kept, *undecided}
        needless, self._present = self._present - needed, {*needed, step}
        self._steps.append(step)
        return [self.folder / f"step{one}" for one in needless]

    def _take_request(self) -> list[int] | None:
        """Obey the agent's request: return the numbers of the segments that are kept; None without a request."""
        if self._request is None or not self._request.exists():
            return None
        keep: list[int] = json.loads(self._request.read_text("utf-8"))["keep"]
        self._request.unlink()
        return keep
