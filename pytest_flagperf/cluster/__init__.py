"""Hosts, and what the harness may do on one: the same few verbs wherever the host is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Message = Mapping[str, Any]


class HostError(RuntimeError):
    """A host could not do what was asked; the text names the host, what was asked and what it said."""


@dataclass(frozen=True)
class Completed:
    """A program that ran to its end on a host."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str


class Channel(Protocol):
    """A conversation with a program on a host: one JSON object a line, both ways."""

    def send(self, message: Message) -> None: ...

    def receive(self, timeout_s: float) -> Message | None:
        """The next message; None once the far side has said its last. TimeoutError after ``timeout_s``."""

    def close(self, timeout_s: float = 5.0) -> int | None:
        """Hang up, wait for the program's end and kill it if it does not come; its exit code."""

    def complaint(self) -> str:
        """What the program wrote on stderr, its last lines."""


class Host(Protocol):
    """A machine that ranks run on."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str:
        """Where the other hosts' ranks reach this one."""

    @property
    def python(self) -> str:
        """A Python >= 3.8 that is there before any environment is built."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run to the end, whatever the exit code; HostError if it cannot start or takes too long."""

    def put(self, source: Path, target: str) -> None:
        """Copy a file there; the target appears whole or not at all."""

    def get(self, source: str, target: Path) -> None:
        """Copy a file here; the target appears whole or not at all."""

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, hold: Sequence[int] = ()) -> Channel:
        """Start a program that outlives a terminal's Ctrl-C; it keeps ``hold``, a lease's locks, open."""

    def close(self) -> None: ...
