"""Hosts, and what the harness may do on one: the same few verbs wherever the host is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Message = Mapping[str, Any]


class HostError(RuntimeError):
    """A host could not do what was asked; the text names the host, what was asked and what it said."""


class HostLost(HostError):
    """The connection to a host is gone: cut, frozen, switched off. It may come back: see ``Host.reconnect``."""


class InvalidReply(HostError):
    """A host sent an invalid message; the text names the host, what came and what was expected."""

    def __init__(self, host: str, what: str) -> None:
        super().__init__(f"{host} sent an invalid reply: {what}")


@dataclass(frozen=True)
class Completed:
    """A program that ran to its end on a host; a signal's number, negative, is the code of one that was killed."""

    argv: tuple[str, ...]
    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        """What it wrote, as text."""
        return self.raw.decode("utf-8", "replace")


class Channel(Protocol):
    """A conversation with a program on a host: one JSON object a line, both ways; HostLost where the link is gone."""

    def send(self, message: Message) -> None: ...

    def receive(self, timeout_s: float) -> Message | None:
        """The next message; None once the far side has said its last in order. TimeoutError after ``timeout_s``."""

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

    @property
    def here(self) -> bool:
        """Whether it is the harness's own machine, which has every file already."""

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

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Channel:
        """Start a program to converse with; a terminal's Ctrl-C does not reach it."""

    def forward(self, path: str) -> str:
        """A Unix socket here that leads to the Unix socket ``path`` there, until the host is closed."""

    def reconnect(self) -> None:
        """A fresh connection in place of a lost one; HostError with the reason where it cannot be had."""

    def close(self) -> None: ...
