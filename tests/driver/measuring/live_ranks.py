"""Measure with processes as ranks on this machine, some of them slowed on purpose; standard library only.

``python -m tests.driver.measuring.live_ranks FILE EVEN CONTROLS`` records measurements for test_uniform.py.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flagperf_driver.measuring.loop import Loop, Measured, PointLimits
from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.measuring.program import core_wait
from flagperf_driver.training.timeline import HostMarks

LIMITS = PointLimits(warmup_s=0.1, most_s=2.0)
MOST_RANKS = 4
"""A rank has a core of its own: ranks that share cores all wait, and none can be named."""
LESS_WORK = 1 / 0.85
"""A rank that does 15 % less work in the same time."""
_HASHES = 40
_RANK = (sys.executable, "-m", "tests.driver.measuring.live_ranks")
_BUSY = (sys.executable, "-c", "while True: pass")
_REPO = Path(__file__).resolve().parents[3]


class Hashing(Measurement):
    """Hashes a block; a slow rank hashes it more often for the same result."""

    def __init__(self, slower: float) -> None:
        self._hashes, self._block = round(_HASHES * slower), os.urandom(1 << 14)

    def points(self) -> Iterable[Point]:
        yield Point("hash")

    def work(self, point: Point) -> Mapping[str, float]:
        return {"hashed": float(_HASHES << 14)}

    def prepare(self, point: Point) -> None: ...

    def run(self, iterations: int) -> None:
        for _ in range(iterations * self._hashes):
            hashlib.sha256(self._block).digest()


def _exchange(values: Sequence[float]) -> list[float]:
    print(json.dumps(list(values)), flush=True)
    result: list[float] = json.loads(sys.stdin.readline())
    return result


def _rank(slower: float) -> None:
    wait = partial(core_wait, 1)
    (result,) = Loop(Hashing(slower), HostMarks(), LIMITS, _exchange, core_wait=wait, owns_time=True).measure()
    assert isinstance(result, Measured)
    print(json.dumps({"turns": result.turns}), flush=True)


def measure(slower: Mapping[int, float] | None = None, busy: int | None = None) -> dict[str, list[dict[str, Any]]]:
    """Return the turns of each rank; ``slower`` are factors by rank, and beside the rank ``busy`` a loop runs."""
    cores = sorted(os.sched_getaffinity(0))[:MOST_RANKS]
    start = partial(subprocess.Popen, cwd=_REPO, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ranks = [start([*_RANK, str((slower or {}).get(rank, 1.0))]) for rank in range(len(cores))]
    others = [] if busy is None else [start(_BUSY)]
    try:
        for process, core in [*zip(ranks, cores, strict=True), *((other, cores[busy or 0]) for other in others)]:
            os.sched_setaffinity(process.pid, {core})
        while True:
            values = [json.loads(rank.stdout.readline()) for rank in ranks if rank.stdout]
            if isinstance(values[0], dict):
                return {str(rank): value["turns"] for rank, value in enumerate(values)}
            for rank in ranks:
                assert rank.stdin
                rank.stdin.write(json.dumps([max(of_ranks) for of_ranks in zip(*values, strict=True)]) + "\n")
                rank.stdin.flush()
    finally:
        for process in (*ranks, *others):
            process.kill()
            process.communicate()


def record(file: Path, evens: int, controls: int) -> None:
    """Record measurements with pauses, in which other jobs of the machine continue."""
    kinds: list[tuple[str | None, int | None]] = [(None, None)] * evens
    for number in range(controls):
        kinds += [("slow", number % 2), ("busy", number % 2)]
    recorded: list[dict[str, Any]] = []
    for slowed, rank in kinds:
        slower = {rank: LESS_WORK} if slowed == "slow" and rank is not None else {}
        found = measure(slower, rank if slowed == "busy" else None)
        turns = {
            name: [{key: float(f"{value:.4g}") for key, value in turn.items()} for turn in of_rank]
            for name, of_rank in found.items()
        }
        recorded.append({"crowded": False, "slowed": slowed, "rank": rank, "turns": turns})
        time.sleep(4.0)
    file.write_text(",\n".join(map(json.dumps, recorded)).join(("[\n", "\n]\n")))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _rank(float(sys.argv[1]))
    else:
        record(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
