"""How much memory can be allocated: of a device by its rank, of a host by this program, a process of its own.

    python capacity.py CEILING_BYTES SECONDS PARENT_PID

The program fills the memory that it allocates, because Linux gives pages only when they are written. It stops at the
ceiling or when the time is over, prints the bytes as JSON, and ends when its parent does. If memory runs out, the
kernel kills it first.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flagperf_driver.node.processes import die_with

RESERVE = 2 << 30
"""What a measurement leaves to the rest of a host."""
MEMORY, CEILING, TIME = "memory", "ceiling", "time"
HOST_STEP, HOST_LEAST = 1 << 30, 16 << 20
DEVICE_STEP, DEVICE_LEAST = 64 << 30, 1 << 20
_POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)
_CGROUPS = Path("/sys/fs/cgroup")
_LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def allocated(
    allocate: Callable[[int], Any],
    step: int,
    least: int,
    ceiling: int | None = None,
    most_s: float = math.inf,
    check: Callable[[list[Any]], None] = lambda _: None,
) -> tuple[int, str]:
    """Allocate in steps that are halved after a failure; return the bytes, and what ended it: memory, ceiling or time.

    ``allocate`` returns an object that keeps the memory, and raises an error if it gets no memory. ``check`` gets all
    of them.
    """
    kept: list[Any] = []
    total, ended_by, begin = 0, MEMORY, time.monotonic()
    while step >= least:
        if time.monotonic() - begin >= most_s:
            ended_by = TIME
            break
        if ceiling is not None and total + step > ceiling:
            ended_by = CEILING
        else:
            try:
                kept.append(allocate(step))
                total += step
                continue
            except (MemoryError, OSError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
                ended_by = MEMORY
        step //= 2
    check(kept)
    return total, ended_by


def _is_out_of_memory(error: Exception) -> bool:
    """Return True for torch's and the system's errors of an allocation; each device has its own text."""
    return not isinstance(error, RuntimeError) or "memory" in str(error).lower()


def of_host(ceiling: int, most_s: float) -> tuple[int, str]:
    """Return how many bytes a new process of this host gets in this time, and what ended it."""
    done = subprocess.run(
        [sys.executable, __file__, str(ceiling), str(most_s), str(os.getpid())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        check=False,
    )
    if done.returncode:
        ended = f"exit code {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        raise MemoryError(f"allocating up to {ceiling} bytes ended with {ended}: {done.stderr.decode().strip()[-300:]}")
    total, ended_by = json.loads(done.stdout)
    return total, ended_by


def host_ceiling(processes: int, cgroups: Path = _CGROUPS, proc: Path = Path("/proc")) -> int:
    """Return the bytes that each of the processes may fill without running the host out of memory.

    That is what Linux reports as available, or less if a control group of this process leaves less, minus a reserve.
    """
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    available = next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")
    least = min([available, *_left_by_groups(cgroups, proc)])
    return max(0, least - RESERVE) // processes


def _left_by_groups(cgroups: Path, proc: Path) -> Iterator[int]:
    """Yield what this process's control groups, and those above them, leave of their limits (versions 1 and 2)."""
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            for limit, used in _LIMITS:
                if (folder / limit).is_file() and (text := (folder / limit).read_text().strip()) != "max":
                    yield int(text) - int((folder / used).read_text())
            if folder == root:
                break


def _main() -> None:
    ceiling, most_s, parent = sys.argv[1:]
    die_with(int(parent))
    with contextlib.suppress(OSError):  # not in every container; then only the ceiling protects the others
        Path("/proc/self/oom_score_adj").write_text("1000")
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _POPULATE
    found = allocated(lambda size: mmap.mmap(-1, size, flags=flags), HOST_STEP, HOST_LEAST, int(ceiling), float(most_s))
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
