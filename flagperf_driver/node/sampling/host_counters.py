"""Measure the host's CPU, memory, network and disks, from files in /proc and /sys that are kept open."""

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
"""The columns of the series with their units; [1] is a share of the whole host. Cells without a sample are empty."""
SLOW_S = 1.0
"""The shortest interval for all quantities but the CPU's share."""
_SECTOR = 512


class File:
    """An open file of /proc or /sys, whose content is generated at each read."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        return os.pread(self._file, self._max_bytes, 0)


class Rate:
    """The growth of counters per second; None the first time, and for a counter that was reset."""

    def __init__(self) -> None:
        self._last: tuple[float, tuple[float, ...]] | None = None

    def of(self, counters: tuple[float, ...]) -> tuple[float | None, ...]:
        now = time.monotonic()
        before, self._last = self._last, (now, counters)
        if before is None or now <= before[0]:
            return (None,) * len(counters)
        passed_s = now - before[0]
        return tuple((value - old) / passed_s if value >= old else None for value, old in zip(counters, before[1]))


class Cpu:
    """The share of all cores' time since the last call that was not idle."""

    means = "/proc/stat"

    def __init__(self, proc: str = PROC) -> None:
        # Only the first line is needed; the others are one for each core.
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
    """The share of the memory that is not available to a new program."""

    means = "/proc/meminfo: 1 - MemAvailable / MemTotal"

    def __init__(self, proc: str = PROC) -> None:
        self._info = File(proc + "/meminfo", 4096)

    def read(self) -> float | None:
        text = self._info.read()
        total, available = _kib(text, b"MemTotal:"), _kib(text, b"MemAvailable:")
        return (total - available) / total if total else None


def _kib(text: bytes, name: bytes) -> int:
    at = text.find(name)
    return int(text[at + len(name) :].split(None, 1)[0]) if at >= 0 else 0


class Network:
    """Bytes received and sent by the host's physical network interfaces, or by all others if it has none.

    Bridges and their members are left out, because they would count the same bytes again.
    """

    def __init__(self, proc: str = PROC, sys_root: str = SYS) -> None:
        self._dev = File(proc + "/net/dev", 1 << 16)
        self.names = self._choose([name for name, _, _ in self._lines()], sys_root + "/class/net/")
        self.means = "/proc/net/dev: " + ", ".join(sorted(self.names))

    def read(self) -> tuple[float, ...]:
        counts = [(received, sent) for name, received, sent in self._lines() if name in self.names]
        return float(sum(received for received, _ in counts)), float(sum(sent for _, sent in counts))

    def _lines(self) -> list[tuple[str, int, int]]:
        lines = []
        for line in self._dev.read().split(b"\n")[2:]:
            name, _, counters = line.partition(b":")
            words = counters.split()
            if len(words) >= 9:
                lines.append((name.strip().decode(), int(words[0]), int(words[8])))
        return lines

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
    """Bytes that InfiniBand and RoCE cards received and sent by RDMA, which /proc/net/dev does not count."""

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
    """Bytes read from and written to whole disks, without partitions and virtual devices on them."""

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
        disks = [words for words in lines if len(words) >= 10 and words[2] in self.names]
        return tuple(float(_SECTOR * sum(int(words[column]) for words in disks)) for column in (5, 9))


def names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []


# -- facts of the host --------------------------------------------------------------------------------------------


def facts(variables: str = "") -> dict[str, str]:
    """Return the OS, kernel, CPU, memory, network cards and Python of this host, and what ranks inherit."""
    uname = os.uname()
    version = ".".join(map(str, sys.version_info[:3]))
    values = {
        "host": uname.nodename,
        "os": _field("/etc/os-release", "PRETTY_NAME", "=").strip('"') or uname.sysname,
        "kernel": uname.release,
        "machine": uname.machine,
        "hardware": _hardware() or "unknown",
        "cpu": _field("/proc/cpuinfo", "model name", ":") or uname.machine,
        "sockets": str(_sockets() or ""),
        "cores": str(os.cpu_count()),
        "usable_cores": str(len(os.sched_getaffinity(0))),
        "memory_bytes": str(_kib(read_text("/proc/meminfo").encode(), b"MemTotal:") * 1024),
        "network": network(),
        "rdma": rdma(),
        "accelerators": accelerators(),
        "python": f"{version} ({sys.executable})",
        "variables": variables,
    }
    return {name: text for name, text in values.items() if text}


def system_info(facts: Mapping[str, str]) -> str:
    """Format the time and the facts, one ``name: value`` per line."""
    values = {"time": time.strftime("%Y-%m-%d %H:%M:%S %z"), **facts}
    return "".join("{}: {}\n".format(*fact) for fact in values.items())


def _sockets() -> int:
    lines = read_text("/proc/cpuinfo").splitlines()
    return len({line.partition(":")[2].strip() for line in lines if line.startswith("physical id")})


def network(sys_root: str = SYS) -> str:
    """Return the speeds of the physical network cards with a link, equal ones counted: ``2 x 25 Gb/s``."""
    folder = sys_root + "/class/net"
    real = [name for name in names(folder) if os.path.exists(f"{folder}/{name}/device")]  # noqa: PTH110
    speeds = [read_text(f"{folder}/{name}/speed").strip() for name in real]
    return _count_equal([f"{int(speed) / 1000:g} Gb/s" for speed in speeds if speed.isdigit() and int(speed)])


def rdma(sys_root: str = SYS) -> str:
    """Return the rates of the active InfiniBand and RoCE ports, equal ones counted: ``8 x 400 Gb/sec (4X NDR)``."""
    folder = sys_root + "/class/infiniband"
    ports = [f"{folder}/{card}/ports/{port}" for card in names(folder) for port in names(f"{folder}/{card}/ports")]
    up = [port for port in ports if "ACTIVE" in read_text(port + "/state")]
    return _count_equal([read_text(port + "/rate").strip() for port in up])


def accelerators(sys_root: str = SYS) -> str:
    """Return the PCI ids of the accelerators and display adapters, equal ones counted: ``8 x 10de:2330``."""
    folders = [f"{sys_root}/bus/pci/devices/{name}/" for name in names(f"{sys_root}/bus/pci/devices")]
    kept = [folder for folder in folders if read_text(folder + "class").startswith(("0x03", "0x0b", "0x12"))]
    ids = ([read_text(folder + file).strip()[2:] for file in ("vendor", "device")] for folder in kept)
    return _count_equal([":".join(pair) for pair in ids])


def _count_equal(texts: list[str]) -> str:
    return ", ".join(f"{texts.count(text)} x {text}" for text in sorted({text for text in texts if text}))


def _hardware() -> str:
    """Return the machine's vendor and model, from files that all users may read."""
    names = [read_text("/sys/class/dmi/id/" + name).strip() for name in ("sys_vendor", "product_name")]
    return " ".join(filter(None, names))


def _field(path: str, name: str, separator: str) -> str:
    lines = read_text(path).splitlines()
    return next((line.partition(separator)[2].strip() for line in lines if line.startswith(name)), "")


def read_text(path: str) -> str:
    """Return a file's text; an empty string if it cannot be read."""
    try:
        with open(path, errors="replace") as source:  # noqa: PTH123
            return source.read()
    except OSError:
        return ""
