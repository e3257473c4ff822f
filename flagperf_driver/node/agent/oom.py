"""Find out which memory ran out when a process was killed: the host's, or only the limit of its control group."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_CGROUPS = Path("/sys/fs/cgroup")
_FULL = 0.95
_NO_LIMIT = 1 << 60  # cgroup v1 represents "no limit" by a number of at least this size


class Count(NamedTuple):
    """The number of processes that the kernel killed because memory ran out, and how often the group hit its limit."""

    kills: int
    at_limit: int


def count() -> Count:
    return Count(_figure(Path("/proc/vmstat"), "oom_kill"), _at_limit())


def cause(before: Count, inner: bool) -> str | None:
    """Return which memory ran out since ``before``, or None."""
    now = count()
    if now.kills == before.kills:
        return None
    limit = _limit()
    if limit is not None and now.at_limit > before.at_limit:
        limit_name = "the container's memory limit" if inner else "the memory limit of its control group"
        return f"{limit_name}, {limit / (1 << 20):.0f} MiB"
    return "the kernel ran out of memory"


def _at_limit() -> int:
    events = _group("memory.events")
    if events is not None:
        return _figure(events, "oom")
    # cgroup v1 counts killed members of the group only; whether the group's limit was the cause shows its peak usage.
    peak, control, limit = _group("memory.max_usage_in_bytes"), _group("memory.oom_control"), _limit()
    if peak is None or control is None or limit is None or int(_read(peak) or 0) < _FULL * limit:
        return 0
    return _figure(control, "oom_kill")


def _limit() -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        path = _group(name)
        text = _read(path).strip() if path is not None else ""
        if text.isdigit() and int(text) < _NO_LIMIT:
            return int(text)
    return None


def _group(name: str) -> Path | None:
    """Return a file of this process's memory group. In a container the group is the root of the mounted hierarchy."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, group = line.split(":", 2)
        root = _CGROUPS / "memory" if "memory" in controllers.split(",") else _CGROUPS if not controllers else None
        for folder in (root / group.lstrip("/"), root) if root is not None else ():
            if (folder / name).is_file():
                return folder / name
    return None


def _figure(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name:
            return int(words[1])
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
