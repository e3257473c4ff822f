"""The topology of a host's CPUs: which are separate cores, and which are near a device."""

from __future__ import annotations

import re
from typing import Iterable

from flagperf_driver.node.sampling.host_counters import SYS, names, read_text

_PCI = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]{1,2}:[0-9a-f]{1,2}\.[0-7])$", re.IGNORECASE)


def cpu_devices(usable: Iterable[int], sys_root: str = SYS) -> list[int]:
    """Return the CPUs in the order in which they are used as devices: one of each core, NUMA node by NUMA node.

    The cores' other threads come last: they are used only if more devices are requested than there are cores.
    """
    cpus, nodes = set(usable), _nodes(sys_root)
    order: dict[int, tuple[int, int, int]] = {}
    for cpu in sorted(cpus):
        if cpu not in order:  # the first thread of a core lists the others, which saves reading files
            siblings = read_text(f"{sys_root}/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
            threads = sorted(cpus.intersection(parse_list(siblings)) | {cpu})
            order.update({thread: (place, nodes.get(cpu, -1), cpu) for place, thread in enumerate(threads)})
    return sorted(sorted(cpus), key=order.__getitem__)


def near(pci: object, usable: Iterable[int], sys_root: str = SYS) -> list[int]:
    """Return the CPUs on the device's NUMA node; an empty list if all are on it, or if it is unknown."""
    match = _PCI.match(str(pci))
    if match is None:
        return []
    domain = int(match.group(1) or "0", 16)  # tools print it with four or eight digits, or leave it out
    address = f"{domain:04x}:{match.group(2).lower()}"
    cpus = set(usable)
    local = cpus.intersection(parse_list(read_text(f"{sys_root}/bus/pci/devices/{address}/local_cpulist")))
    return [] if local == cpus else sorted(local)


def parse_list(text: str) -> list[int]:
    """Parse a list of numbers in the kernel's format, ``0-3,8``; return an empty list for anything else."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not first.isdigit() or not last.isdigit():
            return []
        numbers += range(int(first), int(last) + 1)
    return numbers


def as_list(cpus: Iterable[int]) -> str:
    """Format numbers as the kernel does: ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _nodes(sys_root: str) -> dict[int, int]:
    """Return the number of the NUMA node of each CPU."""
    folder = sys_root + "/devices/system/node"
    numbers = [int(name[4:]) for name in names(folder) if name[:4] == "node" and name[4:].isdigit()]
    return {cpu: number for number in numbers for cpu in parse_list(read_text(f"{folder}/node{number}/cpulist"))}
