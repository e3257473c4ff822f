"""How fast a log is read and in how much memory: goal >= 100 MB/s, constant memory.

    python benchmarks/read_perflog.py [--mb 1000] [--share 0.3]

``--share`` is the part of the lines that are PerfLog lines. The file is made in the system's temporary
folder, and removed.
"""

from __future__ import annotations

import argparse
import io
import resource
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

import orjson

from flagperf_driver import events, perflog

CHATTER = (
    "2026-01-01 00:00:00,123 INFO trainer.py:{0} epoch 3 iteration {0} loss 2.31 lr 1e-4 grad norm 0.82",
    "/opt/python/site-packages/lib/module.py:{0}: UserWarning: the value of this option is not used any more",
    "Epoch 3:  17%|##        | {0}/100000 [01:12<05:51, 12.21it/s, loss=2.31]",
)


def make(path: Path, size: int, share: float) -> None:
    """Whole blocks of 3,000 lines, the last ones cut off in mid-record."""
    block = "".join(line(number, share) + "\n" for number in range(3000)).encode()
    with path.open("wb") as out:
        while out.tell() < size:
            out.write(block)
        out.write(b'[PerfLog] {"event": "STEP_')


def line(number: int, share: float) -> str:
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


def measure(path: Path, wanted: Collection[str] | None) -> tuple[int, perflog.Dropped, float, float]:
    dropped = perflog.Dropped()
    start, cpu = time.perf_counter(), time.process_time()
    with path.open("rb", buffering=0) as stream:
        records = sum(1 for _ in perflog.read(stream, dropped, wanted, orjson.loads))
    return records, dropped, time.perf_counter() - start, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--share", type=float, default=0.3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.out.log"
        make(path, options.mb * 1_000_000, options.share)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for name, wanted in (("all records", None), ("FINISHED only", [events.FINISHED])):
            records, dropped, seconds, cpu = measure(path, wanted)
            size = path.stat().st_size / 1e6
            speed = f"{size:.0f} MB in {seconds:.2f} s = {size / seconds:.0f} MB/s"
            speed += f" (of its CPU time: {size / cpu:.0f} MB/s)"
            print(f"{name}: {speed}, {records} records, {dropped}")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(f"peak memory grew by {grown / 1024:.1f} MiB while reading")


if __name__ == "__main__":
    main()
