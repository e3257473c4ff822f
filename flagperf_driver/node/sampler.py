"""What the host does meanwhile: cpu_monitor.log, mem_monitor.log (fractions) and sys_info.log, from /proc."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path


class Sampler:
    """Writes a line into each log whenever it is asked; the first CPU figure comes with the second call."""

    def __init__(self, folder: Path) -> None:
        self._cpu = folder / "cpu_monitor.log"
        self._memory = folder / "mem_monitor.log"
        self._last = _cpu_times()
        (folder / "sys_info.log").write_text(system_info())

    def sample(self) -> None:
        now = _cpu_times()
        busy, whole = now[0] - self._last[0], now[1] - self._last[1]
        self._last = now
        if whole > 0:
            _append(self._cpu, busy / whole)
        _append(self._memory, _memory_used())


def _append(path: Path, fraction: float) -> None:
    with path.open("a") as out:
        out.write("{}\t{:.4f}\n".format(time.strftime("%Y-%m-%d-%H:%M:%S"), fraction))


def _cpu_times() -> tuple[float, float]:
    """Busy and whole time of all cores since boot, in ticks."""
    try:
        with open("/proc/stat", "rb") as stat:  # noqa: PTH123 - read once a second beside a measured training
            ticks = [int(word) for word in stat.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0.0, 0.0
    idle = ticks[3] + ticks[4] if len(ticks) > 4 else 0
    return float(sum(ticks) - idle), float(sum(ticks))


def _memory() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {name: int(rest.split()[0]) * 1024 for name, rest in pairs}


def _memory_used() -> float:
    memory = _memory()
    total = memory.get("MemTotal", 0)
    return (total - memory.get("MemAvailable", 0)) / total if total else 0.0


def system_info() -> str:
    """OS, kernel, CPU, memory and Python of this host, one ``name: value`` a line."""
    facts = {
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "host": platform.node(),
        "os": _os_name(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "usable_cores": str(len(os.sched_getaffinity(0))),
        "memory_bytes": str(_memory().get("MemTotal", 0)),
        "python": f"{platform.python_version()} ({sys.executable})",
    }
    return "".join("{}: {}\n".format(*fact) for fact in facts.items())


def _os_name() -> str:
    return _field(Path("/etc/os-release"), "PRETTY_NAME", "=").strip('"') or platform.system()


def _cpu_model() -> str:
    return _field(Path("/proc/cpuinfo"), "model name", ":") or platform.processor() or "unknown"


def _field(path: Path, name: str, separator: str) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    found = [line.partition(separator)[2].strip() for line in lines if line.startswith(name)]
    return found[0] if found else ""
