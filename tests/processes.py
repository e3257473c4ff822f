"""Processes of this machine, by psutil. A process that ends meanwhile, or that is another user's, is left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Running:
    """One process: its command line, the variables that it was started with, and where it is."""

    pid: int
    words: list[str]
    environment: dict[str, str]
    folder: str

    @property
    def line(self) -> str:
        return " ".join(self.words)


def running() -> Iterator[Running]:
    """Yield every process that lives; a zombie does not."""
    for process in psutil.process_iter():
        with suppress(psutil.Error), process.oneshot():
            if process.status() != psutil.STATUS_ZOMBIE:
                yield Running(process.pid, process.cmdline(), process.environ(), process.cwd())


def descendants(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    with suppress(psutil.NoSuchProcess):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return [pid]


def ancestors(pid: int) -> set[int]:
    """Return a process and those that it descends from."""
    return {pid, *(parent.pid for parent in psutil.Process(pid).parents())}
