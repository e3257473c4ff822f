"""The memory groups of this process with their limits, and which memory ran out when a process was killed.

That is the host's, or only the limit of its control group.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, NamedTuple

_CGROUPS = Path("/sys/fs/cgroup")
_FULL = 0.95
_NO_LIMIT = 1 << 60  # cgroup v1 represents "no limit" by a number of at least this size


class Count(NamedTuple):
    """The number of processes that the kernel killed because memory ran out, and how often the group hit its limit."""

    kills: int
    at_limit: int


def count() -> Count:
    return Count(_figure(Path("/proc/vmstat"), "oom_kill"), _at_limit())


def cause(before: Count, in_container: bool) -> str | None:
    """Return which memory ran out since ``before``, or None."""
    now = count()
    if now.kills == before.kills:
        return None
    limited = _limited_group()
    if limited is not None and now.at_limit > before.at_limit:
        limit_name = "the container's memory limit" if in_container else "the memory limit of its control group"
        return f"{limit_name}, {limited[1] / (1 << 20):.0f} MiB"
    return "the kernel ran out of memory"


def _at_limit() -> int:
    own, limited = next(_groups(), None), _limited_group()
    if own is None or limited is None:
        return 0
    if (own / "memory.events").is_file():
        return _figure(limited[0] / "memory.events", "oom")
    # cgroup v1 counts killed members of the group only; whether the limit was the cause shows its group's peak usage.
    if number_in(limited[0] / "memory.max_usage_in_bytes") < _FULL * limited[1]:
        return 0
    return _figure(own / "memory.oom_control", "oom_kill")


def _limited_group() -> tuple[Path, int] | None:
    """Return the group with the smallest limit, of this process's group and those above it, and its limit."""
    return min(limited_groups(), key=lambda each: each[1], default=None)


def limited_groups() -> Iterator[tuple[Path, int]]:
    """Yield this process's memory groups and those above them that have a limit, with the limit in bytes."""
    return ((folder, limit) for folder in _groups() if (limit := _limit_of(folder)) is not None)


def _limit_of(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = _read(folder / name).strip()
        if text.isdigit() and int(text) < _NO_LIMIT:
            return int(text)
    return None


def _groups() -> Iterator[Path]:
    """Yield this process's memory group and the groups above it: a batch system limits a job or a step above it.

    In a container the group is the root of the mounted hierarchy.
    """
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, group = line.split(":", 2)
        root = _CGROUPS / "memory" if "memory" in controllers.split(",") else _CGROUPS if not controllers else None
        if root is None:
            continue
        folder = root / group.lstrip("/")
        for each in (folder, *folder.parents):
            if any((each / name).is_file() for name in ("memory.max", "memory.limit_in_bytes")):
                yield each
            if each == root:
                break


def _figure(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name:
            return int(words[1])
    return 0


def number_in(path: Path) -> int:
    """Return the number in a file; 0 if it cannot be read."""
    return int(_read(path) or 0)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
