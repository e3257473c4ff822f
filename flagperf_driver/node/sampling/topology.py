"""Which of a host's CPUs are cores of their own, and which are near a device, as the kernel tells it."""

from __future__ import annotations

import re
from typing import Iterable

from flagperf_driver.node.sampling.host import SYS, content, names

_PCI = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]{1,2}:[0-9a-f]{1,2}\.[0-7])$", re.IGNORECASE)


def cards(usable: Iterable[int], sys_root: str = SYS) -> list[int]:
    """These CPUs in the order in which they are cards: one of each core, a node's cores before the next node's.

    After them come the cores' other threads, which are cards only where there are more cards than cores.
    """
    cpus, nodes = set(usable), _nodes(sys_root)
    order: dict[int, tuple[int, int, int]] = {}
    for cpu in sorted(cpus):
        if cpu not in order:  # a file's reading costs, and the core's first thread names the others
            told = content(f"{sys_root}/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
            threads = sorted(cpus.intersection(listed(told)) | {cpu})
            order.update({thread: (place, nodes.get(cpu, -1), cpu) for place, thread in enumerate(threads)})
    return sorted(sorted(cpus), key=order.__getitem__)


def near(pci: object, usable: Iterable[int], sys_root: str = SYS) -> list[int]:
    """Those of these CPUs that are on the node of the device with that bus id; none where that is all, or not known."""
    match = _PCI.match(str(pci))
    if match is None:
        return []
    domain = int(match.group(1) or "0", 16)  # tools write it with four digits or eight, or leave it out
    address = f"{domain:04x}:{match.group(2).lower()}"
    cpus = set(usable)
    found = cpus.intersection(listed(content(f"{sys_root}/bus/pci/devices/{address}/local_cpulist")))
    return [] if found == cpus else sorted(found)


def listed(text: str) -> list[int]:
    """The numbers of a list as the kernel writes it: ``0-3,8``; of anything else none."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not first.isdigit() or not last.isdigit():
            return []
        found += range(int(first), int(last) + 1)
    return found


def as_list(cpus: Iterable[int]) -> str:
    """The numbers as the kernel writes them."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _nodes(sys_root: str) -> dict[int, int]:
    """By CPU, the number of its NUMA node."""
    folder = sys_root + "/devices/system/node"
    numbers = [int(name[4:]) for name in names(folder) if name[:4] == "node" and name[4:].isdigit()]
    return {cpu: number for number in numbers for cpu in listed(content(f"{folder}/node{number}/cpulist"))}
