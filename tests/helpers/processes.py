"""Processes of this machine, read with psutil, without ended processes and those of other users."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Running:
    """One process: its command line, its environment variables and its folder."""

    pid: int
    words: list[str]
    environment: dict[str, str]
    folder: str

    @property
    def line(self) -> str:
        return " ".join(self.words)


def running() -> Iterator[Running]:
    for process in psutil.process_iter():
        with suppress(psutil.Error), process.oneshot():
            if process.status() != psutil.STATUS_ZOMBIE:
                yield Running(process.pid, process.cmdline(), process.environ(), process.cwd())


def descendants(pid: int) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return [pid]


def ancestors(pid: int) -> set[int]:
    return {pid, *(parent.pid for parent in psutil.Process(pid).parents())}


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal one process; refuse a group, all processes, the first one, and those that run this test.

    A process in another namespace names itself and its parent by other numbers, such as 0, than this one.
    """
    assert pid > 1, f"a test must not signal process {pid}"
    assert pid not in ancestors(os.getpid()), "a test must not signal itself"
    os.kill(pid, number)
