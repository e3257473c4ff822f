"""The host's CPU, memory, network and disks, from /proc: a few reads of files that are kept open."""

from __future__ import annotations

import os
import sys
import time
from typing import Mapping

PROC = "/proc"
SYS = "/sys"
COLUMNS = (
    "time [s]",
    "cpu [1]",
    "memory [1]",
    "net_rx [B/s]",
    "net_tx [B/s]",
    "rdma_rx [B/s]",
    "rdma_tx [B/s]",
    "disk_read [B/s]",
    "disk_write [B/s]",
    "power [W]",
    "energy [J]",
)
"""Of the series: name and unit; 1 is a share of the whole host. What was not sampled then is empty."""
SLOW_S = 1.0
"""All but the CPU's share is sampled no faster than this: nothing is learned from more."""
_SECTOR = 512


class File:
    """A file of /proc or /sys that is made anew at each read."""

    def __init__(self, path: str, most: int) -> None:
        self._most = most
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        return os.pread(self._file, self._most, 0)


class Rate:
    """How fast counters grow, in units a second; None the first time, and where one was set back."""

    def __init__(self) -> None:
        self._last: tuple[float, tuple[float, ...]] | None = None

    def of(self, counters: tuple[float, ...]) -> tuple[float | None, ...]:
        now = time.monotonic()
        before, self._last = self._last, (now, counters)
        if before is None or now <= before[0]:
            return (None,) * len(counters)
        passed = now - before[0]
        return tuple((value - old) / passed if value >= old else None for value, old in zip(counters, before[1]))


class Cpu:
    """Share of all cores' time that was not idle since the last call."""

    means = "/proc/stat"

    def __init__(self, proc: str = PROC) -> None:
        # Only its first line is needed; the rest is one line a core.
        self._stat = File(proc + "/stat", 512)
        self._last = self._times()

    def read(self) -> float | None:
        now = self._times()
        busy, whole = now[0] - self._last[0], now[1] - self._last[1]
        if whole <= 0:
            return None
        self._last = now
        return min(1.0, max(0.0, busy / whole))

    def _times(self) -> tuple[int, int]:
        ticks = [int(word) for word in self._stat.read().split(b"\n", 1)[0].split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


class Memory:
    """Share of the memory that could not be had by a new program."""

    means = "/proc/meminfo: 1 - MemAvailable / MemTotal"

    def __init__(self, proc: str = PROC) -> None:
        self._info = File(proc + "/meminfo", 4096)

    def read(self) -> float | None:
        total, available = _kib(self._info.read(), b"MemTotal:"), _kib(self._info.read(), b"MemAvailable:")
        return (total - available) / total if total else None


def _kib(text: bytes, name: bytes) -> int:
    at = text.find(name)
    return int(text[at + len(name) :].split(None, 1)[0]) if at >= 0 else 0


class Network:
    """Bytes received and sent by the host's interfaces: the real ones where it has any.

    Bridges, and what is plugged into one, would count the same bytes again.
    """

    def __init__(self, proc: str = PROC, sys_root: str = SYS) -> None:
        self._dev = File(proc + "/net/dev", 1 << 16)
        self.names = self._choose([name for name, _, _ in self._lines()], sys_root + "/class/net/")
        self.means = "/proc/net/dev: " + ", ".join(sorted(self.names))

    def read(self) -> tuple[float, ...]:
        mine = [(received, sent) for name, received, sent in self._lines() if name in self.names]
        return float(sum(received for received, _ in mine)), float(sum(sent for _, sent in mine))

    def _lines(self) -> list[tuple[str, int, int]]:
        found = []
        for line in self._dev.read().split(b"\n")[2:]:
            name, _, figures = line.partition(b":")
            words = figures.split()
            if len(words) >= 9:
                found.append((name.strip().decode(), int(words[0]), int(words[8])))
        return found

    @staticmethod
    def _choose(names: list[str], folder: str) -> frozenset[str]:
        real = [name for name in names if os.path.exists(folder + name + "/device")]  # noqa: PTH110
        own = [
            name
            for name in names
            if name != "lo"
            and not os.path.exists(folder + name + "/bridge")  # noqa: PTH110
            and not os.path.lexists(folder + name + "/master")
        ]
        return frozenset(real or own)


class Rdma:
    """Bytes received and sent past the kernel by InfiniBand and RoCE cards, which /proc/net/dev does not count."""

    means = "/sys/class/infiniband/*/ports/*/counters/port_{rcv,xmit}_data"

    def __init__(self, sys_root: str = SYS) -> None:
        folder = sys_root + "/class/infiniband"
        ports = [
            f"{folder}/{card}/ports/{port}/counters/"
            for card in names(folder)
            for port in names(f"{folder}/{card}/ports")
        ]
        self._files = [
            [File(port + name, 64) for port in ports if os.access(port + name, os.R_OK)]
            for name in ("port_rcv_data", "port_xmit_data")
        ]

    def __bool__(self) -> bool:
        return any(self._files)

    def read(self) -> tuple[float, ...]:
        # The counters are in words of four bytes.
        return tuple(4.0 * sum(int(file.read()) for file in files) for files in self._files)


class Disks:
    """Bytes read from and written to the disks: whole ones, not their parts nor what is built on them."""

    def __init__(self, proc: str = PROC, sys_root: str = SYS) -> None:
        self._stats = File(proc + "/diskstats", 1 << 16)
        blocks = sys_root + "/block/"
        real = [name for name in names(blocks) if os.path.exists(blocks + name + "/device")]  # noqa: PTH110
        self.names = frozenset(name.encode() for name in real)
        self.means = "/proc/diskstats: " + ", ".join(sorted(real))

    def __bool__(self) -> bool:
        return bool(self.names)

    def read(self) -> tuple[float, ...]:
        lines = [line.split() for line in self._stats.read().split(b"\n")]
        mine = [words for words in lines if len(words) >= 10 and words[2] in self.names]
        return tuple(float(_SECTOR * sum(int(words[column]) for words in mine)) for column in (5, 9))


def names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []


# -- what the host is --------------------------------------------------------------------------------------------


def facts() -> dict[str, str]:
    """OS, kernel, CPU, memory, network cards and Python of this host."""
    uname = os.uname()
    version = ".".join(map(str, sys.version_info[:3]))
    found = {
        "host": uname.nodename,
        "os": _field("/etc/os-release", "PRETTY_NAME", "=").strip('"') or uname.sysname,
        "kernel": uname.release,
        "machine": uname.machine,
        "hardware": _hardware() or "unknown",
        "cpu": _field("/proc/cpuinfo", "model name", ":") or uname.machine,
        "sockets": str(_sockets() or ""),
        "cores": str(os.cpu_count()),
        "usable_cores": str(len(os.sched_getaffinity(0))),
        "memory_bytes": str(_kib(content("/proc/meminfo").encode(), b"MemTotal:") * 1024),
        "network": network(),
        "rdma": rdma(),
        "python": f"{version} ({sys.executable})",
    }
    return {name: text for name, text in found.items() if text}


def system_info(facts: Mapping[str, str]) -> str:
    """The time and the facts, one ``name: value`` a line."""
    told = {"time": time.strftime("%Y-%m-%d %H:%M:%S %z"), **facts}
    return "".join("{}: {}\n".format(*fact) for fact in told.items())


def _sockets() -> int:
    lines = content("/proc/cpuinfo").splitlines()
    return len({line.partition(":")[2].strip() for line in lines if line.startswith("physical id")})


def network(sys_root: str = SYS) -> str:
    """How fast the real network cards that have a link are, the same ones together: ``2 x 25 Gb/s``."""
    folder = sys_root + "/class/net"
    real = [name for name in names(folder) if os.path.exists(f"{folder}/{name}/device")]  # noqa: PTH110
    speeds = [content(f"{folder}/{name}/speed").strip() for name in real]
    return _together([f"{int(speed) / 1000:g} Gb/s" for speed in speeds if speed.isdigit() and int(speed)])


def rdma(sys_root: str = SYS) -> str:
    """The ports of InfiniBand and RoCE cards that are up, the same ones together: ``8 x 400 Gb/sec (4X NDR)``."""
    folder = sys_root + "/class/infiniband"
    ports = [f"{folder}/{card}/ports/{port}" for card in names(folder) for port in names(f"{folder}/{card}/ports")]
    up = [port for port in ports if "ACTIVE" in content(port + "/state")]
    return _together([content(port + "/rate").strip() for port in up])


def _together(texts: list[str]) -> str:
    return ", ".join(f"{texts.count(text)} x {text}" for text in sorted({text for text in texts if text}))


def _hardware() -> str:
    """The machine's maker and model, which anybody may read."""
    names = [content("/sys/class/dmi/id/" + name).strip() for name in ("sys_vendor", "product_name")]
    return " ".join(filter(None, names))


def _field(path: str, name: str, separator: str) -> str:
    lines = content(path).splitlines()
    return next((line.partition(separator)[2].strip() for line in lines if line.startswith(name)), "")


def content(path: str) -> str:
    """A file's text; of one that cannot be read, none."""
    try:
        with open(path, errors="replace") as source:  # noqa: PTH123
            return source.read()
    except OSError:
        return ""
