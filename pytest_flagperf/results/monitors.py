"""What was sampled on the hosts while a round ran, from the logs of its directory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LOGS = {"cpu": "cpu_monitor.log", "memory": "mem_monitor.log"}
"""By quantity; both are shares of the whole host."""


@dataclass(frozen=True)
class Sample:
    """A value and when it was taken, in seconds since the epoch."""

    time: float
    value: float


Samples = Mapping[str, tuple[Sample, ...]]


def read(round_dir: Path) -> dict[str, Samples]:
    """By host folder and quantity."""
    folders = sorted(path for path in round_dir.glob("*_noderank*") if path.is_dir())
    return {folder.name: {name: tuple(_samples(folder / file)) for name, file in LOGS.items()} for folder in folders}


def _samples(path: Path) -> Iterator[Sample]:
    """Every whole line; a line cut short by a kill is passed over."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        stamp, _, value = line.partition("\t")
        try:
            yield Sample(time.mktime(time.strptime(stamp, "%Y-%m-%d-%H:%M:%S")), float(value))
        except ValueError:
            continue
