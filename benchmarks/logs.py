"""The speed and the memory of reading a rank's log."""

from __future__ import annotations

import io
import resource
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

import orjson

from flagperf_driver import events, perflog

from .section import Goal, Section, table

MEGABYTES = 1000
SHARES = (0.1, 0.5, 1.0)
"""Shares of PerfLog lines among all lines."""
CHATTER = (
    "2026-01-01 00:00:00,123 INFO trainer.py:{0} epoch 3 iteration {0} loss 2.31 lr 1e-4 grad norm 0.82",
    "/opt/python/site-packages/lib/module.py:{0}: UserWarning: the value of this option is not used any more",
    "Epoch 3:  17%|##        | {0}/100000 [01:12<05:51, 12.21it/s, loss=2.31]",
)


def make(path: Path, share: float) -> None:
    """Write blocks of 3,000 lines, and a truncated last line."""
    block = "".join(line(number, share) + "\n" for number in range(3000)).encode()
    with path.open("wb") as out:
        while out.tell() < MEGABYTES * 1_000_000:
            out.write(block)
        out.write(b'[PerfLog] {"event": "STEP_')


def line(number: int, share: float) -> str:
    """Return one line: a step's record or another line of a program."""
    if int((number + 1) * share) == int(number * share):
        return CHATTER[number % len(CHATTER)].format(number)
    value = {
        "step": number,
        "epoch": 3,
        "samples": number * 256,
        "loss": 2.3123456789,
        "learning_rate": 0.000123,
        "step_time": 0.01234567,
        "throughput": 20737.123456,
        "input_wait": 0.00012,
    }
    stream = io.StringIO()
    perflog.PerfLog(0, stream)(events.STEP_END, value)
    return stream.getvalue().rstrip("\n")


def megabytes_per_s(path: Path, selected: Collection[str] | None) -> float:
    """Return the speed of reading all records, or the records of selected events."""
    began = time.perf_counter()
    with path.open("rb", buffering=0) as stream:
        for _ in perflog.read_records(stream, perflog.SkippedCounts(), selected, orjson.loads):
            pass
    return path.stat().st_size / 1e6 / (time.perf_counter() - began)


def measure() -> Section:
    """Read logs with few and with many records."""
    rows, slowest, most = [], float("inf"), 0.0
    for share in SHARES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rank0.out.log"
            make(path, share)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            all_records, finished = megabytes_per_s(path, None), megabytes_per_s(path, [events.FINISHED])
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        rows.append((f"{share:.0%}", f"{all_records:.0f} MB/s", f"{finished:.0f} MB/s", f"{grown:+.1f} MiB"))
        slowest, most = min(slowest, all_records), max(most, grown)
    goals = [
        Goal("the slowest", 100, slowest, "MB/s", least=True, noise=0.2),
        Goal(f"memory that {MEGABYTES} MB of log add", 10, most, "MiB"),
    ]
    return Section([table(("PerfLog's share of the lines", "all records", "FINISHED only", "memory"), rows)], goals)
