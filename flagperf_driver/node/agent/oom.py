"""Who ran out of memory, when a process was killed: the whole host, or only its control group (its container)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_CGROUPS = Path("/sys/fs/cgroup")
_FULL = 0.95
_NO_LIMIT = 1 << 60  # version 1 says "none" by a number of that size


class Count(NamedTuple):
    """How often the kernel has killed for want of memory, and how often the group was at its limit."""

    kills: int
    at_limit: int


def count() -> Count:
    return Count(_figure(Path("/proc/vmstat"), "oom_kill"), _at_limit())


def cause(before: Count, inner: bool) -> str | None:
    """Which memory ran out since; None where none did."""
    now = count()
    if now.kills == before.kills:
        return None
    limit = _limit()
    if limit is not None and now.at_limit > before.at_limit:
        whose = "the container's memory limit" if inner else "the memory limit of its control group"
        return f"{whose}, {limit / (1 << 20):.0f} MiB"
    return "the kernel ran out of memory"


def _at_limit() -> int:
    events = _group("memory.events")
    if events is not None:
        return _figure(events, "oom")
    # Version 1 counts the group's members that were killed, for want of whose memory is told by how full it was.
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
    """A file of this process's memory group; in a container the group is at the root of what one sees."""
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
